// The loops over classes of the uniformly sparse head, on tiles of 16 or 32 queries.
//
// A tile holds its queries side by side, [E, width]: a weight multiplies one contiguous run of the tile, and its sums
// over the K inputs of a class stay in registers. Zero padding fills up the last tile.
#ifndef TFXC_SPARSE_HEAD_TILES_H_
#define TFXC_SPARSE_HEAD_TILES_H_

#include <cstdint>

namespace tfxc {

constexpr int kTileWidths[] = {16, 32};
constexpr int kMaxTileWidth = 32;
constexpr int64_t kNoClass = INT64_MAX;

// All classes of a head: class l reads inputs indices[l * fan_in ...] with as many weights; bias may be null.
struct SparseRows {
  const float* weights;
  const int32_t* indices;
  const float* bias;
  int64_t fan_in;
  uint32_t num_inputs;
};

// What is summed over the classes.
enum class Reduction { kSquaredHinge, kSoftplus, kLogSumExp };

// A gradient that reaches a logit beside that of the reduction.
struct LabelGradient {
  int64_t class_id;
  int lane;
  float value;
};

// The smallest tile that takes so many queries, of which it holds at most kMaxTileWidth.
inline int TileWidth(int64_t num_queries) { return num_queries <= kTileWidths[0] ? kTileWidths[0] : kMaxTileWidth; }

// query [count, E] to tile [E, width].
void FillTile(const float* query, int64_t count, int64_t num_inputs, int width, float* tile);

// Adds up the tiles [num_tiles, E, width], in their order, and lays the sum of inputs first <= e < last out as query
// gradients [count, E].
void SumTiles(const float* tiles, int64_t num_tiles, int64_t num_inputs, int width, int64_t count, int64_t first,
              int64_t last, float* query_gradient);

// The functions below work on classes [first, last). They return the first class that reads an input outside [0, E),
// which they skip, or kNoClass.

// logits[n * stride + l - first] for the `count` queries of the tile.
int64_t TileLogits(const SparseRows& rows, const float* tile, int width, int64_t count, int64_t first, int64_t last,
                   float* logits, int64_t stride);

// The reduction's sum of every lane; for the log-sum-exp also the maximum it is relative to.
int64_t TileReduce(const SparseRows& rows, Reduction reduction, const float* tile, int width, int64_t first,
                   int64_t last, double* sums, float* maxima);

// What the backward pass of a tile reads and writes. The gradients of weights and biases of the classes go to
// weight_gradient [last - first, K] and bias_gradient [last - first] (or null), added if `accumulate`; those of the
// queries are added to tile_gradient [E, width].
struct TileGradients {
  float* weight_gradient;
  float* bias_gradient;
  float* tile_gradient;
  bool accumulate;
};

// Backward of TileReduce. The gradient of a lane's logits is the reduction's times `upstream` of that lane, plus that
// of the labels, sorted by class. `reduced` is read by the log-sum-exp only. Where the gradient is 0 in all lanes the
// class is skipped.
int64_t TileReduceGradient(const SparseRows& rows, Reduction reduction, const float* tile, int width,
                           const float* reduced, const float* upstream, const LabelGradient* labels,
                           const LabelGradient* labels_end, int64_t first, int64_t last, const TileGradients& out);

// Backward of TileLogits, for gradient[n * stride + l - first].
int64_t TileLogitsGradient(const SparseRows& rows, const float* tile, int width, int64_t count, const float* gradient,
                           int64_t stride, int64_t first, int64_t last, const TileGradients& out);

}  // namespace tfxc

#endif  // TFXC_SPARSE_HEAD_TILES_H_
