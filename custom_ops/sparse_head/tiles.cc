#include "sparse_head/tiles.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/aligned_vector.h"
#include "common/lanes.h"
#include "common/terms.h"
#include "common/vectorize.h"
#include "sparse_head/logit_run.h"

namespace tfxc {
namespace {

constexpr int kChunk = 16;  // classes between two additions to the double sums
static_assert(kChunk <= kMostTerms);

// The loops here are for classes that do not share inputs.
TFXC_INLINE const int32_t* Inputs(const SparseRows& rows, int64_t l) { return rows.indices + l * rows.fan_in; }

TFXC_INLINE bool InRange(const SparseRows& rows, int64_t l) {
  const int32_t* inputs = Inputs(rows, l);
  uint32_t largest = 0;
  for (int64_t k = 0; k < rows.fan_in; ++k) largest = std::max(largest, static_cast<uint32_t>(inputs[k]));
  return largest < rows.num_inputs || rows.fan_in == 0;
}

template <typename Lanes>
TFXC_INLINE const Lanes* At(const float* tile, int64_t input, int num_vectors) {
  return reinterpret_cast<const Lanes*>(tile) + input * num_vectors;
}

// Logits of one class in all lanes. Each has two sums, as a single one would wait for its last addition.
template <typename Lanes, int V>
TFXC_INLINE void ClassLogits(const SparseRows& rows, const float* tile, int64_t l, Lanes* logits) {
  const int32_t* inputs = Inputs(rows, l);
  const float* weights = rows.weights + l * rows.fan_in;
  Lanes even[V] = {}, odd[V] = {};
  int64_t k = 0;
  for (; k + 1 < rows.fan_in; k += 2) {
    const Lanes *x = At<Lanes>(tile, inputs[k], V), *y = At<Lanes>(tile, inputs[k + 1], V);
    for (int v = 0; v < V; ++v) even[v] += weights[k] * x[v];
    for (int v = 0; v < V; ++v) odd[v] += weights[k + 1] * y[v];
  }
  if (k < rows.fan_in) {
    const Lanes* x = At<Lanes>(tile, inputs[k], V);
    for (int v = 0; v < V; ++v) even[v] += weights[k] * x[v];
  }
  const float bias = rows.bias == nullptr ? 0.0f : rows.bias[l];
  for (int v = 0; v < V; ++v) logits[v] = even[v] + odd[v] + bias;
}

// turned[n * kTurnedStride + l - first] for all lanes n and the classes of a run.
template <typename Lanes, int V>
TFXC_INLINE int64_t RunLogits(const SparseRows& rows, const float* tile, int64_t first, int64_t last, float* turned) {
  constexpr int kSize = kSizeOf<Lanes>;
  int64_t bad = kNoClass;
  for (int64_t start = first; start < last; start += kSize) {
    Lanes squares[V][kSize] = {}, logits[V];
    for (int64_t c = 0; c < std::min<int64_t>(kSize, last - start); ++c) {
      if (!InRange(rows, start + c)) {
        bad = std::min(bad, start + c);
        continue;
      }
      ClassLogits<Lanes, V>(rows, tile, start + c, logits);
      for (int v = 0; v < V; ++v) squares[v][c] = logits[v];
    }
    for (int v = 0; v < V; ++v) {
      Transpose(squares[v]);
      float* to = turned + v * kSize * kTurnedStride + start - first;
      for (int n = 0; n < kSize; ++n) Store(squares[v][n], to + n * kTurnedStride);
    }
  }
  return bad;
}

template <typename Lanes, int V, Reduction reduction>
TFXC_INLINE int64_t Reduce(const SparseRows& rows, const float* tile, int64_t first, int64_t last, double* sums,
                             float* maxima) {
  int64_t bad = kNoClass;
  Lanes largest[V];
  // Not -inf: a logit of -inf minus it would be NaN, and so would the sum.
  for (int v = 0; v < V; ++v) largest[v] = Fill<Lanes>(std::numeric_limits<float>::lowest());
  for (int64_t start = first; start < last; start += kChunk) {
    const int64_t end = std::min(start + kChunk, last);
    Lanes logits[kChunk][V], before[V], sum[V];
    Terms<reduction, Lanes> total[V];
    int num_logits = 0;
    for (int64_t l = start; l < end; ++l) {
      if (!InRange(rows, l)) {
        bad = std::min(bad, l);
        continue;
      }
      ClassLogits<Lanes, V>(rows, tile, l, logits[num_logits++]);
    }
    for (int v = 0; v < V; ++v) before[v] = largest[v];
    if (reduction == Reduction::kLogSumExp) {
      for (int c = 0; c < num_logits; ++c) {
        for (int v = 0; v < V; ++v) largest[v] = Max(logits[c][v], largest[v]);
      }
    }
    for (int c = 0; c < num_logits; ++c) {
      for (int v = 0; v < V; ++v) total[v].Add(logits[c][v], largest[v]);
    }
    for (int v = 0; v < V; ++v) sum[v] = total[v].Total();
    for (int n = 0; n < V * kSizeOf<Lanes>; ++n) {
      const float now = largest[n / kSizeOf<Lanes>][n % kSizeOf<Lanes>];
      if (reduction == Reduction::kLogSumExp && now != before[n / kSizeOf<Lanes>][n % kSizeOf<Lanes>]) {
        sums[n] *= std::exp(before[n / kSizeOf<Lanes>][n % kSizeOf<Lanes>] - now);
      }
      sums[n] += sum[n / kSizeOf<Lanes>][n % kSizeOf<Lanes>];
    }
  }
  for (int n = 0; n < V * kSizeOf<Lanes>; ++n) maxima[n] = largest[n / kSizeOf<Lanes>][n % kSizeOf<Lanes>];
  return bad;
}

// Weight, bias and query gradients of one class from the gradients of its logits.
template <typename Lanes, int V>
TFXC_INLINE void ClassGradient(const SparseRows& rows, const float* tile, int64_t l, const Lanes* gradient,
                               int64_t slot, const TileGradients& out) {
  const int64_t fan_in = rows.fan_in;
  float* weight_gradient = out.weight_gradient + slot * fan_in;
  if (!AnyNonZero(gradient, V)) {
    if (!out.accumulate) {
      std::fill(weight_gradient, weight_gradient + fan_in, 0.0f);
      if (out.bias_gradient != nullptr) out.bias_gradient[slot] = 0.0f;
    }
    return;
  }
  const int32_t* inputs = Inputs(rows, l);
  const float* weights = rows.weights + l * fan_in;
  for (int64_t k = 0; k < fan_in; ++k) {
    const Lanes* x = At<Lanes>(tile, inputs[k], V);
    Lanes* dx = reinterpret_cast<Lanes*>(out.tile_gradient) + static_cast<int64_t>(inputs[k]) * V;
    Lanes product[kParts<Lanes>];
    for (int v = 0; v < kParts<Lanes>; ++v) product[v] = gradient[v] * x[v];
    for (int v = kParts<Lanes>; v < V; ++v) product[v % kParts<Lanes>] += gradient[v] * x[v];
    for (int v = 0; v < V; ++v) dx[v] += weights[k] * gradient[v];
    weight_gradient[k] = (out.accumulate ? weight_gradient[k] : 0.0f) + Sum(product);
  }
  if (out.bias_gradient != nullptr) {
    Lanes total[kParts<Lanes>];
    for (int v = 0; v < kParts<Lanes>; ++v) total[v] = gradient[v];
    for (int v = kParts<Lanes>; v < V; ++v) total[v % kParts<Lanes>] += gradient[v];
    out.bias_gradient[slot] = (out.accumulate ? out.bias_gradient[slot] : 0.0f) + Sum(total);
  }
}

template <typename Lanes, int V, Reduction reduction>
TFXC_INLINE int64_t ReduceGradient(const SparseRows& rows, const float* tile, const float* reduced,
                                     const float* upstream, const LabelGradient* label,
                                     const LabelGradient* labels_end, int64_t first, int64_t last,
                                     const TileGradients& out) {
  int64_t bad = kNoClass;
  Lanes scale[V], log_sum[V];
  for (int n = 0; n < V * kSizeOf<Lanes>; ++n) {
    scale[n / kSizeOf<Lanes>][n % kSizeOf<Lanes>] = upstream[n];
    log_sum[n / kSizeOf<Lanes>][n % kSizeOf<Lanes>] = reduced[n];
  }
  for (int64_t l = first; l < last; ++l) {
    if (!InRange(rows, l)) {
      bad = std::min(bad, l);
      continue;
    }
    Lanes gradient[V];
    ClassLogits<Lanes, V>(rows, tile, l, gradient);
    for (int v = 0; v < V; ++v) gradient[v] = scale[v] * Slope<reduction>(gradient[v], log_sum[v]);
    for (; label != labels_end && label->class_id == l; ++label) {
      gradient[label->lane / kSizeOf<Lanes>][label->lane % kSizeOf<Lanes>] += label->value;
    }
    ClassGradient<Lanes, V>(rows, tile, l, gradient, l - first, out);
  }
  return bad;
}

template <typename Lanes, int V>
TFXC_INLINE int64_t LogitsGradient(const SparseRows& rows, const float* tile, int64_t count, const float* gradient,
                                     int64_t stride, int64_t first, int64_t last, const TileGradients& out) {
  int64_t bad = kNoClass;
  for (int64_t l = first; l < last; ++l) {
    if (!InRange(rows, l)) {
      bad = std::min(bad, l);
      continue;
    }
    Lanes own[V] = {};
    for (int64_t n = 0; n < count; ++n) own[n / kSizeOf<Lanes>][n % kSizeOf<Lanes>] = gradient[n * stride + l - first];
    ClassGradient<Lanes, V>(rows, tile, l, own, l - first, out);
  }
  return bad;
}

template <typename Lanes>
TFXC_INLINE void FillTileOf(const float* query, int64_t count, int64_t num_inputs, int width, int64_t first,
                            int64_t last, float* tile) {
  constexpr int kSize = kSizeOf<Lanes>;
  // By squares: queries are a row apart, and a line of the cache would be evicted before its next number is read.
  for (int64_t e = first; e < last; e += kSize) {
    const int64_t height = std::min<int64_t>(kSize, last - e);
    for (int64_t n = 0; n < width; n += kSize) {
      Lanes square[kSize] = {};
      for (int64_t i = 0; i < std::min<int64_t>(kSize, count - n); ++i) {
        std::memcpy(&square[i], query + (n + i) * num_inputs + e, height * sizeof(float));
      }
      Transpose(square);
      for (int64_t j = 0; j < height; ++j) Store(square[j], tile + (e + j) * width + n);
    }
  }
}

template <typename Lanes>
TFXC_INLINE void SumTilesOf(const float* tiles, int64_t num_tiles, int64_t num_inputs, int width, int64_t count,
                            int64_t first, int64_t last, float* query_gradient) {
  constexpr int kSize = kSizeOf<Lanes>;
  for (int64_t e = first; e < last; e += kSize) {
    const int64_t height = std::min<int64_t>(kSize, last - e);
    for (int64_t n = 0; n < count; n += kSize) {
      Lanes square[kSize] = {};
      for (int64_t t = 0; t < num_tiles; ++t) {
        const float* part = tiles + (t * num_inputs + e) * width + n;
        for (int64_t j = 0; j < height; ++j) square[j] += Load<Lanes>(part + j * width);
      }
      Transpose(square);
      for (int64_t i = 0; i < std::min<int64_t>(kSize, count - n); ++i) {
        std::memcpy(query_gradient + (n + i) * num_inputs + e, &square[i], height * sizeof(float));
      }
    }
  }
}

// Calls FUNCTION<Lanes, vectors in a row of the tile, ...>.
#define TFXC_FOR_TILE(FUNCTION, ...)                                         \
  (width == kLanes ? FUNCTION<Lanes, kParts<Lanes>>(__VA_ARGS__)             \
                   : FUNCTION<Lanes, 2 * kParts<Lanes>>(__VA_ARGS__))
#define TFXC_FOR_TILE_AND(REDUCTION, FUNCTION, ...)                          \
  (width == kLanes ? FUNCTION<Lanes, kParts<Lanes>, REDUCTION>(__VA_ARGS__)  \
                   : FUNCTION<Lanes, 2 * kParts<Lanes>, REDUCTION>(__VA_ARGS__))
#define TFXC_FOR_EACH_CASE(FUNCTION, ...)                                                                             \
  switch (reduction) {                                                                                                \
    case Reduction::kSquaredHinge: return TFXC_FOR_TILE_AND(Reduction::kSquaredHinge, FUNCTION, __VA_ARGS__);         \
    case Reduction::kSoftplus: return TFXC_FOR_TILE_AND(Reduction::kSoftplus, FUNCTION, __VA_ARGS__);                 \
    default: return TFXC_FOR_TILE_AND(Reduction::kLogSumExp, FUNCTION, __VA_ARGS__);                                  \
  }

template <typename Lanes>
TFXC_INLINE int64_t TurnedLogitsOf(const SparseRows& rows, const float* tile, int width, int64_t first, int64_t last,
                                   float* turned) {
  return TFXC_FOR_TILE(RunLogits, rows, tile, first, last, turned);
}

template <typename Lanes>
TFXC_INLINE int64_t TileReduceOf(const SparseRows& rows, Reduction reduction, const float* tile, int width,
                                 int64_t first, int64_t last, double* sums, float* maxima) {
  TFXC_FOR_EACH_CASE(Reduce, rows, tile, first, last, sums, maxima)
}

template <typename Lanes>
TFXC_INLINE int64_t TileReduceGradientOf(const SparseRows& rows, Reduction reduction, const float* tile, int width,
                                         const float* reduced, const float* upstream, const LabelGradient* labels,
                                         const LabelGradient* labels_end, int64_t first, int64_t last,
                                         const TileGradients& out) {
  TFXC_FOR_EACH_CASE(ReduceGradient, rows, tile, reduced, upstream, labels, labels_end, first, last, out)
}

template <typename Lanes>
TFXC_INLINE int64_t TileLogitsGradientOf(const SparseRows& rows, const float* tile, int width, int64_t count,
                                         const float* gradient, int64_t stride, int64_t first, int64_t last,
                                         const TileGradients& out) {
  return TFXC_FOR_TILE(LogitsGradient, rows, tile, count, gradient, stride, first, last, out);
}

TFXC_BY_WIDTH(int64_t, TurnedLogits,
              (const SparseRows& rows, const float* tile, int width, int64_t first, int64_t last, float* turned),
              (rows, tile, width, first, last, turned))

}  // namespace

int64_t TileLogits(const SparseRows& rows, const float* tile, int width, int64_t count, int64_t first, int64_t last,
                   float* logits, int64_t stride) {
  AlignedVector<float> turned(width * kTurnedStride);
  const bool is_large = IsLarge(count, stride);
  int64_t bad = kNoClass;
  for (int64_t start = first; start < last; start += kRun) {
    const int64_t end = std::min(start + kRun, last);
    bad = std::min(bad, TurnedLogits(rows, tile, width, start, end, turned.data()));
    WriteRun(turned.data(), count, end - start, is_large, logits + start - first, stride);
  }
  if (is_large) EndStreams();
  return bad;
}

TFXC_BY_WIDTH(void, FillTile,
              (const float* query, int64_t count, int64_t num_inputs, int width, int64_t first, int64_t last,
               float* tile),
              (query, count, num_inputs, width, first, last, tile))
TFXC_BY_WIDTH(void, SumTiles,
              (const float* tiles, int64_t num_tiles, int64_t num_inputs, int width, int64_t count, int64_t first,
               int64_t last, float* query_gradient),
              (tiles, num_tiles, num_inputs, width, count, first, last, query_gradient))
TFXC_BY_WIDTH(int64_t, TileReduce,
              (const SparseRows& rows, Reduction reduction, const float* tile, int width, int64_t first, int64_t last,
               double* sums, float* maxima),
              (rows, reduction, tile, width, first, last, sums, maxima))
TFXC_BY_WIDTH(int64_t, TileReduceGradient,
              (const SparseRows& rows, Reduction reduction, const float* tile, int width, const float* reduced,
               const float* upstream, const LabelGradient* labels, const LabelGradient* labels_end, int64_t first,
               int64_t last, const TileGradients& out),
              (rows, reduction, tile, width, reduced, upstream, labels, labels_end, first, last, out))
TFXC_BY_WIDTH(int64_t, TileLogitsGradient,
              (const SparseRows& rows, const float* tile, int width, int64_t count, const float* gradient,
               int64_t stride, int64_t first, int64_t last, const TileGradients& out),
              (rows, tile, width, count, gradient, stride, first, last, out))

}  // namespace tfxc
