#include "dense_scan/tile_gradient.h"

#include <algorithm>

#include "common/folds.h"
#include "common/products.h"

namespace tfxc::dense_scan {
namespace {

// The gradient of a row from that of the normalised row; 0 where the norm is below the epsilon: it would be huge.
void ThroughNorm(const float* normalized, float scale, int64_t dim, float* gradient) {
  if (scale >= 1.0f / tiles::kNormEpsilon) {
    std::fill_n(gradient, dim, 0.0f);
    return;
  }
  const float along = Dot(normalized, gradient, dim);
  for (int64_t d = 0; d < dim; ++d) gradient[d] = scale * (gradient[d] - along * normalized[d]);
}

}  // namespace

TileGradient::TileGradient(Reduction reduction, bool normalize, int64_t dim)
    : reduction_(reduction),
      normalize_(normalize),
      dim_(dim),
      padded_(PaddedDim(dim)),
      rows_(kTileClasses * padded_),
      own_(kTileClasses * padded_) {}

void TileGradient::Start(const float* rows, const float* bias, int64_t num_rows) {
  given_ = rows;
  bias_ = bias;
  num_rows_ = num_rows;
  std::fill(rows_.begin(), rows_.end(), 0.0f);
  std::fill(own_.begin(), own_.end(), 0.0f);
  std::fill_n(row_sums_, kTileClasses, 0.0f);
  if (normalize_) tiles::InverseNorms(rows, num_rows, dim_, scales_);
  for (int64_t r = 0; r < num_rows; ++r) {
    ScaleInto(normalize_ ? scales_[r] : 1.0f, rows + r * dim_, rows_.data() + r * padded_, dim_);
  }
}

void TileGradient::Add(const QueryBlock& block) {
  alignas(64) float gradient[kTileClasses * kBlockWidths[1]];
  // Computed from the rows themselves and scaled afterwards: the same bits as in the scan.
  tiles::Logits(given_, dim_, num_rows_, block.columns, block.width, dim_, gradient);
  if (normalize_ || bias_ != nullptr) {
    tiles::ScaleAndShift(normalize_ ? scales_ : nullptr, bias_, num_rows_, block.width, gradient);
  }
  tiles::ToGradient(reduction_, block.reduced, block.upstream, num_rows_, block.width, gradient,
                    bias_ == nullptr ? nullptr : row_sums_);
  const int64_t whole = (num_rows_ + 3) / 4 * 4;  // the products take a multiple of 4 rows
  std::fill(gradient + num_rows_ * block.width, gradient + whole * block.width, 0.0f);
  tiles::AddRowGradients(gradient, block.width, whole, block.rows, padded_, own_.data());
  tiles::AddQueryGradients(gradient, block.width, whole, rows_.data(), padded_, block.gradients);
}

void TileGradient::Finish(bool add, float* d_rows, float* d_bias) {
  for (int64_t r = 0; r < num_rows_; ++r) {
    float* own = own_.data() + r * padded_;
    if (normalize_) ThroughNorm(rows_.data() + r * padded_, scales_[r], dim_, own);
    Write(own, dim_, add, d_rows + r * dim_);
  }
  if (bias_ != nullptr) Write(row_sums_, num_rows_, add, d_bias);
}

}  // namespace tfxc::dense_scan
