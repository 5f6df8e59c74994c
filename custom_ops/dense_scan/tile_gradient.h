// The backward pass through a tile of classes: it computes the logits again, a block of queries at a time, and from
// them the gradients of the tile's rows and of the queries.
#pragma once

#include <cstdint>
#include <vector>

#include "common/aligned_vector.h"
#include "common/reduction.h"
#include "common/simd.h"
#include "dense_scan/blocks.h"

namespace tfxc::dense_scan {

// D rounded up, for rows that are padded with 0.
inline int64_t PaddedDim(int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

// A block of queries and their data; padding queries have upstream 0.
struct QueryBlock {
  int width;                        // one of kBlockWidths
  const float* columns;             // [D, width]
  const float* rows;                // [width, padded D], the same numbers
  const float *reduced, *upstream;  // [width]
  float* gradients;                 // [width, padded D], to which the tile adds its share
};

class TileGradient {
 public:
  TileGradient(Reduction reduction, bool normalize, int64_t dim);

  // Goes to the next tile, of at most kTileClasses rows [num_rows, D]. bias may be null.
  void Start(const float* rows, const float* bias, int64_t num_rows);

  void Add(const QueryBlock& block);

  // Writes the gradients of the rows and of the biases, if any, or adds them to the output.
  void Finish(bool add, float* d_rows, float* d_bias);

 private:
  const Reduction reduction_;
  const bool normalize_;
  const int64_t dim_, padded_;
  const float *given_ = nullptr, *bias_ = nullptr;
  int64_t num_rows_ = 0;
  AlignedVector<float> rows_, own_;  // normalised rows, and their gradients: [kTileClasses, padded D]
  float scales_[kTileClasses], row_sums_[kTileClasses];
};

}  // namespace tfxc::dense_scan
