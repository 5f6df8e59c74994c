#include "common/folds.h"

#include <algorithm>
#include <cmath>

#include "common/lanes.h"
#include "common/simd.h"
#include "common/vectorize.h"

namespace tfxc::tiles {
namespace {

constexpr float kFarAbove = 1e15f;  // more than the terms of a tile near the largest logit come to

template <Reduction reduction>
TFXC_INLINE Lanes Term(Lanes logit, Lanes reference) {
  const Lanes beyond = Max(logit + 1.0f, Lanes{});
  return reduction == Reduction::kSquaredHinge ? beyond * beyond
         : reduction == Reduction::kSoftplus   ? Softplus(logit)
                                                    : Exp(logit - reference);
}

// The terms of one column of logits. Of the exponentials, relative to `reference`.
template <Reduction reduction>
TFXC_INLINE Lanes SumOf(const float* column, int64_t num_rows, int width, Lanes reference) {
  Lanes even{}, odd{};
  int64_t r = 0;
  for (; r + 1 < num_rows; r += 2) {
    even += Term<reduction>(Load(column + r * width), reference);
    odd += Term<reduction>(Load(column + (r + 1) * width), reference);
  }
  if (r < num_rows) even += Term<reduction>(Load(column + r * width), reference);
  return even + odd;
}

template <Reduction reduction>
TFXC_INLINE void FoldOf(const float* logits, int64_t num_rows, int width, double* sums, float* maxima) {
  for (int q = 0; q < width; q += kLanes) {
    const float* column = logits + q;
    const Lanes before = Load(maxima + q);
    Lanes total = SumOf<reduction>(column, num_rows, width, before);
    // Right, unless a logit is far above all before it, as those of the first tile are. Seldom, and so looked for after.
    if (reduction == Reduction::kLogSumExp && Any(total > kFarAbove)) {
      Lanes largest = before;
      for (int64_t r = 0; r < num_rows; ++r) largest = Max(Load(column + r * width), largest);
      for (int j = 0; j < kLanes; ++j) sums[q + j] *= std::exp(static_cast<double>(before[j]) - largest[j]);
      std::memcpy(maxima + q, &largest, sizeof(largest));
      total = SumOf<reduction>(column, num_rows, width, largest);
    }
    for (int j = 0; j < kLanes; ++j) sums[q + j] += total[j];
  }
}

template <Reduction reduction>
TFXC_INLINE Lanes Slope(Lanes logit, Lanes reduced) {
  if (reduction == Reduction::kSquaredHinge) return 2.0f * Max(logit + 1.0f, Lanes{});
  if (reduction == Reduction::kSoftplus) return Sigmoid(logit);
  // What is below e^-69 would only make numbers so small that processors take many times as long for them.
  const Lanes x = logit - reduced;
  return x < -69.0f ? Lanes{} : Exp(x);
}

template <Reduction reduction>
TFXC_INLINE void GradientOf(const float* reduced, const float* upstream, int64_t num_rows, int width, float* logits,
                            float* row_sums) {
  for (int64_t r = 0; r < num_rows; ++r) {
    Lanes total{};
    for (int q = 0; q < width; q += kLanes) {
      float* logit = logits + r * width + q;
      const Lanes slope = Slope<reduction>(Load(logit), Load(reduced + q)) * Load(upstream + q);
      std::memcpy(logit, &slope, sizeof(slope));
      total += slope;
    }
    if (row_sums != nullptr) row_sums[r] += Sum(total);
  }
}

TFXC_VECTORIZE void FoldHinge(const float* logits, int64_t num_rows, int width, double* sums, float* maxima) {
  FoldOf<Reduction::kSquaredHinge>(logits, num_rows, width, sums, maxima);
}
TFXC_VECTORIZE void FoldSoftplus(const float* logits, int64_t num_rows, int width, double* sums, float* maxima) {
  FoldOf<Reduction::kSoftplus>(logits, num_rows, width, sums, maxima);
}
TFXC_VECTORIZE void FoldLogSumExp(const float* logits, int64_t num_rows, int width, double* sums, float* maxima) {
  FoldOf<Reduction::kLogSumExp>(logits, num_rows, width, sums, maxima);
}

#define TFXC_GRADIENT_ARGUMENTS \
  const float *reduced, const float *upstream, int64_t num_rows, int width, float *logits, float *row_sums
TFXC_VECTORIZE void HingeGradient(TFXC_GRADIENT_ARGUMENTS) {
  GradientOf<Reduction::kSquaredHinge>(reduced, upstream, num_rows, width, logits, row_sums);
}
TFXC_VECTORIZE void SoftplusGradient(TFXC_GRADIENT_ARGUMENTS) {
  GradientOf<Reduction::kSoftplus>(reduced, upstream, num_rows, width, logits, row_sums);
}
TFXC_VECTORIZE void LogSumExpGradient(TFXC_GRADIENT_ARGUMENTS) {
  GradientOf<Reduction::kLogSumExp>(reduced, upstream, num_rows, width, logits, row_sums);
}
#undef TFXC_GRADIENT_ARGUMENTS

}  // namespace

TFXC_VECTORIZE void ScaleAndShift(const float* scales, const float* bias, int64_t num_rows, int width, float* logits) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const float scale = scales == nullptr ? 1.0f : scales[r], shift = bias == nullptr ? 0.0f : bias[r];
    float* row = logits + r * width;
    for (int q = 0; q < width; ++q) row[q] = row[q] * scale + shift;
  }
}

void Fold(Reduction reduction, const float* logits, int64_t num_rows, int width, double* sums, float* maxima) {
  const auto fold = reduction == Reduction::kSquaredHinge ? FoldHinge
                    : reduction == Reduction::kSoftplus   ? FoldSoftplus
                                                               : FoldLogSumExp;
  fold(logits, num_rows, width, sums, maxima);
}

void ToGradient(Reduction reduction, const float* reduced, const float* upstream, int64_t num_rows, int width,
                float* logits, float* row_sums) {
  const auto gradient = reduction == Reduction::kSquaredHinge ? HingeGradient
                        : reduction == Reduction::kSoftplus   ? SoftplusGradient
                                                                   : LogSumExpGradient;
  gradient(reduced, upstream, num_rows, width, logits, row_sums);
}

TFXC_VECTORIZE void Largest(const float* logits, int64_t num_rows, int width, float* largest) {
  for (int q = 0; q < width; q += kLanes) {
    Lanes so_far = Load(logits + q);
    for (int64_t r = 1; r < num_rows; ++r) so_far = Max(so_far, Load(logits + r * width + q));
    std::memcpy(largest + q, &so_far, sizeof(so_far));
  }
}

TFXC_VECTORIZE void InverseNorms(const float* rows, int64_t num_rows, int64_t dim, float* scales) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const float square = Dot(rows + r * dim, rows + r * dim, dim);
    scales[r] = 1.0f / std::sqrt(std::max(square, kNormEpsilon * kNormEpsilon));
  }
}

}  // namespace tfxc::tiles
