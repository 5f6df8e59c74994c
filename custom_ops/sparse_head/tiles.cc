#include "sparse_head/tiles.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/lanes.h"
#include "common/vectorize.h"

namespace tfxc {
namespace {

constexpr int kChunk = 16;  // classes between two additions to the double sums, and per line of logits written

// Here every class has inputs of its own.
TFXC_INLINE const int32_t* Inputs(const SparseRows& rows, int64_t l) { return rows.indices + l * rows.fan_in; }

TFXC_INLINE bool InRange(const SparseRows& rows, int64_t l) {
  const int32_t* inputs = Inputs(rows, l);
  uint32_t largest = 0;
  for (int64_t k = 0; k < rows.fan_in; ++k) largest = std::max(largest, static_cast<uint32_t>(inputs[k]));
  return largest < rows.num_inputs || rows.fan_in == 0;
}

TFXC_INLINE const Lanes* At(const float* tile, int64_t input, int num_vectors) {
  return reinterpret_cast<const Lanes*>(tile) + input * num_vectors;
}

// Logits of one class in all lanes. Two sums each: one would wait for its own last addition.
template <int V>
TFXC_INLINE void ClassLogits(const SparseRows& rows, const float* tile, int64_t l, Lanes* logits) {
  const int32_t* inputs = Inputs(rows, l);
  const float* weights = rows.weights + l * rows.fan_in;
  Lanes even[V] = {}, odd[V] = {};
  int64_t k = 0;
  for (; k + 1 < rows.fan_in; k += 2) {
    const Lanes *x = At(tile, inputs[k], V), *y = At(tile, inputs[k + 1], V);
    for (int v = 0; v < V; ++v) even[v] += weights[k] * x[v];
    for (int v = 0; v < V; ++v) odd[v] += weights[k + 1] * y[v];
  }
  if (k < rows.fan_in) {
    const Lanes* x = At(tile, inputs[k], V);
    for (int v = 0; v < V; ++v) even[v] += weights[k] * x[v];
  }
  const float bias = rows.bias == nullptr ? 0.0f : rows.bias[l];
  for (int v = 0; v < V; ++v) logits[v] = even[v] + odd[v] + bias;
}

template <int V>
TFXC_INLINE int64_t LogitsOf(const SparseRows& rows, const float* tile, int64_t count, int64_t first, int64_t last,
                             float* out, int64_t stride) {
  int64_t bad = kNoClass;
  for (int64_t start = first; start < last; start += kChunk) {
    const int64_t size = std::min<int64_t>(kChunk, last - start);
    alignas(64) float logits[kChunk][V * kLanes] = {};
    for (int64_t c = 0; c < size; ++c) {
      if (InRange(rows, start + c)) {
        ClassLogits<V>(rows, tile, start + c, reinterpret_cast<Lanes*>(logits[c]));
      } else {
        bad = std::min(bad, start + c);
      }
    }
    for (int64_t n = 0; n < count; ++n) {
      float* row = out + n * stride + (start - first);
      for (int64_t c = 0; c < size; ++c) row[c] = logits[c][n];
    }
  }
  return bad;
}

template <int V, Reduction reduction>
TFXC_INLINE int64_t ReduceOf(const SparseRows& rows, const float* tile, int64_t first, int64_t last, double* sums,
                             float* maxima) {
  int64_t bad = kNoClass;
  Lanes largest[V];
  // Not -inf: a logit of -inf less that would be NaN, and so would be the sum.
  for (int v = 0; v < V; ++v) largest[v] = Fill(std::numeric_limits<float>::lowest());
  for (int64_t start = first; start < last; start += kChunk) {
    const int64_t end = std::min(start + kChunk, last);
    Lanes logits[kChunk][V], total[V] = {}, before[V];
    int num_logits = 0;
    for (int64_t l = start; l < end; ++l) {
      if (!InRange(rows, l)) {
        bad = std::min(bad, l);
        continue;
      }
      ClassLogits<V>(rows, tile, l, logits[num_logits++]);
    }
    for (int v = 0; v < V; ++v) before[v] = largest[v];
    if (reduction == Reduction::kLogSumExp) {
      for (int c = 0; c < num_logits; ++c) {
        for (int v = 0; v < V; ++v) largest[v] = Max(logits[c][v], largest[v]);
      }
    }
    for (int c = 0; c < num_logits; ++c) {
      for (int v = 0; v < V; ++v) {
        const Lanes o = logits[c][v], beyond = Max(o + 1.0f, Lanes{});
        total[v] += reduction == Reduction::kSquaredHinge ? beyond * beyond
                    : reduction == Reduction::kSoftplus   ? Softplus(o)
                                                          : Exp(o - largest[v]);
      }
    }
    for (int n = 0; n < V * kLanes; ++n) {
      const float now = largest[n / kLanes][n % kLanes];
      if (reduction == Reduction::kLogSumExp && now != before[n / kLanes][n % kLanes]) {
        sums[n] *= std::exp(before[n / kLanes][n % kLanes] - now);
      }
      sums[n] += total[n / kLanes][n % kLanes];
    }
  }
  for (int n = 0; n < V * kLanes; ++n) maxima[n] = largest[n / kLanes][n % kLanes];
  return bad;
}

// Weight, bias and query gradients of one class from those of its logits.
template <int V>
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
    const Lanes* x = At(tile, inputs[k], V);
    Lanes* dx = reinterpret_cast<Lanes*>(out.tile_gradient) + static_cast<int64_t>(inputs[k]) * V;
    Lanes product = gradient[0] * x[0];
    for (int v = 1; v < V; ++v) product += gradient[v] * x[v];
    for (int v = 0; v < V; ++v) dx[v] += weights[k] * gradient[v];
    weight_gradient[k] = (out.accumulate ? weight_gradient[k] : 0.0f) + Sum(product);
  }
  if (out.bias_gradient != nullptr) {
    Lanes total = gradient[0];
    for (int v = 1; v < V; ++v) total += gradient[v];
    out.bias_gradient[slot] = (out.accumulate ? out.bias_gradient[slot] : 0.0f) + Sum(total);
  }
}

template <int V, Reduction reduction>
TFXC_INLINE int64_t ReduceGradientOf(const SparseRows& rows, const float* tile, const float* reduced,
                                     const float* upstream, const LabelGradient* label,
                                     const LabelGradient* labels_end, int64_t first, int64_t last,
                                     const TileGradients& out) {
  int64_t bad = kNoClass;
  Lanes scale[V], log_sum[V];
  for (int n = 0; n < V * kLanes; ++n) {
    scale[n / kLanes][n % kLanes] = upstream[n];
    log_sum[n / kLanes][n % kLanes] = reduced[n];
  }
  for (int64_t l = first; l < last; ++l) {
    if (!InRange(rows, l)) {
      bad = std::min(bad, l);
      continue;
    }
    Lanes gradient[V];
    ClassLogits<V>(rows, tile, l, gradient);
    for (int v = 0; v < V; ++v) {
      const Lanes o = gradient[v];
      gradient[v] = scale[v] * (reduction == Reduction::kSquaredHinge ? 2.0f * Max(o + 1.0f, Lanes{})
                                : reduction == Reduction::kSoftplus   ? Sigmoid(o)
                                                                      : Exp(o - log_sum[v]));
    }
    for (; label != labels_end && label->class_id == l; ++label) {
      gradient[label->lane / kLanes][label->lane % kLanes] += label->value;
    }
    ClassGradient<V>(rows, tile, l, gradient, l - first, out);
  }
  return bad;
}

template <int V>
TFXC_INLINE int64_t LogitsGradientOf(const SparseRows& rows, const float* tile, int64_t count, const float* gradient,
                                     int64_t stride, int64_t first, int64_t last, const TileGradients& out) {
  int64_t bad = kNoClass;
  for (int64_t l = first; l < last; ++l) {
    if (!InRange(rows, l)) {
      bad = std::min(bad, l);
      continue;
    }
    Lanes own[V] = {};
    for (int64_t n = 0; n < count; ++n) own[n / kLanes][n % kLanes] = gradient[n * stride + l - first];
    ClassGradient<V>(rows, tile, l, own, l - first, out);
  }
  return bad;
}

}  // namespace

TFXC_VECTORIZE void FillTile(const float* query, int64_t count, int64_t num_inputs, int width, int64_t first,
                             int64_t last, float* tile) {
  // By squares: queries are a row apart, and a line of the cache that gave one number would be gone before the next.
  for (int64_t e = first; e < last; e += kLanes) {
    const int64_t height = std::min<int64_t>(kLanes, last - e);
    for (int64_t n = 0; n < width; n += kLanes) {
      Lanes square[kLanes] = {};
      for (int64_t i = 0; i < std::min<int64_t>(kLanes, count - n); ++i) {
        std::memcpy(&square[i], query + (n + i) * num_inputs + e, height * sizeof(float));
      }
      Transpose(square);
      for (int64_t j = 0; j < height; ++j) std::memcpy(tile + (e + j) * width + n, &square[j], sizeof(Lanes));
    }
  }
}

TFXC_VECTORIZE void SumTiles(const float* tiles, int64_t num_tiles, int64_t num_inputs, int width, int64_t count,
                             int64_t first, int64_t last, float* query_gradient) {
  for (int64_t e = first; e < last; e += kLanes) {
    const int64_t height = std::min<int64_t>(kLanes, last - e);
    for (int64_t n = 0; n < count; n += kLanes) {
      Lanes square[kLanes] = {};
      for (int64_t t = 0; t < num_tiles; ++t) {
        const float* part = tiles + (t * num_inputs + e) * width + n;
        for (int64_t j = 0; j < height; ++j) square[j] += Load(part + j * width);
      }
      Transpose(square);
      for (int64_t i = 0; i < std::min<int64_t>(kLanes, count - n); ++i) {
        std::memcpy(query_gradient + (n + i) * num_inputs + e, &square[i], height * sizeof(float));
      }
    }
  }
}

TFXC_VECTORIZE int64_t TileLogits(const SparseRows& rows, const float* tile, int width, int64_t count, int64_t first,
                                  int64_t last, float* logits, int64_t stride) {
  return width == kLanes ? LogitsOf<1>(rows, tile, count, first, last, logits, stride)
                         : LogitsOf<2>(rows, tile, count, first, last, logits, stride);
}

#define TFXC_FOR_EACH_CASE(FUNCTION, ...)                                                       \
  switch (reduction) {                                                                          \
    case Reduction::kSquaredHinge:                                                              \
      return width == kLanes ? FUNCTION<1, Reduction::kSquaredHinge>(__VA_ARGS__)               \
                             : FUNCTION<2, Reduction::kSquaredHinge>(__VA_ARGS__);              \
    case Reduction::kSoftplus:                                                                  \
      return width == kLanes ? FUNCTION<1, Reduction::kSoftplus>(__VA_ARGS__)                   \
                             : FUNCTION<2, Reduction::kSoftplus>(__VA_ARGS__);                  \
    default:                                                                                    \
      return width == kLanes ? FUNCTION<1, Reduction::kLogSumExp>(__VA_ARGS__)                  \
                             : FUNCTION<2, Reduction::kLogSumExp>(__VA_ARGS__);                 \
  }

TFXC_VECTORIZE int64_t TileReduce(const SparseRows& rows, Reduction reduction, const float* tile, int width,
                                  int64_t first, int64_t last, double* sums, float* maxima) {
  TFXC_FOR_EACH_CASE(ReduceOf, rows, tile, first, last, sums, maxima)
}

TFXC_VECTORIZE int64_t TileReduceGradient(const SparseRows& rows, Reduction reduction, const float* tile, int width,
                                          const float* reduced, const float* upstream, const LabelGradient* labels,
                                          const LabelGradient* labels_end, int64_t first, int64_t last,
                                          const TileGradients& out) {
  TFXC_FOR_EACH_CASE(ReduceGradientOf, rows, tile, reduced, upstream, labels, labels_end, first, last, out)
}

TFXC_VECTORIZE int64_t TileLogitsGradient(const SparseRows& rows, const float* tile, int width, int64_t count,
                                          const float* gradient, int64_t stride, int64_t first, int64_t last,
                                          const TileGradients& out) {
  return width == kLanes ? LogitsGradientOf<1>(rows, tile, count, gradient, stride, first, last, out)
                         : LogitsGradientOf<2>(rows, tile, count, gradient, stride, first, last, out);
}

}  // namespace tfxc
