// A run of consecutive classes whose logits lie in a buffer, a row for each query, and how it reaches the output.
//
// Rows of an output lie pages apart, where long runs are faster than single lines.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "common/lanes.h"

namespace tfxc {

constexpr int64_t kRun = 512;  // classes whose logits are in the cache at once
constexpr int64_t kTurnedStride = kRun + kLanes;  // a query's logits of a run, and the padding of a last block
constexpr int64_t kCacheBytes = 16 << 20;  // larger outputs are not read again from a cache

// A copy that bypasses the caches where it fills whole lines: an ordinary store first reads the line from memory.
inline void Stream(const float* from, int64_t size, float* to) {
#ifdef __SSE2__
  const int64_t until_line = (kCacheLine - reinterpret_cast<uintptr_t>(to) % kCacheLine) % kCacheLine / sizeof(float);
  if (size >= until_line + kLanes) {
    std::copy_n(from, until_line, to);
    int64_t i = until_line;
    for (; i + kLanes <= size; i += kLanes) {
      for (int j = 0; j < kLanes; j += 4) _mm_stream_ps(to + i + j, _mm_loadu_ps(from + i + j));
    }
    from += i, to += i, size -= i;
  }
#endif
  std::copy_n(from, size, to);
}

// Call it before another thread reads what was streamed.
inline void EndStreams() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// Whether the logits of one tile, which are written one after the other, should be streamed.
inline bool IsLarge(int64_t count, int64_t stride) {
  return count * stride * static_cast<int64_t>(sizeof(float)) > kCacheBytes;
}

// logits[q * stride + l] = turned[q * kTurnedStride + l] for `count` queries and `size` classes.
inline void WriteRun(const float* turned, int64_t count, int64_t size, bool is_large, float* logits, int64_t stride) {
  for (int64_t q = 0; q < count; ++q) {
    const float* from = turned + q * kTurnedStride;
    if (is_large) {
      Stream(from, size, logits + q * stride);
    } else {
      std::copy_n(from, size, logits + q * stride);
    }
  }
}

}  // namespace tfxc
