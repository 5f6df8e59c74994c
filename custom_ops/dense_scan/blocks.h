// The division of classes and queries: a tile of classes, with its logits for one block of queries, stays in the cache;
// one thread takes a shard of tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/aligned_vector.h"

namespace tfxc::dense_scan {

constexpr int kBlockWidths[] = {16, 48};
constexpr int kTileClasses = 96;
// Shards of classes are the same for any number of threads, so that sums over classes have the same bits.
constexpr int64_t kMaxShards = 32;
// The private memory of all shards together: gradients of the queries, or candidates for the best.
constexpr int64_t kPrivateBytes = 32 << 20;
constexpr int64_t kMaxQueries = 4080;  // queries of one pass: a whole number of blocks

inline int BlockWidth(int64_t num_queries) {
  return num_queries <= kBlockWidths[0] ? kBlockWidths[0] : kBlockWidths[1];
}

struct Range {
  int64_t first, last;
};

inline int64_t NumTiles(int64_t num_classes) { return (num_classes + kTileClasses - 1) / kTileClasses; }

// Whole tiles, but for the last one.
inline Range Shard(int64_t num_classes, int64_t num_shards, int64_t shard) {
  const auto end = [&](int64_t shards) {
    return std::min(NumTiles(num_classes) * shards / num_shards * kTileClasses, num_classes);
  };
  return {end(shard), end(shard + 1)};
}

// Some queries as blocks [D, width], padded with 0.
inline AlignedVector<float> Blocks(const float* query, int64_t count, int64_t dim, int width) {
  const int64_t padded = (count + width - 1) / width * width;
  AlignedVector<float> blocks(padded * dim, 0.0f);
  for (int64_t q = 0; q < count; ++q) {
    float* block = blocks.data() + q / width * width * dim + q % width;
    for (int64_t d = 0; d < dim; ++d) block[d * width] = query[q * dim + d];
  }
  return blocks;
}

}  // namespace tfxc::dense_scan
