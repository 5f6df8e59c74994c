// Philox4x32-10, a counter-based random number generator: the number of a counter does not depend on earlier draws, so
// results do not depend on the threads.
// Reference: Salmon, Moraes, Dror, Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
#pragma once

#include <cstdint>

#include "common/simd.h"

namespace tfxc {

// An op's seed [2]: the key, and the upper half of the counter.
struct Seed {
  uint64_t key, sequence;
};

// Fills first[i], second[i] with the 128 random bits of counter {i, stream, sequence} under the key.
void FillBits(const Seed& seed, uint32_t stream, int64_t count, uint64_t* first, uint64_t* second);

// Uniform in [0, 1), a multiple of 2^-53.
TFXC_INLINE double ToUnit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

// Uniform in [0, size): the high half of a 64 x 64 bit product; its bias is below size / 2^64.
TFXC_INLINE uint64_t ToRange(uint64_t bits, uint64_t size) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * size) >> 64);
}

}  // namespace tfxc
