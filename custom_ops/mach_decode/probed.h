// The best classes of one query among the members of a few buckets: usually the best of all, in a fraction of the time.
#pragma once

#include <cstdint>
#include <vector>

#include "mach_decode/best.h"
#include "mach_decode/sketch.h"
#include "mach_decode/tables.h"

namespace tfxc {

// Bounds the score of each class in a probed bucket: in a repetition it has its bucket's score if that was probed, and
// at most the least probed score otherwise. Scores the classes of the largest bounds, and then all that may still rank.
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

  const Hashes& hashes_;
  const Queries& queries_;
  const int64_t num_probes_, num_places_;
  const Places places_;
  const float reach_;
  std::vector<std::vector<Scored>> lists_;  // [R] of [num_probes], best first, above the least
  float rest_;                // the sum of the least probed scores
  std::vector<float> sketch_;  // what is above that sum, at the place to which a class is hashed
  std::vector<Scored> candidates_;          // with the sums
  std::vector<float> values_;  // [R]
};

}  // namespace tfxc
