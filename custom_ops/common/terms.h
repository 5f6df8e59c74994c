// What a logit adds to the sum over its classes, and the slope of that: the three reductions, number by number.
#ifndef TFXC_COMMON_TERMS_H_
#define TFXC_COMMON_TERMS_H_

#include "common/lanes.h"
#include "common/reduction.h"

namespace tfxc {

constexpr int kMostTerms = 126;  // of one sum

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

// Σ log(1 + exp(x)) = Σ max(x, 0) + log(Π (1 + exp(-|x|))): one logarithm for many terms. The product is kept less its
// 1, so that no small term is lost. Each at most doubles it: hence the most terms that a float has room for.
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

// `reduced` is the log-sum-exp; the others do without.
template <Reduction reduction, typename Lanes>
TFXC_INLINE Lanes Slope(Lanes logit, Lanes reduced) {
  if (reduction == Reduction::kSquaredHinge) return 2.0f * Max(logit + 1.0f, Lanes{});
  if (reduction == Reduction::kSoftplus) return Sigmoid(logit);
  // What is below e^-69 would only make numbers so small that processors take many times as long for them.
  return Exp(logit - reduced, -69.0f);
}

}  // namespace tfxc

#endif  // TFXC_COMMON_TERMS_H_
