// What happens to a tile of logits while it is in the cache: it is summed over its classes, or becomes a gradient.
#ifndef TFXC_COMMON_FOLDS_H_
#define TFXC_COMMON_FOLDS_H_

#include <cstdint>

#include "common/reduction.h"

namespace tfxc::tiles {

// logits[r * width + q] = logits[r * width + q] · scales[r] + bias[r]; scales and bias may be null.
void ScaleAndShift(const float* scales, const float* bias, int64_t num_rows, int width, float* logits);

// Adds the classes of a tile to the sum of every query; for the log-sum-exp sums are relative to exp(maxima).
void Fold(Reduction reduction, const float* logits, int64_t num_rows, int width, double* sums, float* maxima);

// Turns logits into the gradient of the reduction by them, times `upstream` of their query. `reduced` is read by the
// log-sum-exp only. Adds the sum of each row to row_sums, if that is not null.
void ToGradient(Reduction reduction, const float* reduced, const float* upstream, int64_t num_rows, int width,
                float* logits, float* row_sums);

// largest[q] = max_r logits[r * width + q]. NaN may be lost; then it is in the sum over the classes.
void Largest(const float* logits, int64_t num_rows, int width, float* largest);

constexpr float kNormEpsilon = 1e-12f;  // as tf.math.l2_normalize with its square

// scales[r] = 1 / |rows[r]|, at most 1 / kNormEpsilon.
void InverseNorms(const float* rows, int64_t num_rows, int64_t dim, float* scales);

}  // namespace tfxc::tiles

#endif  // TFXC_COMMON_FOLDS_H_
