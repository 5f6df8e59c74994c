// Short vector loops, inlined into functions marked TFXC_VECTORIZE. Sums use a fixed number of partial sums, so the
// compiler may vectorise them without -ffast-math, and the order of summation is the same for every vector width. The
// rest after whole vectors may be rounded otherwise on another processor.
#pragma once

#include <algorithm>
#include <cstdint>

#define TFXC_INLINE inline __attribute__((always_inline))

namespace tfxc {

constexpr int kLanes = 16;
constexpr int64_t kCacheLine = 64;  // bytes

// Prefetches the first cache lines of a row; the hardware continues from there. It goes into the second-level cache,
// since the first level has too few outstanding misses for scattered rows.
template <typename T>
TFXC_INLINE void PrefetchRow(const T* row, int64_t width) {
  constexpr int64_t kALine = kCacheLine / sizeof(T);
  const int64_t ahead = width < 16 * kALine ? width : 16 * kALine;
  for (int64_t i = 0; i < ahead; i += kALine) {
    __builtin_prefetch(row + i, /*rw=*/0, /*locality=*/2);
  }
}

// The same bits as Sum of lanes.h.
TFXC_INLINE float SumLanes(const float* lanes) {
  float eight[8], four[4];
  for (int j = 0; j < 8; ++j) eight[j] = lanes[j] + lanes[j + 8];
  for (int j = 0; j < 4; ++j) four[j] = eight[j] + eight[j + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

TFXC_INLINE float Dot(const float* x, const float* y, int64_t width) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += x[i + j] * y[i + j];
  }
  float sum = SumLanes(lanes);
  for (; i < width; ++i) sum += x[i] * y[i];
  return sum;
}

// y += a * x
TFXC_INLINE void AddScaled(float a, const float* __restrict x, float* __restrict y, int64_t width) {
  for (int64_t i = 0; i < width; ++i) y[i] += a * x[i];
}

// y = a * x
TFXC_INLINE void ScaleInto(float a, const float* __restrict x, float* __restrict y, int64_t width) {
  for (int64_t i = 0; i < width; ++i) y[i] = a * x[i];
}

// y = x, or y += x
TFXC_INLINE void Write(const float* from, int64_t size, bool add, float* to) {
  if (add) {
    AddScaled(1.0f, from, to, size);
  } else {
    std::copy_n(from, size, to);
  }
}

}  // namespace tfxc
