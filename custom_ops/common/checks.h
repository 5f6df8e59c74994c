// Fast checks of many numbers. They run on one thread, while the others wait.
#pragma once

#include <cstdint>

#include "common/row_sort.h"

namespace tfxc {

bool AllFinite(const float* numbers, int64_t count);

// Whether all numbers are in [least, most].
bool AllWithin(const int32_t* numbers, int64_t count, int32_t least, int32_t most);

// Whether pairs are in ascending order, of rows below num_rows and positions below num_positions.
bool AllSorted(const RowPosition* pairs, int64_t count, int64_t num_rows, int64_t num_positions);

}  // namespace tfxc
