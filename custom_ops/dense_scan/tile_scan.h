// The forward pass through tiles of classes: it folds the logits of a tile into sums over the classes, and searches
// them for the best classes, a block of queries at a time.
#pragma once

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

// What a pass prepares for its queries before it starts.
struct ScanQueries {
  ScanQueries(const float* query, int64_t count, int64_t dim, bool looks_first);

  int64_t count;
  int width;  // of a block
  int64_t num_blocks;
  AlignedVector<float> blocks;
  bool looks_first;
  RoughQueries rough;
};

// The outputs of a shard of the classes.
struct ShardResults {
  double* sums;        // [blocks * width], initially 0; for the log-sum-exp relative to exp(maxima)
  float* maxima;       // [blocks * width], initially the lowest float
  Best* best;          // null where none are wanted; then there is no first look
  float* tile_maxima;  // [tiles, stride], of all classes, or null
  int64_t stride;
};

// Whether a first look can help: a sum over the classes needs all logits in float32.
bool CanLookFirst(Reduction reduction, int64_t num_queries, int64_t dim);

void ScanShard(const Classes& classes, Reduction reduction, const ScanQueries& queries, Range range,
               const ShardResults& results);

}  // namespace tfxc::dense_scan
