// A first look at logits, in sixteen bits: faster than float32, and precise enough to rule out nearly every class. The
// scan computes the other classes again in float32, so that the best classes and their scores are always those of
// float32.
//
// With a unit roundoff u, rounding its numbers moves a logit z · w by at most 2 u Σ|z_d w_d|, and each addition by at
// most u Σ|z_d w_d|, which is at most u |z| |w|. Sums of bfloat16 (u = 2^-8) are in float32, those of float16 (u =
// 2^-11) in float16. The few exponents of float16 need numbers of a known size: powers of two scale queries and tiles.
#pragma once

#include <cstdint>
#include <vector>

#include "common/aligned_vector.h"
#include "dense_scan/blocks.h"
#include "dense_scan/rough_products.h"

namespace tfxc::dense_scan {

// Whether a first look is faster on this processor. Only then may the functions below be called.
bool HasFirstLook();

// Queries in blocks of 48, [words, 48], two neighbouring numbers in one word.
class RoughQueries {
 public:
  RoughQueries() = default;
  RoughQueries(const float* query, int64_t count, int64_t dim);

 private:
  friend class RoughTile;
  int64_t num_words_ = 0;
  AlignedVector<uint32_t> words_;
  std::vector<float> norms_, inverse_scales_;
};

// The classes of a tile, [rows, words], for the thread that made it.
class RoughTile {
 public:
  explicit RoughTile(int64_t dim) : dim_(dim), num_words_(NumWords(dim)), words_(kTileClasses * num_words_) {}

  // Reads rows of D numbers. scales and bias are applied after the product; either may be null.
  void Set(const float* rows, const float* scales, const float* bias, int64_t num_rows);

  // logits[r * 48 + q] of a block, before scales and bias.
  void Logits(const RoughQueries& queries, int64_t block, float* logits) const;

  // The bounds for a block: a logit that is not above its bound cannot be above the threshold of its query in float32.
  // False where they rule nothing out, or a number is not finite or too large for a bound.
  bool Lower(const RoughQueries& queries, int64_t block, const float* thresholds, float* lowered) const;

 private:
  int64_t dim_, num_words_, num_rows_ = 0;
  float norm_ = 0.0f, scale_ = 1.0f, bias_ = 0.0f;  // the largest
  float inverse_scale_ = 1.0f;                      // of the words
  AlignedVector<uint32_t> words_;
  TileConfiguration configuration_;
};

// The rows of a tile in which the logit of any query is above its threshold; returns how many.
int RowsAbove(const float* logits, int64_t num_rows, const float* thresholds, int32_t* rows);

}  // namespace tfxc::dense_scan
