#include "dense_scan/first_look.h"

#include <algorithm>
#include <cmath>

#include "common/lanes.h"
#include "common/vectorize.h"

#ifdef TFXC_WIDE
#include <immintrin.h>
#define TFXC_BFLOAT16 __attribute__((target("arch=x86-64-v4,avx512bf16")))
#if __GNUC__ >= 12
#define TFXC_FLOAT16 __attribute__((target("arch=x86-64-v4,avx512fp16")))
#endif
#endif

namespace tfxc::dense_scan {
namespace {

enum class Format { kNone, kBfloat16, kFloat16 };

constexpr int kWidth = kBlockWidths[1];
// Beyond it the square of a norm, or a product of two, may be infinite; below, 0.
constexpr float kLargestNorm = 1e15f, kSmallestNorm = 0x1p-60f;
// Norms of float16 numbers: the largest of a tile's, at most, and of each query's. Products stay below 2^15.
constexpr int kTileExponent = 8, kQueryExponent = 7;
// Words whose products float16 adds up; then the sum goes to float32.
constexpr int64_t kWordsAtOnce = 32;

// NaN stays.
void Raise(float x, float* largest) {
  if (!(x <= *largest) && *largest == *largest) *largest = x;
}

// The power of two that brings a norm to [2^exponent / 2, 2^exponent).
float ScaleTo(int exponent, float norm) {
  int own;
  std::frexp(std::max(norm, kSmallestNorm), &own);
  return std::ldexp(1.0f, exponent - own);
}

#ifdef TFXC_BFLOAT16
TFXC_WIDE __mmask16 Mask(int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

TFXC_WIDE float Norm(const float* numbers, int64_t dim) {
  __m512 squares = _mm512_setzero_ps();
  for (int64_t d = 0; d < dim; d += kLanes) {
    const __m512 x = _mm512_maskz_loadu_ps(Mask(dim - d), numbers + d);
    squares = _mm512_fmadd_ps(x, x, squares);
  }
  const Lanes16 all[] = {(Lanes16)squares};
  return std::sqrt(Sum(all));
}

// Numbers to the nearest bfloat16, two in a word, the first in the lower half; behind an odd D stands 0.
TFXC_BFLOAT16 void BfloatWords(const float* numbers, int64_t dim, uint32_t* words) {
  for (int64_t d = 0; d < dim; d += 2 * kLanes) {
    const int64_t left = dim - d;
    const __m512 first = _mm512_maskz_loadu_ps(Mask(left), numbers + d);
    const __m512 second = _mm512_maskz_loadu_ps(Mask(left - kLanes), numbers + d + kLanes);
    const __m512i pairs = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    _mm512_mask_storeu_epi32(words + d / 2, Mask((left + 1) / 2), pairs);
  }
}

// logits[i] = Σ_k rows[i, k] · block[k], pair by pair: the sums of I rows and 48 queries stay in registers.
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

#ifdef TFXC_FLOAT16
// The same in float16, of numbers times a power of two.
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

// The even numbers and the odd ones have sums of their own, which are added up at the end. inverse_scales[q] takes back
// what numbers were scaled by.
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
#else
void HalfWords(const float*, int64_t, float, uint32_t*) {}
void HalfLogits(const uint32_t*, int64_t, int64_t, const uint32_t*, const float*, float*) {}
#endif

Format Chosen() {
  if (!__builtin_cpu_supports("avx512f")) return Format::kNone;
  if (__builtin_cpu_is("amd")) return __builtin_cpu_supports("avx512bf16") ? Format::kBfloat16 : Format::kNone;
#ifdef TFXC_FLOAT16
  if (__builtin_cpu_supports("avx512fp16")) return Format::kFloat16;
#endif
  return Format::kNone;
}

// lowered = thresholds - slope * norms - shift; whether all are numbers above -infinity.
TFXC_WIDE bool LowerBy(float slope, float shift, const float* norms, const float* thresholds, float* lowered) {
  int above = 0xffff;
  for (int q = 0; q < kWidth; q += kLanes) {
    const __m512 slack = _mm512_fmadd_ps(_mm512_set1_ps(slope), _mm512_loadu_ps(norms + q), _mm512_set1_ps(shift));
    const __m512 low = _mm512_sub_ps(_mm512_loadu_ps(thresholds + q), slack);
    _mm512_storeu_ps(lowered + q, low);
    above &= _mm512_cmp_ps_mask(low, _mm512_set1_ps(-INFINITY), _CMP_GT_OQ);
  }
  return above == 0xffff;
}

TFXC_WIDE int Above(const float* logits, int64_t num_rows, const float* thresholds, int32_t* rows) {
  const __m512 first = _mm512_loadu_ps(thresholds), second = _mm512_loadu_ps(thresholds + kLanes);
  const __m512 third = _mm512_loadu_ps(thresholds + 2 * kLanes);
  int count = 0;
  for (int64_t r = 0; r < num_rows; ++r) {
    const float* own = logits + r * kWidth;
    const int any = _mm512_cmp_ps_mask(_mm512_loadu_ps(own), first, _CMP_GT_OQ) |
                    _mm512_cmp_ps_mask(_mm512_loadu_ps(own + kLanes), second, _CMP_GT_OQ) |
                    _mm512_cmp_ps_mask(_mm512_loadu_ps(own + 2 * kLanes), third, _CMP_GT_OQ);
    rows[count] = static_cast<int32_t>(r);
    count += any != 0;
  }
  return count;
}
#else
float Norm(const float*, int64_t) { return 0.0f; }
void BfloatWords(const float*, int64_t, uint32_t*) {}
void BfloatLogits(const uint32_t*, int64_t, int64_t, const uint32_t*, float*) {}
void HalfWords(const float*, int64_t, float, uint32_t*) {}
void HalfLogits(const uint32_t*, int64_t, int64_t, const uint32_t*, const float*, float*) {}
bool LowerBy(float, float, const float*, const float*, float*) { return false; }
int Above(const float*, int64_t, const float*, int32_t*) { return 0; }
Format Chosen() { return Format::kNone; }
#endif

const Format kFormat = Chosen();

void Words(const float* numbers, int64_t dim, float scale, uint32_t* words) {
  if (kFormat == Format::kBfloat16) {
    BfloatWords(numbers, dim, words);
  } else {
    HalfWords(numbers, dim, scale, words);
  }
}

}  // namespace

bool HasFirstLook() { return kFormat != Format::kNone; }

RoughQueries::RoughQueries(const float* query, int64_t count, int64_t dim)
    : num_words_((dim + 1) / 2), words_((count + kWidth - 1) / kWidth * kWidth * num_words_) {
  norms_.resize((count + kWidth - 1) / kWidth * kWidth);
  inverse_scales_.resize(norms_.size());
  std::vector<uint32_t> words(num_words_);
  for (int64_t q = 0; q < count; ++q) {
    const float* row = query + q * dim;
    const float norm = Norm(row, dim), scale = ScaleTo(kQueryExponent, norm);
    // Zeros are common, as padding; a query of other numbers whose squares are 0 is not known well enough.
    const bool is_known = std::all_of(row, row + dim, [](float x) { return x == 0.0f; }) ||
                          (kSmallestNorm <= norm && norm <= kLargestNorm);
    norms_[q] = is_known ? norm : INFINITY;
    inverse_scales_[q] = 1.0f / scale;
    Words(row, dim, scale, words.data());
    uint32_t* block = words_.data() + q / kWidth * kWidth * num_words_ + q % kWidth;
    for (int64_t k = 0; k < num_words_; ++k) block[k * kWidth] = words[k];
  }
}

void RoughTile::Set(const float* rows, const float* scales, const float* bias, int64_t num_rows) {
  num_rows_ = num_rows;
  bias_ = 0.0f;
  scale_ = 1.0f;
  norm_ = 0.0f;
  float largest = 0.0f;  // before scales
  for (int64_t r = 0; r < num_rows; ++r) {
    const float own = Norm(rows + r * dim_, dim_), norm = own < kSmallestNorm ? kSmallestNorm : own;
    Raise(norm, &largest);
    // What a scale makes small may have been too large before.
    Raise(scales == nullptr || !(norm <= kLargestNorm) ? norm : norm * scales[r], &norm_);
    if (scales != nullptr) Raise(scales[r], &scale_);
    if (bias != nullptr) Raise(std::abs(bias[r]), &bias_);
  }
  if (!(norm_ <= kLargestNorm)) return;  // no one asks for its logits then
  const float scale = ScaleTo(kTileExponent, largest);
  inverse_scale_ = 1.0f / scale;
  for (int64_t r = 0; r < num_rows; ++r) {
    Words(rows + r * dim_, dim_, scale, words_.data() + r * ((dim_ + 1) / 2));
  }
}

void RoughTile::Logits(const RoughQueries& queries, int64_t block, float* logits) const {
  const uint32_t* words = queries.words_.data() + block * queries.num_words_ * kWidth;
  if (kFormat == Format::kBfloat16) {
    BfloatLogits(words_.data(), num_rows_, queries.num_words_, words, logits);
    return;
  }
  float inverse_scales[kWidth];
  for (int q = 0; q < kWidth; ++q) inverse_scales[q] = queries.inverse_scales_[block * kWidth + q] * inverse_scale_;
  HalfLogits(words_.data(), num_rows_, queries.num_words_, words, inverse_scales, logits);
}

bool RoughTile::Lower(const RoughQueries& queries, int64_t block, const float* thresholds, float* lowered) const {
  if (!(norm_ <= kLargestNorm && bias_ <= kLargestNorm)) return false;
  float of_products = 0.0078278f;  // bfloat16: 2 · 2^-8 + 2^-16
  float of_small = 0.0f;
  if (kFormat == Format::kFloat16) {
    of_products = 0.0176f;  // (2 + 32 + 1) · 2^-11, and a little more for their products
    // Numbers and sums below 2^-14 move by 2^-25 each, whatever their size.
    const float moved = (0x1p8f + 0x1p7f) * std::sqrt(static_cast<float>(dim_)) + dim_;
    of_small = 0x1p-25f * moved * scale_ * inverse_scale_ / (1 << (kQueryExponent - 1));
  }
  // Twice the rounding of float32 sums over D; then that of scale, bias and threshold.
  of_products += (2 * dim_ + 16) * 1.2e-7f;
  // Products of such small numbers that they count as 0.
  const float of_zeros = 1e-36f * dim_ * scale_ * (1.0f + norm_);
  const float slope = of_products * norm_ + of_small + of_zeros;
  return LowerBy(slope, 1e-6f * bias_ + of_zeros, queries.norms_.data() + block * kWidth, thresholds, lowered);
}

int RowsAbove(const float* logits, int64_t num_rows, const float* thresholds, int32_t* rows) {
  return Above(logits, num_rows, thresholds, rows);
}

}  // namespace tfxc::dense_scan
