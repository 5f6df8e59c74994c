// The forward pass through tiles of classes: the logits of a tile are folded into sums over the classes, and looked
// through for the best, a block of queries at a time.
#ifndef TFXC_DENSE_SCAN_TILE_SCAN_H_
#define TFXC_DENSE_SCAN_TILE_SCAN_H_

#include <cstdint>

#include "common/aligned_vector.h"
#include "common/reduction.h"
#include "common/table.h"
#include "dense_scan/best.h"
#include "dense_scan/blocks.h"
#include "dense_scan/first_look.h"

namespace tfxc::dense_scan {

struct Classes {
  Table table;        // from the first class on
  const float* bias;  // may be null
  int64_t dim;
  bool normalize;
};

// What a pass makes of some queries before it starts.
struct ScanQueries {
  ScanQueries(const float* query, int64_t count, int64_t dim, bool looks_first);

  int64_t count;
  int width;  // of a block
  int64_t num_blocks;
  AlignedVector<float> blocks;
  bool looks_first;
  RoughQueries rough;
};

// Where a shard of the classes leaves what it finds.
struct ShardResults {
  double* sums;        // [blocks * width], from 0 on; for the log-sum-exp relative to exp(maxima)
  float* maxima;       // likewise, from the lowest float on
  Best* best;          // null where none are wanted, which leaves nothing to look for first
  float* tile_maxima;  // [tiles, stride], of all classes, or null
  int64_t stride;
};

// Whether a first look can be of use: a sum over the classes needs all logits as they are.
bool CanLookFirst(Reduction reduction, int64_t num_queries, int64_t dim);

void ScanShard(const Classes& classes, Reduction reduction, const ScanQueries& queries, Range range,
               const ShardResults& results);

}  // namespace tfxc::dense_scan

#endif  // TFXC_DENSE_SCAN_TILE_SCAN_H_
