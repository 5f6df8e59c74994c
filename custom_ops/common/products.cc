#include "common/products.h"

#include "common/lanes.h"
#include "common/vectorize.h"

namespace tfxc::tiles {
namespace {

// sums[i][v] = Σ_k scalars[i * scalar_stride + k * scalar_step] · vectors[k * vector_stride + 16 v], on top of what
// `sums` holds if `add`. I · V sums are in registers at once.
template <int I, int V>
TFXC_INLINE void Product(const float* scalars, int64_t scalar_stride, int64_t scalar_step, const float* vectors,
                         int64_t vector_stride, int64_t count, bool add, float* sums, int64_t sum_stride) {
  Lanes total[I][V] = {};
  if (add) {
    for (int i = 0; i < I; ++i) {
      for (int v = 0; v < V; ++v) total[i][v] = Load(sums + i * sum_stride + v * kLanes);
    }
  }
  for (int64_t k = 0; k < count; ++k) {
    Lanes x[V];
    for (int v = 0; v < V; ++v) x[v] = Load(vectors + k * vector_stride + v * kLanes);
    for (int i = 0; i < I; ++i) {
      const float a = scalars[i * scalar_stride + k * scalar_step];
      for (int v = 0; v < V; ++v) total[i][v] += a * x[v];
    }
  }
  for (int i = 0; i < I; ++i) {
    for (int v = 0; v < V; ++v) std::memcpy(sums + i * sum_stride + v * kLanes, &total[i][v], sizeof(Lanes));
  }
}

// Rows that are asked for ahead of their use, where a few queries take no longer than rows take to come.
constexpr int64_t kRowsAhead = 16;

// I rows at once, as many as fit into the registers, then half as many, and the last ones singly.
template <int I, int V>
TFXC_INLINE void LogitsOf(const float* rows, int64_t stride, int64_t num_rows, const float* block, int64_t dim,
                          float* logits) {
  constexpr int kWidth = V * kLanes, kHalf = I / 2;
  int64_t r = 0;
  for (; r + I <= num_rows; r += I) {
    if (V == 1) {
      const float* next = rows + (r + kRowsAhead) * stride;
      for (int64_t i = 0; i < I * stride; i += kLanes) __builtin_prefetch(next + i);
    }
    Product<I, V>(rows + r * stride, stride, 1, block, kWidth, dim, false, logits + r * kWidth, kWidth);
  }
  for (; r + kHalf <= num_rows; r += kHalf) {
    Product<kHalf, V>(rows + r * stride, stride, 1, block, kWidth, dim, false, logits + r * kWidth, kWidth);
  }
  for (; r < num_rows; ++r) {
    Product<1, V>(rows + r * stride, stride, 1, block, kWidth, dim, false, logits + r * kWidth, kWidth);
  }
}

// `count` sums of 16 V numbers, I at a time, and the last ones 4 at a time: `count` is a multiple of 4.
template <int I, int V>
TFXC_INLINE void ColumnsOf(const float* scalars, int64_t scalar_stride, int64_t scalar_step, int64_t num_terms,
                           const float* vectors, int64_t dim, int64_t count, float* sums) {
  int64_t i = 0;
  for (; i + I <= count; i += I) {
    Product<I, V>(scalars + i * scalar_stride, scalar_stride, scalar_step, vectors, dim, num_terms, true,
                  sums + i * dim, dim);
  }
  for (; i < count; i += 4) {
    Product<4, V>(scalars + i * scalar_stride, scalar_stride, scalar_step, vectors, dim, num_terms, true,
                  sums + i * dim, dim);
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

#define TFXC_LOGITS_ARGUMENTS \
  const float *rows, int64_t stride, int64_t num_rows, const float *block, int64_t dim, float *logits
TFXC_VECTORIZE void WideLogits48(TFXC_LOGITS_ARGUMENTS) { LogitsOf<8, 3>(rows, stride, num_rows, block, dim, logits); }
TFXC_VECTORIZE void WideLogits32(TFXC_LOGITS_ARGUMENTS) { LogitsOf<8, 2>(rows, stride, num_rows, block, dim, logits); }
TFXC_VECTORIZE void WideLogits16(TFXC_LOGITS_ARGUMENTS) { LogitsOf<8, 1>(rows, stride, num_rows, block, dim, logits); }
TFXC_VECTORIZE void Logits48(TFXC_LOGITS_ARGUMENTS) { LogitsOf<2, 3>(rows, stride, num_rows, block, dim, logits); }
TFXC_VECTORIZE void Logits32(TFXC_LOGITS_ARGUMENTS) { LogitsOf<2, 2>(rows, stride, num_rows, block, dim, logits); }
TFXC_VECTORIZE void Logits16(TFXC_LOGITS_ARGUMENTS) { LogitsOf<4, 1>(rows, stride, num_rows, block, dim, logits); }
#undef TFXC_LOGITS_ARGUMENTS

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
