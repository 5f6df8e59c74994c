// A first look at logits, in sixteen bits: faster, and near enough to rule out nearly every class. What it cannot rule out
// is looked at again in float32, so that the best classes and their scores are those of float32, always.
//
// With a unit roundoff u, a logit z · w moves by at most 2 u Σ|z_d w_d| as its numbers are rounded, and by u times that
// for each addition; Σ|z_d w_d| is at most |z| |w|. bfloat16 (u = 2^-8) is added in float32, float16 (u = 2^-11) in
// itself; and its few exponents need numbers of a known size: queries and tiles are scaled by powers of two.
#ifndef TFXC_DENSE_SCAN_FIRST_LOOK_H_
#define TFXC_DENSE_SCAN_FIRST_LOOK_H_

#include <cstdint>
#include <vector>

#include "common/aligned_vector.h"
#include "dense_scan/blocks.h"
#include "dense_scan/rough_products.h"

namespace tfxc::dense_scan {

// Whether the processor gains by a first look. The functions below may be called only then.
bool HasFirstLook();

// Queries as blocks of 48, [words, 48], two neighbouring numbers in one word.
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

  // Takes in rows of D numbers. scales and bias are those that follow the product; either may be null.
  void Set(const float* rows, const float* scales, const float* bias, int64_t num_rows);

  // logits[r * 48 + q] of a block, before scales and bias.
  void Logits(const RoughQueries& queries, int64_t block, float* logits) const;

  // What a logit must be above, or else float32's cannot be above the threshold of its query in a block. False where
  // that rules nothing out, or a number is not finite or so large that nothing is known.
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

#endif  // TFXC_DENSE_SCAN_FIRST_LOOK_H_
