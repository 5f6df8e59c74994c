// The three matrix products of a pass over all classes, on tiles that stay in the cache.
//
// A block holds queries side by side, [D, width]: one number of a class meets a contiguous run of queries, and the sums
// stay in registers. A tile is a few dozen classes. Every logit is summed over D in order, whatever the tile, so
// forward and backward see the same bits.
#ifndef TFXC_COMMON_PRODUCTS_H_
#define TFXC_COMMON_PRODUCTS_H_

#include <cstdint>

namespace tfxc::tiles {

// logits[r * width + q] = Σ_d rows[r * stride + d] · block[d * width + q]; width is 16, 32 or 48.
void Logits(const float* rows, int64_t stride, int64_t num_rows, const float* block, int width, int64_t dim,
            float* logits);

// The same of a block whose rows lie apart: row d at tile + places[d] * tile_width. Then shifts[r], unless null, is
// added.
void ScatteredLogits(const float* rows, int64_t stride, int64_t num_rows, const float* tile, int64_t tile_width,
                     const int32_t* places, int width, int64_t dim, const float* shifts, float* logits);

// The gradients have rows of `dim` numbers, a multiple of 16.

// row_gradients[r] += Σ_q gradient[r * width + q] · queries[q]; num_rows is a multiple of 4.
void AddRowGradients(const float* gradient, int width, int64_t num_rows, const float* queries, int64_t dim,
                     float* row_gradients);

// query_gradients[q] += Σ_r gradient[r * width + q] · rows[r]; width is a multiple of 4, num_rows any number.
void AddQueryGradients(const float* gradient, int width, int64_t num_rows, const float* rows, int64_t dim,
                       float* query_gradients);

}  // namespace tfxc::tiles

#endif  // TFXC_COMMON_PRODUCTS_H_
