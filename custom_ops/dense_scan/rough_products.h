// Logits in sixteen bits, by the fastest instructions of the processor. AMX multiplies tiles of bfloat16 and adds in
// float32, at eight times the rate of the others. AMD multiplies pairs of bfloat16 in vectors. Intel takes two cycles
// for these, no faster than with float32: there vectors hold float16, and sums are in float16, too.
#pragma once

#include <cstdint>

namespace tfxc::dense_scan {

enum class Format { kNone, kBfloat16, kFloat16, kBfloat16Tiles };

// The fastest way on this processor, and the number format that the code works with.
Format BestFormat();

// While an object lives, its thread can multiply tiles.
class TileConfiguration {
 public:
  TileConfiguration();
  ~TileConfiguration();
  TileConfiguration(const TileConfiguration&) = delete;
  TileConfiguration& operator=(const TileConfiguration&) = delete;
};

// Words of two numbers in a row of `dim`.
int64_t NumWords(int64_t dim);

// Packs numbers times `scale`, a power of two, which bfloat16 ignores. The words behind the last number must be 0.
void ToWords(const float* numbers, int64_t dim, float scale, uint32_t* words);

// logits[r * 48 + q] = Σ_k rows[r, k] · block[k, q], over both numbers of a word; with float16 times inverse_scales[q].
// rows and logits must have room for a tile, whatever num_rows is. A TileConfiguration of this thread must be alive.
void RoughLogits(const uint32_t* rows, int64_t num_rows, int64_t num_words, const uint32_t* block,
                 const float* inverse_scales, float* logits);

}  // namespace tfxc::dense_scan
