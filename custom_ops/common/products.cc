#include "common/products.h"

#include <algorithm>

#include "common/lanes.h"
#include "common/vectorize.h"

namespace tfxc::tiles {
namespace {

// Vectors side by side, and vectors at a distance.
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

// sums[i][v] = Σ_k scalars[i * scalar_stride + k * scalar_step] · vectors[k][v], added to `sums` if `add`; shifts[i],
// unless null, is added last. I · V sums are in registers at once.
template <typename Lanes, int I, int V, typename Vectors>
TFXC_INLINE void Product(const float* scalars, int64_t scalar_stride, int64_t scalar_step, const Vectors& vectors,
                         int64_t count, bool add, const float* shifts, float* sums, int64_t sum_stride) {
  Lanes total[I][V] = {};
  if (add) {
    for (int i = 0; i < I; ++i) {
      for (int v = 0; v < V; ++v) total[i][v] = Load<Lanes>(sums + i * sum_stride + v * kSizeOf<Lanes>);
    }
  }
  for (int64_t k = 0; k < count; ++k) {
    Lanes x[V];
    for (int v = 0; v < V; ++v) x[v] = Load<Lanes>(vectors[k] + v * kSizeOf<Lanes>);
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
    for (int v = 0; v < V; ++v) Store(total[i][v], sums + i * sum_stride + v * kSizeOf<Lanes>);
  }
}

// How many rows ahead are prefetched, where the products of a few queries take no longer than the reads.
constexpr int64_t kRowsAhead = 16;

TFXC_INLINE const float* From(const float* shifts, int64_t r) { return shifts == nullptr ? nullptr : shifts + r; }

// Takes I rows at once, as many as fit into the registers, then half as many, and the last rows one by one.
template <typename Lanes, int I, int V, typename Vectors>
TFXC_INLINE void SomeLogits(const float* rows, int64_t stride, int64_t num_rows, const Vectors& block, int64_t dim,
                            const float* shifts, float* logits, int64_t width = V * kSizeOf<Lanes>) {
  constexpr int kHalf = I / 2;
  int64_t r = 0;
  for (; r + I <= num_rows; r += I) {
    if (width == kLanes) {
      const float* next = rows + (r + kRowsAhead) * stride;
      for (int64_t i = 0; i < I * stride; i += kLanes) __builtin_prefetch(next + i);
    }
    Product<Lanes, I, V>(rows + r * stride, stride, 1, block, dim, false, From(shifts, r), logits + r * width, width);
  }
  for (; r + kHalf <= num_rows; r += kHalf) {
    Product<Lanes, kHalf, V>(rows + r * stride, stride, 1, block, dim, false, From(shifts, r), logits + r * width,
                             width);
  }
  for (; r < num_rows; ++r) {
    Product<Lanes, 1, V>(rows + r * stride, stride, 1, block, dim, false, From(shifts, r), logits + r * width, width);
  }
}

// For the first Q queries of a block of 16: rows become columns, so that a vector holds many rows. The other queries
// get 0.
template <typename Lanes, int Q>
TFXC_INLINE void LogitsOfFirst(const float* rows, int64_t stride, int64_t num_rows, const float* block, int64_t dim,
                               float* logits) {
  constexpr int kSize = kSizeOf<Lanes>;
  int64_t r = 0;
  for (; r + kSize <= num_rows; r += kSize) {
    const float* own = rows + r * stride;
    for (int64_t i = 0; i < kSize * stride; i += kLanes) __builtin_prefetch(own + kRowsAhead * stride + i);
    Lanes total[Q] = {};
    int64_t d = 0;
    for (; d + kSize <= dim; d += kSize) {
      Lanes columns[kSize];
      for (int i = 0; i < kSize; ++i) columns[i] = Load<Lanes>(own + i * stride + d);
      Transpose(columns);
      for (int j = 0; j < kSize; ++j) {
        for (int q = 0; q < Q; ++q) total[q] += block[(d + j) * kLanes + q] * columns[j];
      }
    }
    for (; d < dim; ++d) {
      Lanes column;
      for (int i = 0; i < kSize; ++i) column[i] = own[i * stride + d];
      for (int q = 0; q < Q; ++q) total[q] += block[d * kLanes + q] * column;
    }
    std::fill_n(logits + r * kLanes, kSize * kLanes, 0.0f);
    for (int i = 0; i < kSize; ++i) {
      for (int q = 0; q < Q; ++q) logits[(r + i) * kLanes + q] = total[q][i];
    }
  }
  SomeLogits<Lanes, kSize == kLanes ? 8 : 4, kParts<Lanes>>(rows + r * stride, stride, num_rows - r,
                                                            InARow{block, kLanes}, dim, nullptr, logits + r * kLanes);
}

template <typename Lanes>
TFXC_INLINE void LogitsOfFewOf(const float* rows, int64_t stride, int64_t num_rows, const float* block, int count,
                               int64_t dim, float* logits) {
  switch (count) {
    case 1: return LogitsOfFirst<Lanes, 1>(rows, stride, num_rows, block, dim, logits);
    case 2: return LogitsOfFirst<Lanes, 2>(rows, stride, num_rows, block, dim, logits);
    default: return LogitsOfFirst<Lanes, kFew>(rows, stride, num_rows, block, dim, logits);
  }
}

// The shapes that fit into the registers: thirty-two of sixteen floats, sixteen of eight, or thirty-two of four.
template <typename Lanes, typename Vectors>
TFXC_INLINE void LogitsInRegisters(const float* rows, int64_t stride, int64_t num_rows, const Vectors& block, int width,
                                   int64_t dim, const float* shifts, float* logits) {
  if constexpr (kSizeOf<Lanes> == 4) {
    Vectors part = block;
    for (int q = 0; q < width; q += kLanes, part.first += kLanes) {
      SomeLogits<Lanes, 4, kParts<Lanes>>(rows, stride, num_rows, part, dim, shifts, logits + q, width);
    }
    return;
  }
  constexpr bool kWide = kSizeOf<Lanes> == kLanes;
  constexpr int kVectors = kParts<Lanes>, kNarrow = kWide ? 8 : 4, kBroad = kWide ? 8 : 2;
  switch (width / kLanes) {
    case 1: return SomeLogits<Lanes, kNarrow, kVectors>(rows, stride, num_rows, block, dim, shifts, logits);
    case 2: return SomeLogits<Lanes, kBroad, 2 * kVectors>(rows, stride, num_rows, block, dim, shifts, logits);
    default: return SomeLogits<Lanes, kBroad, 3 * kVectors>(rows, stride, num_rows, block, dim, shifts, logits);
  }
}

template <typename Lanes>
TFXC_INLINE void LogitsOf(const float* rows, int64_t stride, int64_t num_rows, const float* block, int width,
                          int64_t dim, float* logits) {
  LogitsInRegisters<Lanes>(rows, stride, num_rows, InARow{block, width}, width, dim, nullptr, logits);
}

template <typename Lanes>
TFXC_INLINE void ScatteredLogitsOf(const float* rows, int64_t stride, int64_t num_rows, const float* tile,
                                   int64_t tile_width, const int32_t* places, int width, int64_t dim,
                                   const float* shifts, float* logits) {
  LogitsInRegisters<Lanes>(rows, stride, num_rows, Scattered{tile, tile_width, places}, width, dim, shifts, logits);
}

// For Q queries; every number of the tile multiplies sixteen rows.
template <typename Lanes, int Q>
TFXC_INLINE void SomePackedLogits(const float* packed, const Scattered& queries, int64_t dim, const float* shifts,
                                  float* logits, int64_t logit_stride) {
  constexpr int V = kParts<Lanes>;
  Lanes total[Q][V] = {};
  for (int64_t d = 0; d < dim; ++d) {
    const float* x = queries[d];
    Lanes rows[V];
    for (int v = 0; v < V; ++v) rows[v] = Load<Lanes>(packed + d * kLanes + v * kSizeOf<Lanes>);
    for (int q = 0; q < Q; ++q) {
      for (int v = 0; v < V; ++v) total[q][v] += x[q] * rows[v];
    }
  }
  if (shifts != nullptr) {
    for (int v = 0; v < V; ++v) {
      const Lanes shift = Load<Lanes>(shifts + v * kSizeOf<Lanes>);
      for (int q = 0; q < Q; ++q) total[q][v] += shift;
    }
  }
  for (int q = 0; q < Q; ++q) {
    for (int v = 0; v < V; ++v) Store(total[q][v], logits + q * logit_stride + v * kSizeOf<Lanes>);
  }
}

template <typename Lanes>
TFXC_INLINE void PackedLogitsOf(const float* packed, const float* tile, int64_t tile_width, const int32_t* places,
                                int width, int64_t dim, const float* shifts, const int32_t* next, float* logits,
                                int64_t logit_stride) {
  constexpr int kQueries = kParts<Lanes> == 1 ? 16 : kParts<Lanes> == 2 ? 6 : 4;  // so many that their sums fit into the registers
  int64_t asked = 0;
  for (int q = 0; q < width; q += kQueries) {
    const int from = std::min(q, width - kQueries);  // takes some queries twice, rather than fewer at once
    for (const int64_t until = next == nullptr ? 0 : dim * (q + kQueries) / width; asked < std::min(until, dim); ++asked) {
      const float* row = tile + static_cast<int64_t>(static_cast<uint32_t>(next[asked])) * tile_width;
      for (int i = 0; i < width; i += kLanes) __builtin_prefetch(row + i, /*rw=*/0, /*locality=*/3);
    }
    SomePackedLogits<Lanes, kQueries>(packed, Scattered{tile + from, tile_width, places}, dim, shifts,
                                      logits + from * logit_stride, logit_stride);
  }
}

// `count` sums of V vectors, I at a time, and the last sums 4 at a time: `count` is a multiple of 4.
template <typename Lanes, int I, int V>
TFXC_INLINE void SomeColumns(const float* scalars, int64_t scalar_stride, int64_t scalar_step, int64_t num_terms,
                             const float* vectors, int64_t dim, int64_t count, float* sums) {
  int64_t i = 0;
  for (; i + I <= count; i += I) {
    Product<Lanes, I, V>(scalars + i * scalar_stride, scalar_stride, scalar_step, InARow{vectors, dim}, num_terms, true,
                         nullptr, sums + i * dim, dim);
  }
  for (; i < count; i += 4) {
    Product<Lanes, 4, V>(scalars + i * scalar_stride, scalar_stride, scalar_step, InARow{vectors, dim}, num_terms, true,
                         nullptr, sums + i * dim, dim);
  }
}

template <typename Lanes>
TFXC_INLINE void GradientsOf(const float* scalars, int64_t scalar_stride, int64_t scalar_step, int64_t num_terms,
                             const float* vectors, int64_t dim, int64_t count, float* sums) {
#define TFXC_COLUMNS(I, V) \
  SomeColumns<Lanes, I, V>(scalars, scalar_stride, scalar_step, num_terms, vectors + d, dim, count, sums + d)
  int64_t d = 0;
  if constexpr (kSizeOf<Lanes> == kLanes) {
    for (; d + 4 * kLanes <= dim; d += 4 * kLanes) TFXC_COLUMNS(4, 4);
    if (d + 3 * kLanes == dim) TFXC_COLUMNS(8, 3);
    if (d + 2 * kLanes == dim) TFXC_COLUMNS(8, 2);
    if (d + kLanes == dim) TFXC_COLUMNS(8, 1);
  } else {
    for (; d < dim; d += kLanes) TFXC_COLUMNS(4, kParts<Lanes>);
  }
#undef TFXC_COLUMNS
}

TFXC_BY_WIDTH(void, Gradients,
              (const float* scalars, int64_t scalar_stride, int64_t scalar_step, int64_t num_terms,
               const float* vectors, int64_t dim, int64_t count, float* sums),
              (scalars, scalar_stride, scalar_step, num_terms, vectors, dim, count, sums))

}  // namespace

TFXC_BY_WIDTH(void, Logits,
              (const float* rows, int64_t stride, int64_t num_rows, const float* block, int width, int64_t dim,
               float* logits),
              (rows, stride, num_rows, block, width, dim, logits))
TFXC_BY_WIDTH(void, LogitsOfFew,
              (const float* rows, int64_t stride, int64_t num_rows, const float* block, int count, int64_t dim,
               float* logits),
              (rows, stride, num_rows, block, count, dim, logits))
TFXC_BY_WIDTH(void, ScatteredLogits,
              (const float* rows, int64_t stride, int64_t num_rows, const float* tile, int64_t tile_width,
               const int32_t* places, int width, int64_t dim, const float* shifts, float* logits),
              (rows, stride, num_rows, tile, tile_width, places, width, dim, shifts, logits))

TFXC_BY_WIDTH(void, PackedLogits,
              (const float* packed, const float* tile, int64_t tile_width, const int32_t* places, int width, int64_t dim,
               const float* shifts, const int32_t* next, float* logits, int64_t logit_stride),
              (packed, tile, tile_width, places, width, dim, shifts, next, logits, logit_stride))

void PackRows(const float* rows, int64_t stride, int64_t num_rows, int64_t dim, float* packed) {
  for (int64_t d = 0; d < dim; ++d) {
    for (int64_t r = 0; r < kLanes; ++r) packed[d * kLanes + r] = r < num_rows ? rows[r * stride + d] : 0.0f;
  }
}

void AddRowGradients(const float* gradient, int width, int64_t num_rows, const float* queries, int64_t dim,
                     float* row_gradients) {
  Gradients(gradient, width, 1, width, queries, dim, num_rows, row_gradients);
}

void AddQueryGradients(const float* gradient, int width, int64_t num_rows, const float* rows, int64_t dim,
                       float* query_gradients) {
  Gradients(gradient, 1, width, num_rows, rows, dim, width, query_gradients);
}

}  // namespace tfxc::tiles
