#include "common/products.h"

#include "common/lanes.h"
#include "common/vectorize.h"

namespace tfxc::tiles {
namespace {

// Vectors in a row, and vectors that lie apart.
struct InARow {
  const float* first;
  int64_t stride;
  TFXC_INLINE const float* operator[](int64_t k) const { return first + k * stride; }
};
struct Scattered {
  const float* first;
  int64_t stride;
  const int32_t* places;
  TFXC_INLINE const float* operator[](int64_t k) const { return first + places[k] * stride; }
};

// sums[i][v] = Σ_k scalars[i * scalar_stride + k * scalar_step] · vectors[k][16 v], on top of what `sums` holds if
// `add`; shifts[i], unless null, comes last. I · V sums are in registers at once.
template <int I, int V, typename Vectors>
TFXC_INLINE void Product(const float* scalars, int64_t scalar_stride, int64_t scalar_step, const Vectors& vectors,
                         int64_t count, bool add, const float* shifts, float* sums, int64_t sum_stride) {
  Lanes total[I][V] = {};
  if (add) {
    for (int i = 0; i < I; ++i) {
      for (int v = 0; v < V; ++v) total[i][v] = Load(sums + i * sum_stride + v * kLanes);
    }
  }
  for (int64_t k = 0; k < count; ++k) {
    Lanes x[V];
    for (int v = 0; v < V; ++v) x[v] = Load(vectors[k] + v * kLanes);
    for (int i = 0; i < I; ++i) {
      const float a = scalars[i * scalar_stride + k * scalar_step];
      for (int v = 0; v < V; ++v) total[i][v] += a * x[v];
    }
  }
  if (shifts != nullptr) {
    for (int i = 0; i < I; ++i) {
      for (int v = 0; v < V; ++v) total[i][v] += shifts[i];
    }
  }
  for (int i = 0; i < I; ++i) {
    for (int v = 0; v < V; ++v) std::memcpy(sums + i * sum_stride + v * kLanes, &total[i][v], sizeof(Lanes));
  }
}

// Rows that are asked for ahead of their use, where a few queries take no longer than rows take to come.
constexpr int64_t kRowsAhead = 16;

TFXC_INLINE const float* From(const float* shifts, int64_t r) { return shifts == nullptr ? nullptr : shifts + r; }

// I rows at once, as many as fit into the registers, then half as many, and the last ones singly.
template <int I, int V, typename Vectors>
TFXC_INLINE void LogitsOf(const float* rows, int64_t stride, int64_t num_rows, const Vectors& block, int64_t dim,
                          const float* shifts, float* logits) {
  constexpr int kWidth = V * kLanes, kHalf = I / 2;
  int64_t r = 0;
  for (; r + I <= num_rows; r += I) {
    if (V == 1) {
      const float* next = rows + (r + kRowsAhead) * stride;
      for (int64_t i = 0; i < I * stride; i += kLanes) __builtin_prefetch(next + i);
    }
    Product<I, V>(rows + r * stride, stride, 1, block, dim, false, From(shifts, r), logits + r * kWidth, kWidth);
  }
  for (; r + kHalf <= num_rows; r += kHalf) {
    Product<kHalf, V>(rows + r * stride, stride, 1, block, dim, false, From(shifts, r), logits + r * kWidth, kWidth);
  }
  for (; r < num_rows; ++r) {
    Product<1, V>(rows + r * stride, stride, 1, block, dim, false, From(shifts, r), logits + r * kWidth, kWidth);
  }
}

// `count` sums of 16 V numbers, I at a time, and the last ones 4 at a time: `count` is a multiple of 4.
template <int I, int V>
TFXC_INLINE void ColumnsOf(const float* scalars, int64_t scalar_stride, int64_t scalar_step, int64_t num_terms,
                           const float* vectors, int64_t dim, int64_t count, float* sums) {
  int64_t i = 0;
  for (; i + I <= count; i += I) {
    Product<I, V>(scalars + i * scalar_stride, scalar_stride, scalar_step, InARow{vectors, dim}, num_terms,
                  true, nullptr, sums + i * dim, dim);
  }
  for (; i < count; i += 4) {
    Product<4, V>(scalars + i * scalar_stride, scalar_stride, scalar_step, InARow{vectors, dim}, num_terms,
                  true, nullptr, sums + i * dim, dim);
  }
}

// Thirty-two registers of sixteen floats, or sixteen of eight: the shapes that fit.
bool HasWideRegisters() {
#if defined(__x86_64__)
  return TFXC_LEVEL >= 4 && __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

#define TFXC_LOGITS(NAME, I, V)                                                                                   \
  TFXC_VECTORIZE void NAME(const float* rows, int64_t stride, int64_t num_rows, const float* block, int64_t dim, \
                           float* logits) {                                                                      \
    LogitsOf<I, V>(rows, stride, num_rows, InARow{block, V * kLanes}, dim, nullptr, logits);                     \
  }                                                                                                              \
  TFXC_VECTORIZE void Scattered##NAME(const float* rows, int64_t stride, int64_t num_rows, const float* tile,    \
                                      int64_t tile_width, const int32_t* places, int64_t dim,                    \
                                      const float* shifts, float* logits) {                                      \
    LogitsOf<I, V>(rows, stride, num_rows, Scattered{tile, tile_width, places}, dim, shifts, logits);            \
  }
TFXC_LOGITS(WideLogits48, 8, 3)
TFXC_LOGITS(WideLogits32, 8, 2)
TFXC_LOGITS(WideLogits16, 8, 1)
TFXC_LOGITS(Logits48, 2, 3)
TFXC_LOGITS(Logits32, 2, 2)
TFXC_LOGITS(Logits16, 4, 1)
#undef TFXC_LOGITS

#define TFXC_GRADIENT_ARGUMENTS                                                                             \
  const float *scalars, int64_t scalar_stride, int64_t scalar_step, int64_t num_terms, const float *vectors, \
      int64_t dim, int64_t count, float *sums
#define TFXC_COLUMNS(I, V) \
  ColumnsOf<I, V>(scalars, scalar_stride, scalar_step, num_terms, vectors + d, dim, count, sums + d)
TFXC_VECTORIZE void WideGradients(TFXC_GRADIENT_ARGUMENTS) {
  int64_t d = 0;
  for (; d + 4 * kLanes <= dim; d += 4 * kLanes) TFXC_COLUMNS(4, 4);
  if (d + 3 * kLanes == dim) TFXC_COLUMNS(8, 3);
  if (d + 2 * kLanes == dim) TFXC_COLUMNS(8, 2);
  if (d + kLanes == dim) TFXC_COLUMNS(8, 1);
}

TFXC_VECTORIZE void Gradients(TFXC_GRADIENT_ARGUMENTS) {
  int64_t d = 0;
  for (; d + 2 * kLanes <= dim; d += 2 * kLanes) TFXC_COLUMNS(2, 2);
  if (d < dim) TFXC_COLUMNS(4, 1);
}
#undef TFXC_COLUMNS
#undef TFXC_GRADIENT_ARGUMENTS

}  // namespace

void Logits(const float* rows, int64_t stride, int64_t num_rows, const float* block, int width, int64_t dim,
            float* logits) {
  const bool is_wide = HasWideRegisters();
  const auto product = width == kLanes       ? (is_wide ? WideLogits16 : Logits16)
                       : width == 2 * kLanes ? (is_wide ? WideLogits32 : Logits32)
                                             : (is_wide ? WideLogits48 : Logits48);
  product(rows, stride, num_rows, block, dim, logits);
}

void ScatteredLogits(const float* rows, int64_t stride, int64_t num_rows, const float* tile, int64_t tile_width,
                     const int32_t* places, int width, int64_t dim, const float* shifts, float* logits) {
  const bool is_wide = HasWideRegisters();
  const auto product = width == kLanes       ? (is_wide ? ScatteredWideLogits16 : ScatteredLogits16)
                       : width == 2 * kLanes ? (is_wide ? ScatteredWideLogits32 : ScatteredLogits32)
                                             : (is_wide ? ScatteredWideLogits48 : ScatteredLogits48);
  product(rows, stride, num_rows, tile, tile_width, places, dim, shifts, logits);
}

void AddRowGradients(const float* gradient, int width, int64_t num_rows, const float* queries, int64_t dim,
                     float* row_gradients) {
  const auto product = HasWideRegisters() ? WideGradients : Gradients;
  product(gradient, width, 1, width, queries, dim, num_rows, row_gradients);
}

void AddQueryGradients(const float* gradient, int width, int64_t num_rows, const float* rows, int64_t dim,
                       float* query_gradients) {
  const auto product = HasWideRegisters() ? WideGradients : Gradients;
  product(gradient, 1, width, num_rows, rows, dim, width, query_gradients);
}

}  // namespace tfxc::tiles
