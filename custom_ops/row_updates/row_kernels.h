// The arithmetic of one row, vectorised at run time. Everything else about a row update is bookkeeping.
#ifndef TFXC_ROW_UPDATES_ROW_KERNELS_H_
#define TFXC_ROW_UPDATES_ROW_KERNELS_H_

#include <cstdint>

#include "common/bfloat16.h"
#include "common/philox.h"

namespace tfxc {

struct AdamScalars {
  float learning_rate, one_minus_beta_1, one_minus_beta_2, epsilon;
};

// sum += row
void AddRow(const float* row, float* sum, int64_t width);
// x -= learning_rate * g
void SgdRow(const float* g, float learning_rate, float* x, int64_t width);
// m += (g - m)(1 - beta_1);  v += (g^2 - v)(1 - beta_2);  x -= learning_rate * m / (sqrt(v) + epsilon)
void AdamRow(const float* g, const AdamScalars& scalars, float* x, float* m, float* v, int64_t width);
// mean of g^2, summed in a fixed order
float MeanSquare(const float* g, int64_t width);

void WidenRow(const Bfloat16* row, int64_t width, float* x);
// How many random numbers of 128 bits a row takes, 16 bits each of its numbers.
constexpr int64_t NumCounters(int64_t width) { return (width + 7) / 8; }
// The bfloat16 of x, rounded by the random bits of stream `row` of the seed; `random` has room for 2 * NumCounters.
void RoundRow(const float* x, int64_t width, const Seed& seed, uint32_t row, uint64_t* random, Bfloat16* out);

}  // namespace tfxc

#endif  // TFXC_ROW_UPDATES_ROW_KERNELS_H_
