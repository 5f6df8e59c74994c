// The arithmetic of one row, vectorised at run time.
#pragma once

#include <cstdint>

#include "common/bfloat16.h"
#include "common/philox.h"

namespace tfxc {

struct AdamScalars {
  float learning_rate, one_minus_beta_1, one_minus_beta_2, epsilon;
};

// sum = multiplier * row, and sum += multiplier * row
void SetMultiple(float multiplier, const float* row, float* sum, int64_t width);
void AddMultiple(float multiplier, const float* row, float* sum, int64_t width);
// x -= learning_rate * g
void SgdRow(const float* g, float learning_rate, float* x, int64_t width);
// m += (g - m)(1 - beta_1);  v += (g^2 - v)(1 - beta_2);  x -= learning_rate * m / (sqrt(v) + epsilon)
void AdamRow(const float* g, const AdamScalars& scalars, float* x, float* m, float* v, int64_t width);
// mean of g^2, summed in a fixed order
float MeanSquare(const float* g, int64_t width);

// The number of 128-bit random numbers of a row, 16 bits for each of its numbers: Philox makes eight at once.
constexpr int64_t NumCounters(int64_t width) { return (width + 63) / 64 * 8; }
// Writes the random bits of a row, stream `row` of the seed, into 2 * NumCounters words.
void DrawForRow(const Seed& seed, uint32_t row, int64_t width, uint64_t* random);
// The bfloat16 of x, rounded stochastically by the row's random bits.
void RoundRow(const float* x, const uint64_t* random, int64_t width, Bfloat16* out);

}  // namespace tfxc
