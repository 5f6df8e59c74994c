// Sixteen numbers that the compiler keeps in the widest registers there are, in functions marked TFXC_VECTORIZE.
#ifndef TFXC_COMMON_LANES_H_
#define TFXC_COMMON_LANES_H_

#include <cstdint>
#include <cstring>

#include "common/simd.h"

namespace tfxc {

typedef float Lanes __attribute__((vector_size(64), aligned(64)));
typedef int32_t IntLanes __attribute__((vector_size(64), aligned(64)));
typedef uint32_t UintLanes __attribute__((vector_size(64), aligned(64)));

// Sixteen floats from anywhere.
TFXC_INLINE Lanes Load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

// Whether a comparison holds in any lane.
TFXC_INLINE bool Any(IntLanes mask) {
  int64_t words[8], any = 0;
  std::memcpy(words, &mask, sizeof(mask));
  for (int64_t word : words) any |= word;
  return any != 0;
}

}  // namespace tfxc

#endif  // TFXC_COMMON_LANES_H_
