// A first look at logits, in bfloat16: twice as fast, and near enough to rule out nearly every class. What it cannot
// rule out is looked at again in float32, so that the best classes and their scores are those of float32, always.
//
// Rounding to bfloat16 moves a number by at most 2^-8 of it, so a logit z · w by at most (2 · 2^-8 + 2^-16) Σ|z_d w_d|,
// which is at most |z| |w| times that.
#ifndef TFXC_DENSE_SCAN_FIRST_LOOK_H_
#define TFXC_DENSE_SCAN_FIRST_LOOK_H_

#include <cstdint>
#include <vector>

#include "dense_scan/blocks.h"

namespace tfxc::dense_scan {

// Whether the processor multiplies bfloat16. The functions below may be called only then.
bool HasFirstLook();

// Queries as blocks of 48, [D / 2, 48], two neighbouring numbers in one word.
class RoughQueries {
 public:
  RoughQueries() = default;
  RoughQueries(const float* query, int64_t count, int64_t dim);

  const uint32_t* block(int64_t index) const { return words_.data() + index * num_words_ * kBlockWidths[1]; }
  const float* norms(int64_t index) const { return norms_.data() + index * kBlockWidths[1]; }

 private:
  int64_t num_words_ = 0;
  std::vector<uint32_t> words_;
  std::vector<float> norms_;
};

// The classes of a tile, [rows, D / 2].
class RoughTile {
 public:
  explicit RoughTile(int64_t dim) : dim_(dim), words_(kTileClasses * ((dim + 1) / 2)) {}

  // Takes in rows of `stride` numbers. scales and bias are those that follow the product; either may be null.
  void Set(const float* rows, const float* scales, const float* bias, int64_t num_rows);

  // logits[r * 48 + q] of a block, before scales and bias.
  void Logits(const uint32_t* block, float* logits) const;

  // What a logit must be above, or else float32's cannot be above the threshold of its query in a block. False where
  // that rules nothing out, or a number is not finite or so large that nothing is known.
  bool Lower(const float* norms, const float* thresholds, float* lowered) const;

 private:
  int64_t dim_, num_rows_ = 0;
  float norm_ = 0.0f, scale_ = 1.0f, bias_ = 0.0f;  // the largest
  std::vector<uint32_t> words_;
};

// The rows of a tile in which the logit of any query is above its threshold; returns how many.
int RowsAbove(const float* logits, int64_t num_rows, const float* thresholds, int32_t* rows);

}  // namespace tfxc::dense_scan

#endif  // TFXC_DENSE_SCAN_FIRST_LOOK_H_
