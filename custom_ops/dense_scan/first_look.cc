#include "dense_scan/first_look.h"

#include <algorithm>
#include <cmath>

#include "common/lanes.h"
#include "common/vectorize.h"

#if defined(__x86_64__) && TFXC_LEVEL >= 4
#include <immintrin.h>
#define TFXC_BFLOAT16 __attribute__((target("arch=x86-64-v4,avx512bf16")))
#endif

namespace tfxc::dense_scan {
namespace {

constexpr int kWidth = kBlockWidths[1];
// Beyond it the square of a norm, or a product of two, may be infinite.
constexpr float kLargestNorm = 1e15f;

// NaN stays.
void Raise(float x, float* largest) {
  if (!(x <= *largest) && *largest == *largest) *largest = x;
}

#ifdef TFXC_BFLOAT16
// Numbers to the nearest bfloat16, two in a word, the first in the lower half; behind an odd D stands 0. Returns the
// sum of their squares.
TFXC_BFLOAT16 float Words(const float* numbers, int64_t dim, uint32_t* words) {
  __m512 squares = _mm512_setzero_ps();
  for (int64_t d = 0; d < dim; d += 2 * kLanes) {
    const int64_t left = dim - d;
    const auto mask = [](int64_t count) { return static_cast<__mmask16>(count >= kLanes ? 0xffff : (1 << count) - 1); };
    const __m512 first = _mm512_maskz_loadu_ps(mask(left), numbers + d);
    const __m512 second = _mm512_maskz_loadu_ps(mask(left > kLanes ? left - kLanes : 0), numbers + d + kLanes);
    const __m512i pairs = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    _mm512_mask_storeu_epi32(words + d / 2, mask((left + 1) / 2), pairs);
    squares = _mm512_fmadd_ps(second, second, _mm512_fmadd_ps(first, first, squares));
  }
  return Sum((Lanes)squares);
}

// logits[i] = Σ_k rows[i, k] · block[k], pair by pair: the sums of I rows and 48 queries stay in registers.
template <int I>
TFXC_BFLOAT16 void Product(const uint32_t* rows, int64_t num_words, const uint32_t* block, float* logits) {
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

void LogitsOf(const uint32_t* rows, int64_t num_rows, int64_t num_words, const uint32_t* block, float* logits) {
  int64_t r = 0;
  for (; r + 8 <= num_rows; r += 8) Product<8>(rows + r * num_words, num_words, block, logits + r * kWidth);
  for (; r < num_rows; ++r) Product<1>(rows + r * num_words, num_words, block, logits + r * kWidth);
}

// lowered = thresholds - slope * norms - shift; whether all are numbers above -infinity.
TFXC_BFLOAT16 bool LowerBy(float slope, float shift, const float* norms, const float* thresholds, float* lowered) {
  int above = 0xffff;
  for (int q = 0; q < kWidth; q += kLanes) {
    const __m512 slack = _mm512_fmadd_ps(_mm512_set1_ps(slope), _mm512_loadu_ps(norms + q), _mm512_set1_ps(shift));
    const __m512 low = _mm512_sub_ps(_mm512_loadu_ps(thresholds + q), slack);
    _mm512_storeu_ps(lowered + q, low);
    above &= _mm512_cmp_ps_mask(low, _mm512_set1_ps(-INFINITY), _CMP_GT_OQ);
  }
  return above == 0xffff;
}

TFXC_BFLOAT16 int Above(const float* logits, int64_t num_rows, const float* thresholds, int32_t* rows) {
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
float Words(const float*, int64_t, uint32_t*) { return 0.0f; }
void LogitsOf(const uint32_t*, int64_t, int64_t, const uint32_t*, float*) {}
bool LowerBy(float, float, const float*, const float*, float*) { return false; }
int Above(const float*, int64_t, const float*, int32_t*) { return 0; }
#endif

}  // namespace

bool HasFirstLook() {
#ifdef TFXC_BFLOAT16
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

RoughQueries::RoughQueries(const float* query, int64_t count, int64_t dim)
    : num_words_((dim + 1) / 2), words_((count + kWidth - 1) / kWidth * kWidth * num_words_) {
  norms_.resize((count + kWidth - 1) / kWidth * kWidth);
  std::vector<uint32_t> words(num_words_);
  for (int64_t q = 0; q < count; ++q) {
    const float norm = std::sqrt(Words(query + q * dim, dim, words.data()));
    norms_[q] = norm <= kLargestNorm ? norm : INFINITY;
    uint32_t* block = words_.data() + q / kWidth * kWidth * num_words_ + q % kWidth;
    for (int64_t k = 0; k < num_words_; ++k) block[k * kWidth] = words[k];
  }
}

void RoughTile::Set(const float* rows, const float* scales, const float* bias, int64_t num_rows) {
  num_rows_ = num_rows;
  bias_ = 0.0f;
  scale_ = 1.0f;
  float largest = 0.0f;
  for (int64_t r = 0; r < num_rows; ++r) {
    const float square = Words(rows + r * dim_, dim_, words_.data() + r * ((dim_ + 1) / 2));
    // What a scale makes small may have been too large before.
    Raise(scales == nullptr || !(square <= kLargestNorm) ? square : square * scales[r] * scales[r], &largest);
    if (scales != nullptr) Raise(scales[r], &scale_);
    if (bias != nullptr) Raise(std::abs(bias[r]), &bias_);
  }
  norm_ = std::sqrt(largest);
}

void RoughTile::Logits(const uint32_t* block, float* logits) const {
  LogitsOf(words_.data(), num_rows_, (dim_ + 1) / 2, block, logits);
}

bool RoughTile::Lower(const float* norms, const float* thresholds, float* lowered) const {
  if (!(norm_ <= kLargestNorm && bias_ <= kLargestNorm)) return false;
  // bfloat16, and twice the rounding of float32 sums over D; then that of scale, bias and threshold.
  const float of_products = 0.0078278f + (2 * dim_ + 16) * 1.2e-7f;
  // Products of such small numbers that they count as 0.
  const float of_zeros = 1e-36f * dim_ * scale_ * (1.0f + norm_);
  return LowerBy(of_products * norm_ + of_zeros, 1e-6f * bias_ + of_zeros, norms, thresholds, lowered);
}

int RowsAbove(const float* logits, int64_t num_rows, const float* thresholds, int32_t* rows) {
  return Above(logits, num_rows, thresholds, rows);
}

}  // namespace tfxc::dense_scan
