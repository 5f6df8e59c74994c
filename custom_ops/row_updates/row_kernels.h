// The arithmetic of one row, vectorised at run time. Everything else about a row update is bookkeeping.
#ifndef TFXC_CUSTOM_OPS_ROW_UPDATES_ROW_KERNELS_H_
#define TFXC_CUSTOM_OPS_ROW_UPDATES_ROW_KERNELS_H_

#include <algorithm>
#include <cstdint>

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

// Asks for the cache lines of a row; past a few the processor's own prefetcher has understood.
inline void PrefetchRow(const float* row, int64_t width) {
  constexpr int64_t kFloatsPerLine = 16, kMaxLines = 8;
  const int64_t end = std::min(width, kMaxLines * kFloatsPerLine);
  for (int64_t d = 0; d < end; d += kFloatsPerLine) __builtin_prefetch(row + d);
}

}  // namespace tfxc

#endif  // TFXC_CUSTOM_OPS_ROW_UPDATES_ROW_KERNELS_H_
