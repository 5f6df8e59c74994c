// A vector with a few rows of a table at once: their reads overlap, and what they share stays in registers.
#ifndef TFXC_COMMON_FEW_ROWS_H_
#define TFXC_COMMON_FEW_ROWS_H_

#include <cstdint>

#include "common/lanes.h"

namespace tfxc {

constexpr int kFewRows = 4;  // their sums fill half the registers of AVX2

// dots[r] = x * rows[r]. A row's has the same bits whatever the number of rows and the width of vectors.
template <typename Lanes, int kRows>
TFXC_INLINE void DotRows(const float* x, const float* const* rows, int64_t width, float* dots) {
  Lanes sums[kRows][kParts<Lanes>];
  // Unrolled, or the compiler keeps the sums in memory.
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts<Lanes>; ++part) sums[r][part] = Lanes{};
  }
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts<Lanes>; ++part) {
      const int64_t at = i + part * kSizeOf<Lanes>;
      const Lanes shared = Load<Lanes>(x + at);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sums[r][part] += shared * Load<Lanes>(rows[r] + at);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) dots[r] = Sum(sums[r]);
  for (; i < width; ++i) {
    for (int r = 0; r < kRows; ++r) dots[r] += x[i] * rows[r][i];
  }
}

// y += the sum of scales[r] * rows[r]
template <typename Lanes, int kRows>
TFXC_INLINE void AddScaledRows(const float* scales, const float* const* rows, float* __restrict y, int64_t width) {
  Lanes scale[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) scale[r] = Fill<Lanes>(scales[r]);
  int64_t i = 0;
  for (; i + kSizeOf<Lanes> <= width; i += kSizeOf<Lanes>) {
    Lanes sum = Load<Lanes>(y + i);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum += scale[r] * Load<Lanes>(rows[r] + i);
    Store(sum, y + i);
  }
  for (; i < width; ++i) {
    for (int r = 0; r < kRows; ++r) y[i] += scales[r] * rows[r][i];
  }
}

}  // namespace tfxc

#endif  // TFXC_COMMON_FEW_ROWS_H_
