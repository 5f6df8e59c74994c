// The loops over classes of the uniformly sparse head, on tiles of 16 or 32 queries.
//
// A tile holds its queries side by side, [E, width]: a weight multiplies one contiguous run of the tile, and its sums
// over the K inputs of a class stay in registers. Zero padding fills up the last tile. Classes that read their inputs
// in groups have loops of their own, groups.h, and wider tiles.
#ifndef TFXC_SPARSE_HEAD_TILES_H_
#define TFXC_SPARSE_HEAD_TILES_H_

#include <algorithm>
#include <cstdint>

#include "common/reduction.h"

namespace tfxc {

constexpr int kTileWidths[] = {16, 32};  // where every class reads inputs of its own
constexpr int kMaxTileWidth = 192;       // of any head
constexpr int64_t kNoClass = INT64_MAX;

// All classes of a head, G at a time with the same inputs: class l reads indices[l / G * fan_in ...], with the weights
// weights[l * fan_in ...]; bias may be null.
struct SparseRows {
  const float* weights;
  const int32_t* indices;
  const float* bias;
  int64_t fan_in;
  uint32_t num_inputs;
  int64_t group_size;  // G
};

inline const int32_t* InputsOf(const SparseRows& rows, int64_t l) {
  return rows.indices + l / rows.group_size * rows.fan_in;
}

// Whether all that the class reads is there.
inline bool ReadsInRange(const SparseRows& rows, int64_t l) {
  const int32_t* inputs = InputsOf(rows, l);
  return std::all_of(inputs, inputs + rows.fan_in,
                     [&](int32_t input) { return static_cast<uint32_t>(input) < rows.num_inputs; });
}

// A gradient that reaches a logit beside that of the reduction.
struct LabelGradient {
  int64_t class_id;
  int lane;
  float value;
};

// The widest tile that a head is given, in groups `widest`, and the smallest that takes so many queries.
inline int WidestTile(const SparseRows& rows, int widest) { return rows.group_size == 1 ? kTileWidths[1] : widest; }
inline int TileWidth(const SparseRows& rows, int64_t num_queries, int widest) {
  const int needed = static_cast<int>(std::min<int64_t>((num_queries + 15) / 16 * 16, WidestTile(rows, widest)));
  return std::max(needed, kTileWidths[0]);
}

// query [count, E] to tile [E, width], for inputs first <= e < last.
void FillTile(const float* query, int64_t count, int64_t num_inputs, int width, int64_t first, int64_t last,
              float* tile);

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
