// The term of a logit in the sum over classes, and its slope, for the three reductions, number by number.
#pragma once

#include "common/lanes.h"
#include "common/reduction.h"

namespace tfxc {

constexpr int kMostTerms = 126;  // the most terms of one sum

// Exponentials are relative to `reference`.
template <Reduction reduction, typename Lanes>
class Terms {
 public:
  TFXC_INLINE void Add(Lanes logit, Lanes reference) {
    const Lanes beyond = Max(logit + 1.0f, Lanes{});
    total_ += reduction == Reduction::kSquaredHinge ? beyond * beyond : Exp(logit - reference);
  }
  TFXC_INLINE Lanes Total() const { return total_; }

 private:
  Lanes total_{};
};

// Σ log(1 + exp(x)) = Σ max(x, 0) + log(Π (1 + exp(-|x|))): one logarithm for many terms. The variable holds the
// product minus 1, so that small terms are not lost. Each term at most doubles the product, which bounds the number of
// terms.
template <typename Lanes>
class Terms<Reduction::kSoftplus, Lanes> {
 public:
  TFXC_INLINE void Add(Lanes logit, Lanes) {
    const Lanes e = Exp<false>(MinusAbs(logit));
    above_ += Max(logit, Lanes{});
    product_ += e * (product_ + 1.0f);
  }
  TFXC_INLINE Lanes Total() const { return above_ + Log1p(product_); }

 private:
  Lanes above_{}, product_{};
};

// `reduced` is the log-sum-exp; the other reductions ignore it.
template <Reduction reduction, typename Lanes>
TFXC_INLINE Lanes Slope(Lanes logit, Lanes reduced) {
  if (reduction == Reduction::kSquaredHinge) return 2.0f * Max(logit + 1.0f, Lanes{});
  if (reduction == Reduction::kSoftplus) return Sigmoid(logit);
  // Terms below e^-69 would only make denormal numbers, for which processors take many times as long.
  return Exp(logit - reduced, -69.0f);
}

}  // namespace tfxc
