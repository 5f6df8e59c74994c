#include "dense_scan/first_look.h"

#include <algorithm>
#include <cmath>

#include "common/simd.h"
#include "common/vectorize.h"

#ifdef TFXC_WIDE
#include <immintrin.h>
#endif

namespace tfxc::dense_scan {
namespace {

constexpr int kWidth = kBlockWidths[1];
// Above the largest norm, a square or a product of two norms may be infinite; below the smallest, 0.
constexpr float kLargestNorm = 1e15f, kSmallestNorm = 0x1p-60f;
// Bounds of norms in float16: of the largest row of a tile, and of each query. Products stay below 2^15.
constexpr int kTileExponent = 8, kQueryExponent = 7;

// NaN stays.
void Raise(float x, float* largest) {
  if (!(x <= *largest) && *largest == *largest) *largest = x;
}

// The power of two that scales a norm into [2^exponent / 2, 2^exponent).
float ScaleTo(int exponent, float norm) {
  int own;
  std::frexp(std::max(norm, kSmallestNorm), &own);
  return std::ldexp(1.0f, exponent - own);
}

TFXC_VECTORIZE float Norm(const float* numbers, int64_t dim) { return std::sqrt(Dot(numbers, numbers, dim)); }

#ifdef TFXC_WIDE
// lowered = thresholds - slope * norms - shift; returns whether all are above -infinity, and none is NaN.
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
bool LowerBy(float, float, const float*, const float*, float*) { return false; }
int Above(const float*, int64_t, const float*, int32_t*) { return 0; }
#endif

}  // namespace

bool HasFirstLook() { return BestFormat() != Format::kNone; }

RoughQueries::RoughQueries(const float* query, int64_t count, int64_t dim)
    : num_words_(NumWords(dim)), words_((count + kWidth - 1) / kWidth * kWidth * num_words_) {
  norms_.resize((count + kWidth - 1) / kWidth * kWidth);
  inverse_scales_.resize(norms_.size());
  std::vector<uint32_t> words(num_words_);
  for (int64_t q = 0; q < count; ++q) {
    const float* row = query + q * dim;
    const float norm = Norm(row, dim), scale = ScaleTo(kQueryExponent, norm);
    // Queries of zeros are common, as padding; the norm of a query of other numbers whose squares are 0 is unknown.
    const bool is_known = std::all_of(row, row + dim, [](float x) { return x == 0.0f; }) ||
                          (kSmallestNorm <= norm && norm <= kLargestNorm);
    norms_[q] = is_known ? norm : INFINITY;
    inverse_scales_[q] = 1.0f / scale;
    ToWords(row, dim, scale, words.data());
    uint32_t* block = words_.data() + q / kWidth * kWidth * num_words_ + q % kWidth;
    for (int64_t k = 0; k < num_words_; ++k) block[k * kWidth] = words[k];
  }
}

void RoughTile::Set(const float* rows, const float* scales, const float* bias, int64_t num_rows) {
  num_rows_ = num_rows;
  bias_ = 0.0f;
  scale_ = 1.0f;
  norm_ = 0.0f;
  float largest = 0.0f;  // before scaling
  for (int64_t r = 0; r < num_rows; ++r) {
    const float own = Norm(rows + r * dim_, dim_), norm = own < kSmallestNorm ? kSmallestNorm : own;
    Raise(norm, &largest);
    // A row that its scale makes small may have been too large before.
    Raise(scales == nullptr || !(norm <= kLargestNorm) ? norm : norm * scales[r], &norm_);
    if (scales != nullptr) Raise(scales[r], &scale_);
    if (bias != nullptr) Raise(std::abs(bias[r]), &bias_);
  }
  if (!(norm_ <= kLargestNorm)) return;  // then nobody reads its logits
  const float scale = ScaleTo(kTileExponent, largest);
  inverse_scale_ = 1.0f / scale;
  for (int64_t r = 0; r < num_rows; ++r) {
    ToWords(rows + r * dim_, dim_, scale, words_.data() + r * num_words_);
  }
}

void RoughTile::Logits(const RoughQueries& queries, int64_t block, float* logits) const {
  float inverse_scales[kWidth];
  for (int q = 0; q < kWidth; ++q) inverse_scales[q] = queries.inverse_scales_[block * kWidth + q] * inverse_scale_;
  const uint32_t* words = queries.words_.data() + block * num_words_ * kWidth;
  RoughLogits(words_.data(), num_rows_, num_words_, words, inverse_scales, logits);
}

bool RoughTile::Lower(const RoughQueries& queries, int64_t block, const float* thresholds, float* lowered) const {
  if (!(norm_ <= kLargestNorm && bias_ <= kLargestNorm)) return false;
  float of_products = 0.0078278f;  // bfloat16: 2 · 2^-8 + 2^-16
  float of_small = 0.0f;
  if (BestFormat() == Format::kFloat16) {
    of_products = 0.0176f;  // (2 + 32 + 1) · 2^-11, and a little more for their products
    // Rounding moves numbers and sums below 2^-14 by 2^-25 each, whatever their size.
    const float moved = (0x1p8f + 0x1p7f) * std::sqrt(static_cast<float>(dim_)) + dim_;
    of_small = 0x1p-25f * moved * scale_ * inverse_scale_ / (1 << (kQueryExponent - 1));
  }
  // Twice the rounding of float32 sums over D, and that of scale, bias and threshold.
  of_products += (2 * dim_ + 16) * 1.2e-7f;
  // Products of numbers so small that they count as 0.
  const float of_zeros = 1e-36f * dim_ * scale_ * (1.0f + norm_);
  const float slope = of_products * norm_ + of_small + of_zeros;
  return LowerBy(slope, 1e-6f * bias_ + of_zeros, queries.norms_.data() + block * kWidth, thresholds, lowered);
}

int RowsAbove(const float* logits, int64_t num_rows, const float* thresholds, int32_t* rows) {
  return Above(logits, num_rows, thresholds, rows);
}

}  // namespace tfxc::dense_scan
