// The loops over classes of the uniformly sparse head whose classes read their inputs in groups.
//
// The classes of a group read the same few rows of a tile one after the other, while these are in the cache: a panel
// [K, columns], whose logits and gradients are small dense products. Logits read the panel in place, gradients read a
// copy. A tile may be wider than those of tiles.h: panels take up to 48 of its columns at a time, and the weights pass
// through the cache once for all of them. The functions are those of tiles.h, for a width that is a multiple of 16 up
// to kMaxTileWidth.
//
// Reference: HASTE, arXiv 2606.01117, 2026.
#pragma once

#include <cstdint>

#include "sparse_head/tiles.h"

namespace tfxc {

int64_t GroupLogits(const SparseRows& rows, const float* tile, int width, int64_t count, int64_t first, int64_t last,
                    float* logits, int64_t stride);

int64_t GroupReduce(const SparseRows& rows, Reduction reduction, const float* tile, int width, int64_t first,
                    int64_t last, double* sums, float* maxima);

int64_t GroupReduceGradient(const SparseRows& rows, Reduction reduction, const float* tile, int width,
                            const float* reduced, const float* upstream, const LabelGradient* labels,
                            const LabelGradient* labels_end, int64_t first, int64_t last, const TileGradients& out);

int64_t GroupLogitsGradient(const SparseRows& rows, const float* tile, int width, int64_t count, const float* gradient,
                            int64_t stride, int64_t first, int64_t last, const TileGradients& out);

}  // namespace tfxc
