// bfloat16, the upper half of a float's bits: exact reads, and writes by stochastic rounding.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/simd.h"

namespace tfxc {

struct Bfloat16 {
  uint16_t bits;
};

// The numbers as floats.
void Widen(const Bfloat16* from, int64_t count, float* to);

// Rounds x up or down with the chance that makes x the mean, where `random` is uniform. A number that is a bfloat16
// already stays, NaN stays, and a finite number becomes the largest finite number rather than infinite.
TFXC_INLINE Bfloat16 RoundStochastically(float x, uint16_t random) {
  constexpr uint32_t kInfinity = 0x7f800000u, kSign = 0x80000000u;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint32_t size = bits & ~kSign, up = (bits + random) >> 16;
  const uint32_t finite = up - (size < kInfinity && (up & 0x7fffu) == kInfinity >> 16);
  return {static_cast<uint16_t>(size > kInfinity ? bits >> 16 | 0x40u : finite)};
}

}  // namespace tfxc
