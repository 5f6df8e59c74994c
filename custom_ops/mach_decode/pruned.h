// The exact best classes of one query from its best buckets, without scoring all classes.
#pragma once

#include <cstdint>
#include <vector>

#include "mach_decode/best.h"
#include "mach_decode/sketch.h"
#include "mach_decode/tables.h"

namespace tfxc {

// Lists the best buckets of each repetition. A class in none of them scores at most the sum of the worst of each list:
// if the k-th best class found is above that, none is missed (the threshold algorithm of Fagin, Lotem and Naor, 2003).
class Pruner {
 public:
  Pruner(const Hashes& hashes, const Queries& queries, int64_t k);

  // Whether there would be so many candidates that scoring all classes takes no longer.
  bool IsFutile() const;

  // False if another class may be among the best; then `best` is not the answer.
  bool Rank(int64_t query, Best* best);

 private:
  float Guess(int64_t query);
  void GuessFrom(int64_t query, int64_t pair, int64_t id, Best* best);
  void FindPromising(float floor);
  void Consider(int64_t query, int32_t id, float least, Best* best);

  bool IsListed(int64_t query, int64_t r, int64_t id) const;

  const Hashes& hashes_;
  const Queries& queries_;
  const int64_t k_, num_listed_, most_candidates_;
  const Places places_;
  const float reach_;                       // no score is above this times the sum over the repetitions
  std::vector<std::vector<Scored>> lists_;  // [R] of [num_listed], best first
  float rest_;                              // the sum of the worst of each list
  // For each class, the sum of what its listed buckets have beyond the worst of their list, at the place to which the
  // class is hashed. Classes that share a place see too large a sum, which only costs time.
  std::vector<float> sketch_;
  std::vector<int32_t> promising_;
  std::vector<float> values_;  // [R]
};

}  // namespace tfxc
