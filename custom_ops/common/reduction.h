// The reductions over the classes of a head.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace tfxc {

enum class Reduction { kNone, kSquaredHinge, kSoftplus, kLogSumExp };

inline Reduction ReductionNamed(const std::string& name) {
  return name == "squared_hinge" ? Reduction::kSquaredHinge
         : name == "softplus"    ? Reduction::kSoftplus
         : name == "logsumexp"   ? Reduction::kLogSumExp
                                 : Reduction::kNone;
}

// The reduced logits of a padding query, whose logits are the biases: whatever these are, it makes the slope of their
// log-sum-exp 0.
constexpr float kReducedOfPadding = std::numeric_limits<float>::infinity();

// The reduction of all classes, from the sums of their shards; sums of the log-sum-exp are relative to exp(maxima). A
// logit of NaN or +inf gives NaN.
inline float TotalOfShards(Reduction reduction, const double* sums, const float* maxima, int64_t num_shards,
                           int64_t stride) {
  double total = 0.0, largest = -INFINITY;
  if (reduction != Reduction::kLogSumExp) {
    for (int64_t shard = 0; shard < num_shards; ++shard) total += sums[shard * stride];
    return total;
  }
  for (int64_t shard = 0; shard < num_shards; ++shard) {
    if (std::isnan(sums[shard * stride])) return sums[shard * stride];
    largest = std::max<double>(largest, maxima[shard * stride]);
  }
  if (largest <= std::numeric_limits<float>::lowest()) return -INFINITY;  // no class, or all logits are -inf
  for (int64_t shard = 0; shard < num_shards; ++shard) {
    if (sums[shard * stride] != 0.0) total += sums[shard * stride] * std::exp(maxima[shard * stride] - largest);
  }
  return largest + std::log(total);
}

}  // namespace tfxc
