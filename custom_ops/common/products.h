// The three matrix products of a pass over all classes, on tiles that stay in the cache.
//
// A block holds queries side by side, [D, width]: one number of a class multiplies a contiguous run of queries, and the
// sums stay in registers. A tile is a few dozen classes. Every logit is a sum over D in order, whatever the tile, so
// forward and backward have the same bits.
#pragma once

#include <cstdint>

namespace tfxc::tiles {

// logits[r * width + q] = Σ_d rows[r * stride + d] · block[d * width + q]; width is 16, 32 or 48.
void Logits(const float* rows, int64_t stride, int64_t num_rows, const float* block, int width, int64_t dim,
            float* logits);

// The same bits for the first `count` queries of a block of 16, up to kFew; those of the other queries are undefined.
constexpr int kFew = 4;
void LogitsOfFew(const float* rows, int64_t stride, int64_t num_rows, const float* block, int count, int64_t dim,
                 float* logits);

// The same for a block with scattered rows: row d is at tile + places[d] * tile_width. Then it adds shifts[r], unless
// null.
void ScatteredLogits(const float* rows, int64_t stride, int64_t num_rows, const float* tile, int64_t tile_width,
                     const int32_t* places, int width, int64_t dim, const float* shifts, float* logits);

// Sixteen rows side by side: packed[d * 16 + r] = rows[r * stride + d], 0 from row num_rows on.
void PackRows(const float* rows, int64_t stride, int64_t num_rows, int64_t dim, float* packed);

// The logits of packed rows, with the bits of ScatteredLogits, but a query's logits in a row: logits[q * logit_stride +
// r], for sixteen r and `width` queries, a multiple of 16. shifts is null or has sixteen numbers. Meanwhile it
// prefetches the rows `next` of the tile, unless null.
void PackedLogits(const float* packed, const float* tile, int64_t tile_width, const int32_t* places, int width,
                  int64_t dim, const float* shifts, const int32_t* next, float* logits, int64_t logit_stride);

// The gradients have rows of `dim` numbers, a multiple of 16.

// row_gradients[r] += Σ_q gradient[r * width + q] · queries[q]; num_rows is a multiple of 4.
void AddRowGradients(const float* gradient, int width, int64_t num_rows, const float* queries, int64_t dim,
                     float* row_gradients);

// query_gradients[q] += Σ_r gradient[r * width + q] · rows[r]; width is a multiple of 4, num_rows any number.
void AddQueryGradients(const float* gradient, int width, int64_t num_rows, const float* rows, int64_t dim,
                       float* query_gradients);

}  // namespace tfxc::tiles
