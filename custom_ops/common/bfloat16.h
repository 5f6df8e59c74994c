// bfloat16, the upper half of a float's bits: read exactly, written by stochastic rounding.
#ifndef TFXC_COMMON_BFLOAT16_H_
#define TFXC_COMMON_BFLOAT16_H_

#include <cstdint>
#include <cstring>

#include "common/simd.h"

namespace tfxc {

struct Bfloat16 {
  uint16_t bits;
};

// The numbers as floats.
void Widen(const Bfloat16* from, int64_t count, float* to);

// Of the two neighbours of x the upper one with the chance that makes x the mean, `random` being uniform: what is a
// bfloat16 stays, NaN stays, and what is finite becomes the largest finite number rather than infinite.
TFXC_INLINE Bfloat16 RoundStochastically(float x, uint16_t random) {
  constexpr uint32_t kInfinity = 0x7f800000u, kSign = 0x80000000u;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint32_t size = bits & ~kSign, up = (bits + random) >> 16;
  const uint32_t finite = up - (size < kInfinity && (up & 0x7fffu) == kInfinity >> 16);
  return {static_cast<uint16_t>(size > kInfinity ? bits >> 16 | 0x40u : finite)};
}

}  // namespace tfxc

#endif  // TFXC_COMMON_BFLOAT16_H_
