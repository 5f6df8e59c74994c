// A table much smaller than L that holds a number for each of some classes, of which few share a place.
#ifndef TFXC_MACH_DECODE_SKETCH_H_
#define TFXC_MACH_DECODE_SKETCH_H_

#include <cstdint>

#include "common/lanes.h"

namespace tfxc {

// The table has 2^bits places, twice as many as classes are expected in it.
inline int SketchBits(int64_t num_candidates) {
  int bits = 4;
  while (bits < 31 && int64_t{1} << bits < 2 * num_candidates) ++bits;
  return bits;
}

template <typename Ids>
TFXC_INLINE Ids Place(Ids ids, int bits) {
  return ids * 0x9E3779B1u >> (32 - bits);
}

}  // namespace tfxc

#endif  // TFXC_MACH_DECODE_SKETCH_H_
