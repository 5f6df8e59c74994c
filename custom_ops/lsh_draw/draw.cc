#include "lsh_draw/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/philox.h"
#include "common/vectorize.h"

namespace tfxc {
namespace {

constexpr int kDoubles = 8;

// A product instead of a choice: GCC 12 vectorises "codes equal ? weight : 0" over 16-bit codes wrongly.
TFXC_INLINE double WeightIfEqual(int32_t code, int32_t other, double weight) {
  return weight * static_cast<double>(code == other);
}

// expected[s] = the summed weights of the tables in which class ids[s] has the query's code.
TFXC_VECTORIZE void AddUpMatches(const uint16_t* __restrict codes, const int32_t* __restrict ids,
                                 int64_t count, const int32_t* __restrict query,
                                 const double* __restrict weight, int64_t num_tables,
                                 double* __restrict expected) {
  for (int64_t s = 0; s < count; ++s) {
    const uint16_t* __restrict row = codes + ids[s] * num_tables;
    double sums[kDoubles] = {};
    int64_t t = 0;
    for (; t + kDoubles <= num_tables; t += kDoubles) {
      for (int j = 0; j < kDoubles; ++j) sums[j] += WeightIfEqual(row[t + j], query[t + j], weight[t + j]);
    }
    double sum = 0.0;
    for (; t < num_tables; ++t) sum += WeightIfEqual(row[t], query[t], weight[t]);
    for (int j = 0; j < kDoubles; ++j) sum += sums[j];
    expected[s] += sum;
  }
}

}  // namespace

QueryBuckets::QueryBuckets(const HashTables& tables, const Scheme& scheme)
    : tables_(tables),
      scheme_(scheme),
      uniform_slots_(scheme.num_candidates - scheme.bucket_slots * tables.num_tables),
      chance_(tables.num_tables),
      position_(scheme.num_candidates),
      origin_(scheme.num_candidates),
      candidate_(scheme.num_candidates) {
  const int64_t num_random = std::max(scheme.num_candidates, tables.num_tables);
  first_bits_.resize(num_random);
  second_bits_.resize(num_random);
  size_t slots = 2;
  while (slots < 2 * static_cast<size_t>(scheme.num_candidates)) slots *= 2;
  seen_.resize(slots);
}

void QueryBuckets::SetQuery(const int32_t* codes, int64_t num_parts) {
  const int64_t num_tables = tables_.num_tables, width = tables_.num_buckets + 1;
  code_.clear();
  start_.clear();
  size_.clear();
  for (int64_t m = 0; m < num_parts; ++m) {
    const int32_t* part = codes + m * num_tables;
    if (part[0] < 0) continue;
    for (int64_t t = 0; t < num_tables; ++t) {
      const int32_t* offset = tables_.offsets + t * width + part[t];
      code_.push_back(part[t]);
      start_.push_back(t * tables_.num_classes + offset[0]);
      size_.push_back(offset[1] - offset[0]);
    }
  }
  parts_ = code_.size() / num_tables;

  const double all = static_cast<double>(tables_.num_classes), draws = scheme_.num_candidates;
  const bool is_union = scheme_.bucket_slots > 0;
  // For independent draws: the share of a bucket among all draws, and the share that an empty bucket passes to all
  // classes.
  const double uniform = parts_ == 0 ? 1.0 : scheme_.uniform_fraction;
  const double from_bucket = parts_ == 0 ? 0.0 : (1.0 - uniform) * draws / code_.size();
  everywhere_ = (is_union ? static_cast<double>(uniform_slots_) : uniform * draws) / all;
  weight_.resize(code_.size());
  for (size_t k = 0; k < code_.size(); ++k) {
    const double size = static_cast<double>(size_[k]);
    if (is_union) {
      weight_[k] = size_[k] == 0 ? 0.0 : std::min(1.0, scheme_.bucket_slots / size) / parts_;
    } else if (size_[k] == 0) {
      weight_[k] = 0.0;
      everywhere_ += from_bucket / all;
    } else {
      weight_[k] = from_bucket / size;
    }
  }
}

void QueryBuckets::LogExpectedCounts(const int32_t* ids, int64_t count, float* log_expected_count) {
  const int64_t num_tables = tables_.num_tables;
  expected_.assign(count, everywhere_);
  if (scheme_.bucket_slots == 0) {
    for (int64_t m = 0; m < parts_; ++m) {
      AddUpMatches(tables_.codes, ids, count, &code_[m * num_tables], &weight_[m * num_tables], num_tables,
                   expected_.data());
    }
  } else {
    for (int64_t s = 0; s < count; ++s) {
      const uint16_t* row = tables_.codes + ids[s] * num_tables;
      std::fill(chance_.begin(), chance_.end(), 0.0);
      for (int64_t m = 0; m < parts_; ++m) {
        const int64_t part = m * num_tables;
        for (int64_t t = 0; t < num_tables; ++t) {
          chance_[t] += WeightIfEqual(row[t], code_[part + t], weight_[part + t]);
        }
      }
      double missed = 1.0;  // the tables choose independently of each other
      for (double chance : chance_) missed *= 1.0 - chance;
      expected_[s] += 1.0 - missed;
    }
  }
  for (int64_t s = 0; s < count; ++s) log_expected_count[s] = static_cast<float>(std::log(expected_[s]));
}

// Each draw is uniform over all classes, or over a bucket chosen uniformly; an empty bucket stands for all classes.
void QueryBuckets::DrawEach(const Seed& seed, uint32_t query) {
  const int64_t draws = scheme_.num_candidates, buckets = code_.size();
  FillBits(seed, query, draws, first_bits_.data(), second_bits_.data());
  for (int64_t s = 0; s < draws; ++s) {
    const double unit = ToUnit(first_bits_[s]) - scheme_.uniform_fraction;
    int64_t bucket = -1;
    if (unit >= 0.0 && buckets > 0) {
      bucket = std::min<int64_t>(unit / (1.0 - scheme_.uniform_fraction) * buckets, buckets - 1);
    }
    if (bucket < 0 || size_[bucket] == 0) {
      origin_[s] = position_[s] = -1;
      candidate_[s] = static_cast<int32_t>(ToRange(second_bits_[s], tables_.num_classes));
      continue;
    }
    origin_[s] = bucket;
    position_[s] = start_[bucket] + ToRange(second_bits_[s], size_[bucket]);
    __builtin_prefetch(tables_.members + position_[s]);
  }
}

// A table adds members of the bucket of one part, chosen uniformly; uniform draws fill the rest of the slots.
void QueryBuckets::DrawUnion(const Seed& seed, uint32_t query) {
  const int64_t num_tables = tables_.num_tables, from_buckets = num_tables * scheme_.bucket_slots;
  std::fill(origin_.begin(), origin_.end(), -1);
  std::fill(position_.begin(), position_.end(), -1);
  std::fill(candidate_.begin(), candidate_.end(), -1);
  FillBits(seed, query, num_tables + uniform_slots_, first_bits_.data(), second_bits_.data());
  for (int64_t t = 0; parts_ > 0 && t < num_tables; ++t) {
    const int64_t part = ToRange(first_bits_[t], parts_);
    TakeFromBucket(part * num_tables + t, ToUnit(second_bits_[t]), t * scheme_.bucket_slots);
  }
  for (int64_t s = 0; s < uniform_slots_; ++s) {
    candidate_[from_buckets + s] =
        static_cast<int32_t>(ToRange(second_bits_[num_tables + s], tables_.num_classes));
  }
}

// Takes all of a bucket that fits into the slots; else every (size / slots)-th member from a random start, so each
// member with probability slots / size.
void QueryBuckets::TakeFromBucket(int64_t bucket, double unit, int64_t first_slot) {
  const int64_t slots = scheme_.bucket_slots, size = size_[bucket];
  const double step = size <= slots ? 1.0 : static_cast<double>(size) / slots;
  for (int64_t j = 0; j < std::min(slots, size); ++j) {
    const int64_t index = size <= slots ? j : std::min<int64_t>((unit + j) * step, size - 1);
    origin_[first_slot + j] = bucket;
    position_[first_slot + j] = start_[bucket] + index;
    __builtin_prefetch(tables_.members + position_[first_slot + j]);
  }
}

void QueryBuckets::ReadMembers(int32_t* ids) {
  for (int64_t s = 0; s < scheme_.num_candidates; ++s) {
    ids[s] = position_[s] < 0 ? candidate_[s] : tables_.members[position_[s]];
    __builtin_prefetch(tables_.codes + std::max(ids[s], 0) * tables_.num_tables);
  }
}

void QueryBuckets::DropRepeats(int32_t* ids) {
  const size_t mask = seen_.size() - 1;
  std::fill(seen_.begin(), seen_.end(), -1);
  for (int64_t s = 0; s < scheme_.bucket_slots * tables_.num_tables; ++s) {
    if (ids[s] < 0) continue;
    size_t slot = (static_cast<uint32_t>(ids[s]) * uint32_t{2654435761u}) >> 7 & mask;
    while (seen_[slot] >= 0 && seen_[slot] != ids[s]) slot = (slot + 1) & mask;
    if (seen_[slot] == ids[s]) ids[s] = -1;
    else seen_[slot] = ids[s];
  }
}

bool QueryBuckets::IsConsistent(int64_t slot, int32_t id) const {
  if (origin_[slot] < 0) return true;
  if (id < 0 || id >= tables_.num_classes) return false;
  return tables_.codes[id * tables_.num_tables + origin_[slot] % tables_.num_tables] == code_[origin_[slot]];
}

void QueryBuckets::Draw(const Seed& seed, uint32_t query, int32_t* ids, float* log_expected_count) {
  const bool is_union = scheme_.bucket_slots > 0;
  is_union ? DrawUnion(seed, query) : DrawEach(seed, query);
  ReadMembers(ids);
  std::fill(log_expected_count, log_expected_count + scheme_.num_candidates, 0.0f);
  for (int64_t s = 0; s < scheme_.num_candidates; ++s) {
    if (!IsConsistent(s, ids[s])) {
      log_expected_count[s] = std::numeric_limits<float>::quiet_NaN();
      return;
    }
  }
  if (is_union) DropRepeats(ids);
  for (int64_t s = 0; s < scheme_.num_candidates; ++s) candidate_[s] = std::max(ids[s], 0);
  LogExpectedCounts(candidate_.data(), scheme_.num_candidates, log_expected_count);
  for (int64_t s = 0; s < scheme_.num_candidates; ++s) log_expected_count[s] = ids[s] < 0 ? 0.0f : log_expected_count[s];
}

}  // namespace tfxc
