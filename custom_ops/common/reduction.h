// What is summed over the classes of a head.
#ifndef TFXC_COMMON_REDUCTION_H_
#define TFXC_COMMON_REDUCTION_H_

#include <string>

namespace tfxc {

enum class Reduction { kNone, kSquaredHinge, kSoftplus, kLogSumExp };

inline Reduction ReductionNamed(const std::string& name) {
  return name == "squared_hinge" ? Reduction::kSquaredHinge
         : name == "softplus"    ? Reduction::kSoftplus
         : name == "logsumexp"   ? Reduction::kLogSumExp
                                 : Reduction::kNone;
}

}  // namespace tfxc

#endif  // TFXC_COMMON_REDUCTION_H_
