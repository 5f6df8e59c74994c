#include "mach_decode/pruned.h"

#include <algorithm>

#include "common/vectorize.h"
#include "mach_decode/largest.h"
#include "mach_decode/members.h"

namespace tfxc {
namespace {

// Scoring a candidate takes as long as scoring so many consecutive classes.
constexpr int64_t kCostOfCandidate = 2;
// The number of pairs of repetitions that give a first threshold.
constexpr int64_t kGuessingPairs = 3;

// The number of listed buckets: the worst should be well below the buckets of the k best classes.
int64_t NumListed(int64_t k, int64_t num_buckets) { return std::min(std::max<int64_t>(2 * k, 8), num_buckets); }

// Adds the gain to the place of each class of a bucket, and appends the classes whose place reaches the floor.
template <typename Lanes>
TFXC_INLINE void AddGainOf(const Hashes& hashes, int64_t r, int64_t bucket, float gain, float floor, Places places,
                           float* sketch, std::vector<int32_t>* promising) {
  for (Members<Lanes> members(hashes, r, bucket); !members.Done();) {
    const UintOf<Lanes> ids = members.Next(), index = places.Of(ids);
    for (int j = 0; j < kSizeOf<Lanes>; ++j) {
      const float sum = sketch[index[j]] += gain;
      if (sum >= floor && ids[j] < hashes.num_classes) promising->push_back(ids[j]);
    }
  }
}
TFXC_BY_WIDTH(void, AddGain,
              (const Hashes& hashes, int64_t r, int64_t bucket, float gain, float floor, Places places, float* sketch,
               std::vector<int32_t>* promising),
              (hashes, r, bucket, gain, floor, places, sketch, promising))

}  // namespace

Pruner::Pruner(const Hashes& hashes, const Queries& queries, int64_t k)
    : hashes_(hashes),
      queries_(queries),
      k_(k),
      num_listed_(NumListed(k, hashes.num_buckets)),
      most_candidates_(hashes.Count() * num_listed_ * (hashes.prime / hashes.num_buckets + 1)),
      places_(2 * most_candidates_, hashes.prime),
      reach_(Reach(queries.decoder, hashes.Count())),
      lists_(hashes.Count()),
      values_(hashes.Count()) {}

bool Pruner::IsFutile() const { return most_candidates_ * kCostOfCandidate > hashes_.num_classes; }

bool Pruner::Rank(int64_t query, Best* best) {
  rest_ = 0.0f;
  for (int64_t r = 0; r < hashes_.Count(); ++r) {
    FindLargest(queries_.Table(hashes_, query, r), hashes_.num_buckets, num_listed_, &lists_[r]);
    if (static_cast<int64_t>(lists_[r].size()) < num_listed_) return false;  // the tables hold NaN
    rest_ += lists_[r].back().score;
  }
  const float least = Guess(query);
  if (!(rest_ * reach_ < least)) return false;
  FindPromising(least / reach_ - rest_);
  for (int32_t id : promising_) Consider(query, id, least, best);
  return true;
}

// A lower bound of the k-th best score: the k-th best among classes in listed buckets of two neighbouring repetitions.
// Few classes are in both by chance, but most of the best are.
float Pruner::Guess(int64_t query) {
  Best best(k_);
  const int64_t end = std::min(hashes_.Count() - 1, 2 * kGuessingPairs);
  for (int64_t r = 0; r < end; r += 2) {
    for (Scored bucket : lists_[r]) {
      for (Members<NarrowLanes> members(hashes_, r, bucket.id); !members.Done();) {
        const UintOf<NarrowLanes> ids = members.Next();
        for (int j = 0; j < kSizeOf<NarrowLanes>; ++j) {
          if (ids[j] < hashes_.num_classes && IsListed(query, r + 1, ids[j])) GuessFrom(query, r, ids[j], &best);
        }
      }
    }
  }
  return best.threshold();
}

// Each class once, in the first pair that finds it.
void Pruner::GuessFrom(int64_t query, int64_t pair, int64_t id, Best* best) {
  for (int64_t r = 0; r < pair; r += 2) {
    if (IsListed(query, r, id) && IsListed(query, r + 1, id)) return;
  }
  if (queries_.IsExcluded(query, id)) return;
  for (int64_t r = 0; r < hashes_.Count(); ++r) values_[r] = queries_.Value(hashes_, query, r, id);
  best->Offer({Decode(queries_.decoder, &values_), static_cast<int32_t>(id)});
}

void Pruner::FindPromising(float floor) {
  sketch_.assign(places_.Count(), 0.0f);
  promising_.clear();
  for (int64_t r = 0; r < hashes_.Count(); ++r) {
    const float worst = lists_[r].back().score;
    for (Scored bucket : lists_[r]) {
      AddGain(hashes_, r, bucket.id, bucket.score - worst, floor, places_, sketch_.data(), &promising_);
    }
  }
}

// Scores a class, or stops as soon as it cannot reach `least`.
void Pruner::Consider(int64_t query, int32_t id, float least, Best* best) {
  float bound = sketch_[places_.Of<uint32_t>(id)] + rest_;
  for (int64_t r = 0; r < hashes_.Count(); ++r) {
    values_[r] = queries_.Value(hashes_, query, r, id);
    bound -= std::max(0.0f, lists_[r].back().score - values_[r]);
    if (bound * reach_ < least) return;
  }
  // A class of several listed buckets appears several times.
  if (best->Holds(id) || queries_.IsExcluded(query, id)) return;
  best->Offer({Decode(queries_.decoder, &values_), id});
}

bool Pruner::IsListed(int64_t query, int64_t r, int64_t id) const {
  return queries_.Value(hashes_, query, r, id) >= lists_[r].back().score;
}

}  // namespace tfxc
