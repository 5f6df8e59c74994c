// What is summed over the classes of a head.
#ifndef TFXC_COMMON_REDUCTION_H_
#define TFXC_COMMON_REDUCTION_H_

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

// What stands for the reduced logits of a query that is no query, but fills up a vector: its logits are the biases, and
// whatever those are, the slope of their log-sum-exp is 0 then.
constexpr float kReducedOfPadding = std::numeric_limits<float>::infinity();

// The reduction of all classes, from the sums of shards of them; those of the log-sum-exp are relative to exp(maxima). A
// logit that is NaN or +inf gives NaN.
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
  if (largest <= std::numeric_limits<float>::lowest()) return -INFINITY;  // no class, or -inf all
  for (int64_t shard = 0; shard < num_shards; ++shard) {
    if (sums[shard * stride] != 0.0) total += sums[shard * stride] * std::exp(maxima[shard * stride] - largest);
  }
  return largest + std::log(total);
}

}  // namespace tfxc

#endif  // TFXC_COMMON_REDUCTION_H_
