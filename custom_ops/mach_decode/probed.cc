#include "mach_decode/probed.h"

#include <algorithm>
#include <cstring>

#include "common/gather.h"
#include "common/vectorize.h"
#include "mach_decode/largest.h"
#include "mach_decode/members.h"

namespace tfxc {
namespace {

// The number of places of the sketch to examine first for each wanted class.
constexpr int64_t kPlacesPerClass = 24;

// The number of places for each class in the probed buckets. A place that two classes share looks like a class with the
// sum of both: among fewer places, such sums would outnumber the best classes.
constexpr int64_t kPlacesPerListed = 4;

// Scoring all classes takes less time than probing a quarter of them.
constexpr int64_t kCostOfListed = 4;

// The number of members of the probed buckets.
int64_t NumListed(const Hashes& hashes, int64_t num_probes) {
  return hashes.Count() * num_probes * (hashes.prime / hashes.num_buckets + 1);
}

template <typename Lanes>
TFXC_INLINE void AddValueOf(const Hashes& hashes, int64_t r, Scored bucket, Places places, float* sketch) {
  for (Members<Lanes> members(hashes, r, bucket.id); !members.Done();) {
    const UintOf<Lanes> index = places.Of(members.Next());
    for (int j = 0; j < kSizeOf<Lanes>; ++j) sketch[index[j]] += bucket.score;
  }
}
TFXC_BY_WIDTH(void, AddValue, (const Hashes& hashes, int64_t r, Scored bucket, Places places, float* sketch),
              (hashes, r, bucket, places, sketch))

// Appends the classes of a bucket whose place reaches the floor, with the sum there.
template <typename Lanes>
TFXC_INLINE void AppendAboveOf(const Hashes& hashes, int64_t r, int64_t bucket, float floor, Places places,
                               const float* sketch, std::vector<Scored>* candidates) {
  constexpr int kSize = kSizeOf<Lanes>;
  for (Members<Lanes> members(hashes, r, bucket); !members.Done();) {
    const UintOf<Lanes> ids = members.Next(), of_ids = places.Of(ids);
    uint32_t index[kSize];
    float found[kSize];
    std::memcpy(index, &of_ids, sizeof(index));
    Gather(sketch, index, kSize, found);
    const Lanes sums = Load<Lanes>(found);
    if (!Any(sums >= floor)) continue;
    for (int j = 0; j < kSize; ++j) {
      if (sums[j] >= floor && ids[j] < hashes.num_classes) {
        candidates->push_back({sums[j], static_cast<int32_t>(ids[j])});
      }
    }
  }
}
TFXC_BY_WIDTH(void, AppendAbove,
              (const Hashes& hashes, int64_t r, int64_t bucket, float floor, Places places, const float* sketch,
               std::vector<Scored>* candidates),
              (hashes, r, bucket, floor, places, sketch, candidates))

}  // namespace

Prober::Prober(const Hashes& hashes, const Queries& queries, int64_t k, int64_t num_probes)
    : hashes_(hashes),
      queries_(queries),
      num_probes_(num_probes),
      num_places_(kPlacesPerClass * (k + queries.num_excluded)),
      places_(kPlacesPerListed * NumListed(hashes, num_probes), hashes.prime),
      reach_(Reach(queries.decoder, hashes.Count())),
      lists_(hashes.Count()),
      values_(hashes.Count()) {}

bool Prober::IsFutile(const Hashes& hashes, int64_t num_probes) {
  return NumListed(hashes, num_probes) * kCostOfListed >= hashes.num_classes;
}

void Prober::Rank(int64_t query, Best* best) {
  AddUp(query);
  const float floor = FloorOfLargest(sketch_.data(), sketch_.size(), num_places_);
  FindCandidates(floor);
  // A class of several buckets appears several times.
  std::sort(candidates_.begin(), candidates_.end());
  const auto same = [](Scored one, Scored other) { return one.id == other.id; };
  candidates_.erase(std::unique(candidates_.begin(), candidates_.end(), same), candidates_.end());
  for (Scored candidate : candidates_) {
    if ((candidate.score + rest_) * reach_ < best->threshold()) return;
    Offer(query, candidate.id, best);
  }
  FindCandidates(best->threshold() / reach_ - rest_);
  for (Scored candidate : candidates_) {
    if (candidate.score >= floor || (candidate.score + rest_) * reach_ < best->threshold()) continue;
    if (!best->Holds(candidate.id)) Offer(query, candidate.id, best);
  }
}

void Prober::Offer(int64_t query, int32_t id, Best* best) {
  if (queries_.IsExcluded(query, id)) return;
  for (int64_t r = 0; r < hashes_.Count(); ++r) values_[r] = queries_.Value(hashes_, query, r, id);
  best->Offer({Decode(queries_.decoder, &values_), id});
}

void Prober::AddUp(int64_t query) {
  sketch_.assign(places_.Count(), 0.0f);
  rest_ = 0.0f;
  for (int64_t r = 0; r < hashes_.Count(); ++r) {
    FindLargest(queries_.Table(hashes_, query, r), hashes_.num_buckets, num_probes_, &lists_[r]);
    const float least = lists_[r].empty() ? 0.0f : lists_[r].back().score;
    rest_ += least;
    for (Scored bucket : lists_[r]) {
      bucket.score -= least;
      if (bucket.score > 0.0f) AddValue(hashes_, r, bucket, places_, sketch_.data());
    }
  }
}

void Prober::FindCandidates(float floor) {
  candidates_.clear();
  for (int64_t r = 0; r < hashes_.Count(); ++r) {
    for (Scored bucket : lists_[r]) {
      AppendAbove(hashes_, r, bucket.id, floor, places_, sketch_.data(), &candidates_);
    }
  }
}

}  // namespace tfxc
