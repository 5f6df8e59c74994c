// The largest of very many numbers, without a comparison for each.
#pragma once

#include <cstdint>
#include <vector>

#include "mach_decode/best.h"

namespace tfxc {

// A lower bound of the `wanted` largest numbers. A few more numbers may reach it.
float FloorOfLargest(const float* values, int64_t count, int64_t wanted);

// The positions of the largest numbers, as ids, largest first; fewer than `wanted` only where NaN and -inf, which it
// skips, leave fewer.
void FindLargest(const float* values, int64_t count, int64_t wanted, std::vector<Scored>* largest);

}  // namespace tfxc
