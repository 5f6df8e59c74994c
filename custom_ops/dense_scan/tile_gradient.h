// The backward pass through a tile of classes: its logits are computed again, a block of queries at a time, and give
// their gradients to the tile's own rows and to the queries.
#ifndef TFXC_DENSE_SCAN_TILE_GRADIENT_H_
#define TFXC_DENSE_SCAN_TILE_GRADIENT_H_

#include <cstdint>
#include <vector>

#include "common/aligned_vector.h"
#include "common/reduction.h"
#include "common/simd.h"
#include "dense_scan/blocks.h"

namespace tfxc::dense_scan {

// D of rows that are padded with 0.
inline int64_t PaddedDim(int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

// Some queries, and what belongs to each; those that only fill the block have upstream 0.
struct QueryBlock {
  int width;                        // one of kBlockWidths
  const float* columns;             // [D, width]
  const float* rows;                // [width, padded D], the same numbers
  const float *reduced, *upstream;  // [width]
  float* gradients;                 // [width, padded D], on which the tile's share is added
};

class TileGradient {
 public:
  TileGradient(Reduction reduction, bool normalize, int64_t dim);

  // Goes to the next tile, of at most kTileClasses rows [num_rows, D]. bias may be null.
  void Start(const float* rows, const float* bias, int64_t num_rows);

  void Add(const QueryBlock& block);

  // Writes the gradients of the rows and, if there are any, of the biases, or adds them to what is there.
  void Finish(bool add, float* d_rows, float* d_bias);

 private:
  const Reduction reduction_;
  const bool normalize_;
  const int64_t dim_, padded_;
  const float *given_ = nullptr, *bias_ = nullptr;
  int64_t num_rows_ = 0;
  AlignedVector<float> rows_, own_;  // by their norm, and their gradients: [kTileClasses, padded D]
  float scales_[kTileClasses], row_sums_[kTileClasses];
};

}  // namespace tfxc::dense_scan

#endif  // TFXC_DENSE_SCAN_TILE_GRADIENT_H_
