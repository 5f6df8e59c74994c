// Folds of a tile of logits while it is in the cache: sums over its classes, and gradients.
#pragma once

#include <cstdint>

#include "common/reduction.h"

namespace tfxc::tiles {

// logits[r * width + q] = logits[r * width + q] · scales[r] + bias[r]; scales and bias may be null.
void ScaleAndShift(const float* scales, const float* bias, int64_t num_rows, int width, float* logits);

// Adds the classes of a tile to the sum of every query; sums of the log-sum-exp are relative to exp(maxima).
void Fold(Reduction reduction, const float* logits, int64_t num_rows, int width, double* sums, float* maxima);

// Turns logits into the gradient of the reduction by them, times `upstream` of their query. Only the log-sum-exp reads
// `reduced`. Adds the sum of each row to row_sums, unless that is null.
void ToGradient(Reduction reduction, const float* reduced, const float* upstream, int64_t num_rows, int width,
                float* logits, float* row_sums);

// largest[q] = max_r logits[r * width + q]. It may lose NaN, which the sum over the classes keeps.
void Largest(const float* logits, int64_t num_rows, int width, float* largest);

constexpr float kNormEpsilon = 1e-12f;  // tf.math.l2_normalize takes its square

// scales[r] = 1 / |rows[r]|, at most 1 / kNormEpsilon.
void InverseNorms(const float* rows, int64_t num_rows, int64_t dim, float* scales);

}  // namespace tfxc::tiles
