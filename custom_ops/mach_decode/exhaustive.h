// Scores of all classes, block by block; each block is ranked and dropped.
#pragma once

#include <vector>

#include "mach_decode/best.h"
#include "mach_decode/tables.h"

namespace tfxc {

// Sixteen queries side by side: every bucket is one line of the cache.
constexpr int kTileWidth = kLanes;
struct alignas(64) TileRow {
  float lane[kTileWidth] = {};
};
// From so many queries on, a tile is faster than one query after the other.
constexpr int kMinTile = 4;

// Ranks classes first to last for one query.
void RankClasses(const Hashes& hashes, const Queries& queries, int64_t query, int64_t first, int64_t last,
                 Best* best);

// The tables of up to 16 queries laid out [R, M, 16].
void LayOutTile(const Hashes& hashes, const Queries& queries, const std::vector<int64_t>& tile, int64_t r,
                TileRow* laid_out);

// Ranks classes first to last for the queries of a tile, best[i] for tile[i].
void RankClassesOfTile(const Hashes& hashes, const Queries& queries, const std::vector<int64_t>& tile,
                       const TileRow* laid_out, int64_t first, int64_t last, Best* best);

}  // namespace tfxc
