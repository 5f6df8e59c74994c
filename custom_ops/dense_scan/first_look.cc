#include "dense_scan/first_look.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/lanes.h"
#include "common/simd.h"
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

// To the nearest, as the hardware does.
uint32_t Rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Two numbers in a word, the first in the lower half; behind an odd D stands 0.
uint32_t Word(const float* numbers, int64_t d, int64_t dim) {
  return Rounded(numbers[d]) | (d + 1 < dim ? Rounded(numbers[d + 1]) << 16 : 0);
}

TFXC_VECTORIZE void Words(const float* numbers, int64_t dim, uint32_t* words) {
  for (int64_t d = 0; d < dim; d += 2) words[d / 2] = Word(numbers, d, dim);
}

float Norm(const float* numbers, int64_t dim) { return std::sqrt(Dot(numbers, numbers, dim)); }

// NaN stays.
void Raise(float x, float* largest) {
  if (!(x <= *largest) && *largest == *largest) *largest = x;
}

#ifdef TFXC_BFLOAT16
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
#else
void LogitsOf(const uint32_t*, int64_t, int64_t, const uint32_t*, float*) {}
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
    Words(query + q * dim, dim, words.data());
    uint32_t* block = &words_[q / kWidth * kWidth * num_words_ + q % kWidth];
    for (int64_t k = 0; k < num_words_; ++k) block[k * kWidth] = words[k];
    norms_[q] = Norm(query + q * dim, dim);
  }
}

void RoughTile::Set(const float* rows, const float* scales, const float* bias, int64_t num_rows) {
  num_rows_ = num_rows;
  norm_ = bias_ = 0.0f;
  scale_ = 1.0f;
  for (int64_t r = 0; r < num_rows; ++r) {
    Words(rows + r * dim_, dim_, &words_[r * ((dim_ + 1) / 2)]);
    const float norm = Norm(rows + r * dim_, dim_);
    Raise(norm <= kLargestNorm ? norm * (scales == nullptr ? 1.0f : scales[r]) : norm, &norm_);
    if (scales != nullptr) Raise(scales[r], &scale_);
    if (bias != nullptr) Raise(std::abs(bias[r]), &bias_);
  }
}

void RoughTile::Logits(const uint32_t* block, float* logits) const {
  LogitsOf(words_.data(), num_rows_, (dim_ + 1) / 2, block, logits);
}

bool RoughTile::Slack(const float* norms, float* slack) const {
  if (!(norm_ <= kLargestNorm && bias_ <= kLargestNorm)) return false;
  // bfloat16, and twice the rounding of float32 sums over D; then that of scale, bias and threshold.
  const float of_products = 0.0078278f + (2 * dim_ + 16) * 1.2e-7f;
  // Products of such small numbers that they count as 0.
  const float of_zeros = 1e-36f * dim_ * scale_;
  for (int q = 0; q < kWidth; ++q) {
    if (!(norms[q] <= kLargestNorm)) return false;
    slack[q] = of_products * norms[q] * norm_ + 1e-6f * bias_ + of_zeros * (1.0f + norms[q]) * (1.0f + norm_);
  }
  return true;
}

TFXC_VECTORIZE int RowsAbove(const float* logits, int64_t num_rows, const float* thresholds, int32_t* rows) {
  const Lanes first = Load(thresholds), second = Load(thresholds + kLanes), third = Load(thresholds + 2 * kLanes);
  int count = 0;
  for (int64_t r = 0; r < num_rows; ++r) {
    const float* own = logits + r * kWidth;
    rows[count] = static_cast<int32_t>(r);
    count += Any((Load(own) > first) | (Load(own + kLanes) > second) | (Load(own + 2 * kLanes) > third));
  }
  return count;
}

}  // namespace tfxc::dense_scan
