// Logits in sixteen bits, by what the processor has for them. AMX multiplies tiles of bfloat16 and adds in float32, at
// eight times the rate of the rest. AMD multiplies pairs of bfloat16 in vectors; Intel takes two cycles for these, and
// is no faster than with float32: there vectors are of float16, in which it adds, too.
#ifndef TFXC_DENSE_SCAN_ROUGH_PRODUCTS_H_
#define TFXC_DENSE_SCAN_ROUGH_PRODUCTS_H_

#include <cstdint>

namespace tfxc::dense_scan {

enum class Format { kNone, kBfloat16, kFloat16, kBfloat16Tiles };

// What this processor is fastest with, and what the rest works with.
Format BestFormat();

// While one lives, its thread can multiply by tiles.
class TileConfiguration {
 public:
  TileConfiguration();
  ~TileConfiguration();
  TileConfiguration(const TileConfiguration&) = delete;
  TileConfiguration& operator=(const TileConfiguration&) = delete;
};

// Words of two numbers in a row of `dim`.
int64_t NumWords(int64_t dim);

// Numbers times `scale`, a power of two, which bfloat16 leaves as they are. What no number is written to, behind the
// last one, must be 0.
void ToWords(const float* numbers, int64_t dim, float scale, uint32_t* words);

// logits[r * 48 + q] = Σ_k rows[r, k] · block[k, q], both numbers of a word; with float16 times inverse_scales[q].
// There is room for a tile of rows and of logits, whatever num_rows is. A TileConfiguration of this thread must be alive.
void RoughLogits(const uint32_t* rows, int64_t num_rows, int64_t num_words, const uint32_t* block,
                 const float* inverse_scales, float* logits);

}  // namespace tfxc::dense_scan

#endif  // TFXC_DENSE_SCAN_ROUGH_PRODUCTS_H_
