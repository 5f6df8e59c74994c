#include "dense_scan/rough_products.h"

#include <algorithm>

#include "common/simd.h"
#include "common/vectorize.h"
#include "dense_scan/blocks.h"

#if defined(TFXC_WIDE) && !defined(__clang__)  // Clang 16 breaks off at products of bfloat16
#include <cpuid.h>
#include <immintrin.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#define TFXC_BFLOAT16 __attribute__((target("arch=x86-64-v4,avx512bf16")))
#define TFXC_FLOAT16 __attribute__((target("arch=x86-64-v4,avx512fp16")))
#if TFXC_HAS_LEVELS >= 5 && defined(__linux__)
#define TFXC_TILES __attribute__((target("arch=x86-64-v4,amx-tile,amx-bf16")))
#endif
#endif

namespace tfxc::dense_scan {
namespace {

[[maybe_unused]] constexpr int kWidth = kBlockWidths[1];
// The number of words whose products are summed in float16, before the sum goes to float32.
[[maybe_unused]] constexpr int64_t kWordsAtOnce = 32;
// A tile of AMX: rows, and words in a row of it.
[[maybe_unused]] constexpr int kTileRows = 16, kTileWords = 16;

#if defined(TFXC_WIDE) && !defined(__clang__)
TFXC_WIDE __mmask16 Mask(int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

// Rounds to the nearest bfloat16, two numbers in a word, the first in the lower half; a 0 follows an odd D.
TFXC_BFLOAT16 void BfloatWords(const float* numbers, int64_t dim, uint32_t* words) {
  int64_t d = 0;
  for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
    const __m512 first = _mm512_loadu_ps(numbers + d), second = _mm512_loadu_ps(numbers + d + kLanes);
    _mm512_storeu_si512(words + d / 2, (__m512i)_mm512_cvtne2ps_pbh(second, first));
  }
  if (d == dim) return;
  const __m512 first = _mm512_maskz_loadu_ps(Mask(dim - d), numbers + d);
  const __m512 second = _mm512_maskz_loadu_ps(Mask(dim - d - kLanes), numbers + d + kLanes);
  _mm512_mask_storeu_epi32(words + d / 2, Mask((dim - d + 1) / 2), (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

// logits[i] = Σ_k rows[i, k] · block[k], by pairs: the sums of I rows and 48 queries stay in registers.
template <int I>
TFXC_BFLOAT16 void BfloatProduct(const uint32_t* rows, int64_t num_words, const uint32_t* block, float* logits) {
  constexpr int kVectors = kWidth / kLanes;
  __m512 total[I][kVectors];
  for (int i = 0; i < I; ++i) {
    for (int v = 0; v < kVectors; ++v) total[i][v] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < num_words; ++k) {
    __m512bh x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = (__m512bh)_mm512_loadu_si512(block + k * kWidth + v * kLanes);
    for (int i = 0; i < I; ++i) {
      const __m512bh a = (__m512bh)_mm512_set1_epi32(static_cast<int>(rows[i * num_words + k]));
      for (int v = 0; v < kVectors; ++v) total[i][v] = _mm512_dpbf16_ps(total[i][v], a, x[v]);
    }
  }
  for (int i = 0; i < I; ++i) {
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(logits + i * kWidth + v * kLanes, total[i][v]);
  }
}

void BfloatLogits(const uint32_t* rows, int64_t num_rows, int64_t num_words, const uint32_t* block, float* logits) {
  int64_t r = 0;
  for (; r + 8 <= num_rows; r += 8) BfloatProduct<8>(rows + r * num_words, num_words, block, logits + r * kWidth);
  for (; r < num_rows; ++r) BfloatProduct<1>(rows + r * num_words, num_words, block, logits + r * kWidth);
}

// The same in float16, for numbers scaled by a power of two.
TFXC_FLOAT16 void HalfWords(const float* numbers, int64_t dim, float scale, uint32_t* words) {
  for (int64_t d = 0; d < dim; d += kLanes) {
    const int64_t left = dim - d;
    const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(Mask(left), numbers + d), _mm512_set1_ps(scale));
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m512i halves = _mm512_castsi256_si512(_mm512_maskz_cvtps_ph(0xffff, x, kNearest));
    _mm512_mask_storeu_epi32(words + d / 2, Mask(std::min<int64_t>((left + 1) / 2, kLanes / 2)), halves);
  }
}

typedef uint32_t Pairs __attribute__((vector_size(64)));
typedef uint16_t Evens __attribute__((vector_size(32)));

// Even and odd numbers have separate sums, which are added at the end. inverse_scales[q] undoes the scaling of the
// numbers.
template <int I>
TFXC_FLOAT16 void HalfProduct(const uint32_t* rows, int64_t num_words, const uint32_t* block,
                              const float* inverse_scales, float* logits) {
  constexpr int kVectors = kWidth / kLanes;
  for (int64_t start = 0; start < num_words; start += kWordsAtOnce) {
    const int64_t end = std::min(start + kWordsAtOnce, num_words);
    __m512h total[I][kVectors];
    for (int i = 0; i < I; ++i) {
      for (int v = 0; v < kVectors; ++v) total[i][v] = _mm512_setzero_ph();
    }
    for (int64_t k = start; k < end; ++k) {
      __m512h x[kVectors];
      for (int v = 0; v < kVectors; ++v) x[v] = _mm512_loadu_ph(block + k * kWidth + v * kLanes);
      for (int i = 0; i < I; ++i) {
        const __m512h a = _mm512_castsi512_ph(_mm512_set1_epi32(static_cast<int>(rows[i * num_words + k])));
        for (int v = 0; v < kVectors; ++v) total[i][v] = _mm512_fmadd_ph(a, x[v], total[i][v]);
      }
    }
    for (int i = 0; i < I; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        float* out = logits + i * kWidth + v * kLanes;
        const Pairs odd = (Pairs)total[i][v] >> 16;
        const Pairs both = (Pairs)_mm512_add_ph(total[i][v], (__m512h)odd);
        const __m512 sum = _mm512_cvtxph_ps((__m256h)__builtin_convertvector(both, Evens));
        const __m512 before = start == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(out);
        _mm512_storeu_ps(out, _mm512_fmadd_ps(sum, _mm512_loadu_ps(inverse_scales + v * kLanes), before));
      }
    }
  }
}

void HalfLogits(const uint32_t* rows, int64_t num_rows, int64_t num_words, const uint32_t* block,
                const float* inverse_scales, float* logits) {
  int64_t r = 0;
  for (; r + 8 <= num_rows; r += 8) {
    HalfProduct<8>(rows + r * num_words, num_words, block, inverse_scales, logits + r * kWidth);
  }
  for (; r < num_rows; ++r) {
    HalfProduct<1>(rows + r * num_words, num_words, block, inverse_scales, logits + r * kWidth);
  }
}

// Whether the processor has what these bits of leaf 7 stand for.
bool Has(unsigned features) {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & features) == features;
}

#ifdef TFXC_TILES
// The shapes of the eight tiles as LDTILECFG reads them.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_row[16] = {};
  uint8_t num_rows[16] = {};
};

// The compiler does not know what these instructions read: it must not delay or drop the stores before them.
TFXC_INLINE void WriteNow(const void* data) { __asm__ volatile("" : : "r"(data) : "memory"); }

// Whether the processor has tiles and the kernel lets this process use them.
bool HasTiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl, since Linux 5.16
  constexpr unsigned kBfloat16AndTiles = 1u << 22 | 1u << 24;
  return Has(kBfloat16AndTiles) && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// The sums of 32 rows and 48 queries stay in tiles 0 to 5. rows is [., num_words], block [num_words, 48].
TFXC_TILES void TileProduct(const uint32_t* rows, int64_t num_words, const uint32_t* block, float* logits) {
  const int64_t row_bytes = num_words * sizeof(uint32_t);
  constexpr int64_t kBlockBytes = kWidth * sizeof(uint32_t);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t k = 0; k < num_words; k += kTileWords) {
    // Each half of the rows loads the queries again: no tile is left to keep them.
#define TFXC_ADD_QUERIES(COLUMN, SUM)                                         \
  _tile_loadd(7, block + k * kWidth + (COLUMN)*kTileRows, kBlockBytes); \
  _tile_dpbf16ps(SUM, 6, 7);
    _tile_loadd(6, rows + k, row_bytes);
    TFXC_ADD_QUERIES(0, 0)
    TFXC_ADD_QUERIES(1, 1)
    TFXC_ADD_QUERIES(2, 2)
    _tile_loadd(6, rows + k + kTileRows * num_words, row_bytes);
    TFXC_ADD_QUERIES(0, 3)
    TFXC_ADD_QUERIES(1, 4)
    TFXC_ADD_QUERIES(2, 5)
#undef TFXC_ADD_QUERIES
  }
  float* second = logits + kTileRows * kWidth;
  _tile_stored(0, logits, kBlockBytes);
  _tile_stored(1, logits + kTileRows, kBlockBytes);
  _tile_stored(2, logits + 2 * kTileRows, kBlockBytes);
  _tile_stored(3, second, kBlockBytes);
  _tile_stored(4, second + kTileRows, kBlockBytes);
  _tile_stored(5, second + 2 * kTileRows, kBlockBytes);
}

TFXC_TILES void Configure() {
  TileShapes shapes;
  std::fill_n(shapes.bytes_of_row, 8, kTileWords * sizeof(uint32_t));
  std::fill_n(shapes.num_rows, 8, kTileRows);
  WriteNow(&shapes);
  _tile_loadconfig(&shapes);
}

TFXC_TILES void Release() { _tile_release(); }

// The rows up to the next 32 are multiplied too, whatever is there.
void TileLogits(const uint32_t* rows, int64_t num_rows, int64_t num_words, const uint32_t* block, float* logits) {
  static_assert(kTileClasses % (2 * kTileRows) == 0 && kWidth == 3 * kTileRows);
  WriteNow(rows);
  for (int64_t r = 0; r < num_rows; r += 2 * kTileRows) {
    TileProduct(rows + r * num_words, num_words, block, logits + r * kWidth);
  }
}
#else
bool HasTiles() { return false; }
void Configure() {}
void Release() {}
void TileLogits(const uint32_t*, int64_t, int64_t, const uint32_t*, float*) {}
#endif

Format Chosen() {
  if (!__builtin_cpu_supports("avx512f")) return Format::kNone;
  if (__builtin_cpu_supports("avx512bf16") && HasTiles()) return Format::kBfloat16Tiles;
  if (__builtin_cpu_is("amd")) return __builtin_cpu_supports("avx512bf16") ? Format::kBfloat16 : Format::kNone;
  return Has(1u << 23) ? Format::kFloat16 : Format::kNone;  // AVX512-FP16
}
#else
void BfloatWords(const float*, int64_t, uint32_t*) {}
void BfloatLogits(const uint32_t*, int64_t, int64_t, const uint32_t*, float*) {}
void HalfWords(const float*, int64_t, float, uint32_t*) {}
void HalfLogits(const uint32_t*, int64_t, int64_t, const uint32_t*, const float*, float*) {}
void TileLogits(const uint32_t*, int64_t, int64_t, const uint32_t*, float*) {}
void Configure() {}
void Release() {}
Format Chosen() { return Format::kNone; }
#endif

}  // namespace

// Asks the kernel for tiles on first use: a process without use for them does not ask.
Format BestFormat() {
  static const Format format = Chosen();
  return format;
}

TileConfiguration::TileConfiguration() {
  if (BestFormat() == Format::kBfloat16Tiles) Configure();
}

TileConfiguration::~TileConfiguration() {
  if (BestFormat() == Format::kBfloat16Tiles) Release();
}

int64_t NumWords(int64_t dim) {
  const int64_t pairs = (dim + 1) / 2;
  return BestFormat() == Format::kBfloat16Tiles ? (pairs + kTileWords - 1) / kTileWords * kTileWords : pairs;
}

void ToWords(const float* numbers, int64_t dim, float scale, uint32_t* words) {
  if (BestFormat() == Format::kFloat16) {
    HalfWords(numbers, dim, scale, words);
  } else {
    BfloatWords(numbers, dim, words);
  }
}

void RoughLogits(const uint32_t* rows, int64_t num_rows, int64_t num_words, const uint32_t* block,
                 const float* inverse_scales, float* logits) {
  switch (BestFormat()) {
    case Format::kNone: return;
    case Format::kBfloat16: return BfloatLogits(rows, num_rows, num_words, block, logits);
    case Format::kFloat16: return HalfLogits(rows, num_rows, num_words, block, inverse_scales, logits);
    case Format::kBfloat16Tiles: return TileLogits(rows, num_rows, num_words, block, logits);
  }
}

}  // namespace tfxc::dense_scan
