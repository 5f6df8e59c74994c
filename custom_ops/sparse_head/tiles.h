// The loops over classes of the uniformly sparse head, on tiles of 16 or 32 queries.
//
// A tile holds its queries side by side, [E, width]: a weight multiplies one contiguous run of the tile, and the sums
// over the K inputs of a class stay in registers. Zeros fill up the last tile. Classes that share inputs in groups have
// loops of their own, in groups.h, and wider tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/reduction.h"

namespace tfxc {

constexpr int kTileWidths[] = {16, 32};  // where every class reads inputs of its own
constexpr int kMaxTileWidth = 192;       // of any head
constexpr int64_t kNoClass = INT64_MAX;

// All classes of a head; G consecutive classes share inputs: class l reads indices[l / G * fan_in ...], with the
// weights weights[l * fan_in ...]; bias may be null.
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

// Whether all inputs of the class are in range.
inline bool ReadsInRange(const SparseRows& rows, int64_t l) {
  const int32_t* inputs = InputsOf(rows, l);
  return std::all_of(inputs, inputs + rows.fan_in,
                     [&](int32_t input) { return static_cast<uint32_t>(input) < rows.num_inputs; });
}

// A gradient that reaches a label's logit in addition to that of the reduction.
struct LabelGradient {
  int64_t class_id;
  int lane;
  float value;
};

// The widest tile of a head, `widest` for groups, and the smallest tile for so many queries.
inline int WidestTile(const SparseRows& rows, int widest) { return rows.group_size == 1 ? kTileWidths[1] : widest; }
inline int TileWidth(const SparseRows& rows, int64_t num_queries, int widest) {
  const int needed = static_cast<int>(std::min<int64_t>((num_queries + 15) / 16 * 16, WidestTile(rows, widest)));
  return std::max(needed, kTileWidths[0]);
}

// Transposes query [count, E] into tile [E, width], for inputs first <= e < last.
void FillTile(const float* query, int64_t count, int64_t num_inputs, int width, int64_t first, int64_t last,
              float* tile);

// Sums the tiles [num_tiles, E, width], in their order, and writes the sums of inputs first <= e < last as query
// gradients [count, E].
void SumTiles(const float* tiles, int64_t num_tiles, int64_t num_inputs, int width, int64_t count, int64_t first,
              int64_t last, float* query_gradient);

// The functions below work on classes [first, last). They skip classes that read an input outside [0, E), and return
// the first of these, or kNoClass.

// logits[n * stride + l - first] for the `count` queries of the tile.
int64_t TileLogits(const SparseRows& rows, const float* tile, int width, int64_t count, int64_t first, int64_t last,
                   float* logits, int64_t stride);

// The reduction's sum of every lane; for the log-sum-exp also the maximum to which the sum is relative.
int64_t TileReduce(const SparseRows& rows, Reduction reduction, const float* tile, int width, int64_t first,
                   int64_t last, double* sums, float* maxima);

// The outputs of the backward pass of a tile. It writes the gradients of the classes' weights and biases to
// weight_gradient [last - first, K] and bias_gradient [last - first] (or null), or adds them if `accumulate`, and adds
// the gradients of the queries to tile_gradient [E, width].
struct TileGradients {
  float* weight_gradient;
  float* bias_gradient;
  float* tile_gradient;
  bool accumulate;
};

// The backward pass of TileReduce. The gradient of a lane's logits is that of the reduction times `upstream` of the
// lane, plus those of the labels, sorted by class. Only the log-sum-exp reads `reduced`. It skips a class whose
// gradient is 0 in all lanes.
int64_t TileReduceGradient(const SparseRows& rows, Reduction reduction, const float* tile, int width,
                           const float* reduced, const float* upstream, const LabelGradient* labels,
                           const LabelGradient* labels_end, int64_t first, int64_t last, const TileGradients& out);

// The backward pass of TileLogits, for gradient[n * stride + l - first].
int64_t TileLogitsGradient(const SparseRows& rows, const float* tile, int width, int64_t count, const float* gradient,
                           int64_t stride, int64_t first, int64_t last, const TileGradients& out);

}  // namespace tfxc
