// Philox4x32-10, a counter-based random number generator: the number belonging to a counter
// does not depend on what was drawn before, so results do not depend on the threads.
// Reference: Salmon, Moraes, Dror, Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
#ifndef TFXC_COMMON_PHILOX_H_
#define TFXC_COMMON_PHILOX_H_

#include <cstdint>

#include "common/simd.h"

namespace tfxc {

// What an op's seed [2] says: the key, and the upper half of the counter.
struct Seed {
  uint64_t key, sequence;
};

// Fills first[i], second[i] with the 128 random bits of counter {i, stream, sequence} under the key.
TFXC_INLINE void Philox(const Seed& seed, uint32_t stream, int64_t count, uint64_t* __restrict first,
                        uint64_t* __restrict second) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t x0 = static_cast<uint32_t>(i), x1 = stream;
    uint32_t x2 = static_cast<uint32_t>(seed.sequence), x3 = static_cast<uint32_t>(seed.sequence >> 32);
    uint32_t key0 = static_cast<uint32_t>(seed.key), key1 = static_cast<uint32_t>(seed.key >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t product0 = uint64_t{0xD2511F53u} * x0;
      const uint64_t product1 = uint64_t{0xCD9E8D57u} * x2;
      x0 = static_cast<uint32_t>(product1 >> 32) ^ x1 ^ key0;
      x2 = static_cast<uint32_t>(product0 >> 32) ^ x3 ^ key1;
      x1 = static_cast<uint32_t>(product1);
      x3 = static_cast<uint32_t>(product0);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    first[i] = uint64_t{x1} << 32 | x0;
    second[i] = uint64_t{x3} << 32 | x2;
  }
}

// The random bits of eight counters at once, from {i, stream, sequence} on: for few of them.
typedef uint64_t EightWords __attribute__((vector_size(64), aligned(64)));
TFXC_INLINE void EightPhilox(const Seed& seed, uint32_t stream, int64_t i, EightWords* first, EightWords* second) {
  constexpr uint64_t kLow = 0xffffffffu;
  EightWords x0 = EightWords{0, 1, 2, 3, 4, 5, 6, 7} + static_cast<uint64_t>(i), x1 = EightWords{} + stream;
  EightWords x2 = EightWords{} + (seed.sequence & kLow), x3 = EightWords{} + (seed.sequence >> 32);
  uint64_t key0 = seed.key & kLow, key1 = seed.key >> 32;
  for (int round = 0; round < 10; ++round) {
    const EightWords product0 = x0 * uint64_t{0xD2511F53u}, product1 = x2 * uint64_t{0xCD9E8D57u};
    x0 = (product1 >> 32) ^ x1 ^ key0;
    x2 = (product0 >> 32) ^ x3 ^ key1;
    x1 = product1 & kLow;
    x3 = product0 & kLow;
    key0 = (key0 + 0x9E3779B9u) & kLow;
    key1 = (key1 + 0xBB67AE85u) & kLow;
  }
  *first = x1 << 32 | x0;
  *second = x3 << 32 | x2;
}

// As Philox, vectorised.
void FillBits(const Seed& seed, uint32_t stream, int64_t count, uint64_t* first, uint64_t* second);

// Uniform in [0, 1), a multiple of 2^-53.
TFXC_INLINE double ToUnit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

// Uniform in [0, size): the high half of a 64 x 64 bit product; its bias is below size / 2^64.
TFXC_INLINE uint64_t ToRange(uint64_t bits, uint64_t size) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * size) >> 64);
}

}  // namespace tfxc

#endif  // TFXC_COMMON_PHILOX_H_
