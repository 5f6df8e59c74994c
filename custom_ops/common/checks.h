// Whether many numbers are what they must be. An op asks on one thread, while the others wait.
#ifndef TFXC_COMMON_CHECKS_H_
#define TFXC_COMMON_CHECKS_H_

#include <cstdint>

#include "common/row_sort.h"

namespace tfxc {

bool AllFinite(const float* numbers, int64_t count);

// In [least, most].
bool AllWithin(const int32_t* numbers, int64_t count, int32_t least, int32_t most);

// Whether pairs are in ascending order, of rows below num_rows and positions below num_positions.
bool AllSorted(const RowPosition* pairs, int64_t count, int64_t num_rows, int64_t num_positions);

}  // namespace tfxc

#endif  // TFXC_COMMON_CHECKS_H_
