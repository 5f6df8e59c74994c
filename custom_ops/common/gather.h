// Table look-ups by a vector of indices. A compiler that tunes for no particular processor makes single loads; the
// gather instruction is twice as fast.
#pragma once

#include <cstdint>

#include "common/vectorize.h"

#ifdef TFXC_AVX2
#include <immintrin.h>
#endif

namespace tfxc {

// out[i] = table[index[i]] for i below count.
TFXC_NO_AVX2 inline void Gather(const float* __restrict table, const uint32_t* __restrict index, int64_t count,
                                float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = table[index[i]];
}

#ifdef TFXC_AVX2
// Indices are below 2^31.
TFXC_AVX2 inline void Gather(const float* __restrict table, const uint32_t* __restrict index, int64_t count,
                             float* __restrict out) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256i at = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(index + i));
    _mm256_storeu_ps(out + i, _mm256_i32gather_ps(table, at, sizeof(float)));
  }
  for (; i < count; ++i) out[i] = table[index[i]];
}
#endif

}  // namespace tfxc
