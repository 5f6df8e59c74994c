// The best classes of one query among the members of a few buckets: usually the best of all, in a fraction of the time.
#pragma once

#include <cstdint>
#include <vector>

#include "mach_decode/best.h"
#include "mach_decode/sketch.h"
#include "mach_decode/tables.h"

namespace tfxc {

// Sums the scores of each class's buckets among the best of each repetition, scores the classes of the largest sums, and
// then those of smaller sums that may still rank.
class Prober {
 public:
  Prober(const Hashes& hashes, const Queries& queries, int64_t k, int64_t num_probes);

  // Whether ranking all classes takes no longer.
  static bool IsFutile(const Hashes& hashes, int64_t num_probes);

  void Rank(int64_t query, Best* best);

 private:
  void AddUp(int64_t query);
  void FindCandidates(float floor);
  void Offer(int64_t query, int32_t id, Best* best);
  float Rest() const;

  const Hashes& hashes_;
  const Queries& queries_;
  const int64_t num_probes_, num_places_;
  const Places places_;
  const float reach_;
  std::vector<std::vector<Scored>> lists_;  // [R] of [num_probes], best first
  std::vector<float> sketch_;               // sums, at the place to which a class is hashed
  std::vector<Scored> candidates_;          // with the sums
  std::vector<float> values_;  // [R]
};

}  // namespace tfxc
