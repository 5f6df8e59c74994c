#include "common/checks.h"

#include <cstring>

#include "common/vectorize.h"

namespace tfxc {

TFXC_VECTORIZE bool AllFinite(const float* numbers, int64_t count) {
  constexpr int32_t kExponent = 0x7f800000;
  int32_t any_not = 0;
  for (int64_t i = 0; i < count; ++i) {
    int32_t bits;
    std::memcpy(&bits, numbers + i, sizeof(bits));
    any_not |= (bits & kExponent) == kExponent;
  }
  return any_not == 0;
}

TFXC_VECTORIZE bool AllWithin(const int32_t* numbers, int64_t count, int32_t least, int32_t most) {
  int32_t any_not = 0;
  for (int64_t i = 0; i < count; ++i) any_not |= (numbers[i] < least) | (numbers[i] > most);
  return any_not == 0;
}

TFXC_VECTORIZE bool AllSorted(const RowPosition* pairs, int64_t count, int64_t num_rows, int64_t num_positions) {
  if (count == 0) return true;
  int64_t any_not = Position(pairs[0]) >= num_positions;
  for (int64_t i = 1; i < count; ++i) {
    any_not |= (pairs[i - 1] >= pairs[i]) | (Position(pairs[i]) >= num_positions);
  }
  return any_not == 0 && Row(pairs[count - 1]) < num_rows;
}

}  // namespace tfxc
