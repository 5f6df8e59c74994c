// The largest of very many numbers, most of which are never looked at one by one.
#ifndef TFXC_MACH_DECODE_LARGEST_H_
#define TFXC_MACH_DECODE_LARGEST_H_

#include <cstdint>
#include <vector>

#include "mach_decode/best.h"

namespace tfxc {

// What the `wanted` largest numbers are at least. A few more may be.
float FloorOfLargest(const float* values, int64_t count, int64_t wanted);

// The positions of the largest numbers, as ids, largest first; fewer than `wanted` only where NaN and -inf, which are
// passed over, leave fewer.
void FindLargest(const float* values, int64_t count, int64_t wanted, std::vector<Scored>* largest);

}  // namespace tfxc

#endif  // TFXC_MACH_DECODE_LARGEST_H_
