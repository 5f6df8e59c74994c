#include "common/folds.h"

#include <algorithm>
#include <cmath>

#include "common/lanes.h"
#include "common/simd.h"
#include "common/terms.h"
#include "common/vectorize.h"

namespace tfxc::tiles {
namespace {

constexpr float kFarAbove = 1e15f;  // above the sum of a tile's terms near the largest logit

constexpr int64_t kMaxRows = 2 * kMostTerms;  // of a sum

// Folds one column of logits.
template <Reduction reduction, typename Lanes>
TFXC_INLINE Lanes SumOf(const float* column, int64_t num_rows, int width, Lanes reference) {
  Terms<reduction, Lanes> even, odd;
  int64_t r = 0;
  for (; r + 1 < num_rows; r += 2) {
    even.Add(Load<Lanes>(column + r * width), reference);
    odd.Add(Load<Lanes>(column + (r + 1) * width), reference);
  }
  if (r < num_rows) even.Add(Load<Lanes>(column + r * width), reference);
  return even.Total() + odd.Total();
}

template <Reduction reduction, typename Lanes>
TFXC_INLINE void AddUp(const float* logits, int64_t num_rows, int width, double* sums, float* maxima) {
  for (int64_t start = 0; start < num_rows; start += kMaxRows) {
    const int64_t count = num_rows - start < kMaxRows ? num_rows - start : kMaxRows;
    for (int q = 0; q < width; q += kSizeOf<Lanes>) {
      const float* column = logits + start * width + q;
      const Lanes before = Load<Lanes>(maxima + q);
      Lanes total = SumOf<reduction>(column, count, width, before);
      // Exact, unless a logit is far above all before it, as in the first tile: rare, and so checked afterwards.
      if (reduction == Reduction::kLogSumExp && Any(total > kFarAbove)) {
        Lanes largest = before;
        for (int64_t r = 0; r < count; ++r) largest = Max(Load<Lanes>(column + r * width), largest);
        largest = total > kFarAbove ? largest : before;  // other queries do not change
        for (int j = 0; j < kSizeOf<Lanes>; ++j) sums[q + j] *= std::exp(static_cast<double>(before[j]) - largest[j]);
        Store(largest, maxima + q);
        total = SumOf<reduction>(column, count, width, largest);
      }
      for (int j = 0; j < kSizeOf<Lanes>; ++j) sums[q + j] += total[j];
    }
  }
}

template <Reduction reduction, typename Lanes>
TFXC_INLINE void BecomeGradient(const float* reduced, const float* upstream, int64_t num_rows, int width, float* logits,
                                float* row_sums) {
  for (int64_t r = 0; r < num_rows; ++r) {
    Lanes total[kParts<Lanes>] = {};
    for (int64_t q = 0; q < width;) {
      for (int part = 0; part < kParts<Lanes>; ++part, q += kSizeOf<Lanes>) {
        float* logit = logits + r * width + q;
        const Lanes slope = Slope<reduction>(Load<Lanes>(logit), Load<Lanes>(reduced + q)) * Load<Lanes>(upstream + q);
        Store(slope, logit);
        total[part] += slope;
      }
    }
    if (row_sums != nullptr) row_sums[r] += Sum(total);
  }
}

// Calls FUNCTION<reduction, Lanes>.
#define TFXC_FOR_REDUCTION(FUNCTION, ...)                                                       \
  switch (reduction) {                                                                          \
    case Reduction::kSquaredHinge: return FUNCTION<Reduction::kSquaredHinge, Lanes>(__VA_ARGS__); \
    case Reduction::kSoftplus: return FUNCTION<Reduction::kSoftplus, Lanes>(__VA_ARGS__);         \
    default: return FUNCTION<Reduction::kLogSumExp, Lanes>(__VA_ARGS__);                          \
  }

template <typename Lanes>
TFXC_INLINE void FoldOf(Reduction reduction, const float* logits, int64_t num_rows, int width, double* sums,
                        float* maxima) {
  TFXC_FOR_REDUCTION(AddUp, logits, num_rows, width, sums, maxima)
}

template <typename Lanes>
TFXC_INLINE void ToGradientOf(Reduction reduction, const float* reduced, const float* upstream, int64_t num_rows,
                              int width, float* logits, float* row_sums) {
  TFXC_FOR_REDUCTION(BecomeGradient, reduced, upstream, num_rows, width, logits, row_sums)
}
#undef TFXC_FOR_REDUCTION

template <typename Lanes>
TFXC_INLINE void LargestOf(const float* logits, int64_t num_rows, int width, float* largest) {
  for (int q = 0; q < width; q += kSizeOf<Lanes>) {
    Lanes so_far = Load<Lanes>(logits + q);
    for (int64_t r = 1; r < num_rows; ++r) so_far = Max(so_far, Load<Lanes>(logits + r * width + q));
    Store(so_far, largest + q);
  }
}

}  // namespace

TFXC_BY_WIDTH(void, Fold,
              (Reduction reduction, const float* logits, int64_t num_rows, int width, double* sums, float* maxima),
              (reduction, logits, num_rows, width, sums, maxima))
TFXC_BY_WIDTH(void, ToGradient,
              (Reduction reduction, const float* reduced, const float* upstream, int64_t num_rows, int width,
               float* logits, float* row_sums),
              (reduction, reduced, upstream, num_rows, width, logits, row_sums))
TFXC_BY_WIDTH(void, Largest, (const float* logits, int64_t num_rows, int width, float* largest),
              (logits, num_rows, width, largest))

TFXC_VECTORIZE void ScaleAndShift(const float* scales, const float* bias, int64_t num_rows, int width, float* logits) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const float scale = scales == nullptr ? 1.0f : scales[r], shift = bias == nullptr ? 0.0f : bias[r];
    float* row = logits + r * width;
    for (int q = 0; q < width; ++q) row[q] = row[q] * scale + shift;
  }
}

TFXC_VECTORIZE void InverseNorms(const float* rows, int64_t num_rows, int64_t dim, float* scales) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const float square = Dot(rows + r * dim, rows + r * dim, dim);
    scales[r] = 1.0f / std::sqrt(std::max(square, kNormEpsilon * kNormEpsilon));
  }
}

}  // namespace tfxc::tiles
