// Sorts the gradients of table rows by row, in an order that threads cannot change.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace tfxc {

// A table row in the upper 32 bits, the position of its gradient in the lower 32: comparing the packed
// number orders by row and, within a row, by position.
using RowPosition = uint64_t;
inline RowPosition Pack(int64_t row, int64_t position) {
  return static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(position);
}
inline int64_t Row(RowPosition pair) { return pair >> 32; }
inline int64_t Position(RowPosition pair) { return pair & 0xffffffffu; }

// Sorts pairs of rows in [0, num_rows). The radix sort is stable, so the order in which a row's gradients are
// summed depends on neither threads nor timing.
inline void SortByRow(int64_t num_rows, std::vector<RowPosition>* pairs) {
  constexpr int kDigitBits = 11;
  constexpr uint64_t kMask = (1u << kDigitBits) - 1;
  std::vector<RowPosition> scratch(pairs->size());
  for (int shift = 32; shift < 64 && (num_rows - 1) >> (shift - 32) > 0; shift += kDigitBits) {
    std::array<int64_t, kMask + 1> offsets{};
    for (RowPosition pair : *pairs) ++offsets[pair >> shift & kMask];
    int64_t total = 0;
    for (int64_t& offset : offsets) total += std::exchange(offset, total);
    for (RowPosition pair : *pairs) scratch[offsets[pair >> shift & kMask]++] = pair;
    pairs->swap(scratch);
  }
}

// The start of each row's run among sorted pairs, and at the end their number.
inline std::vector<int64_t> GroupStarts(const std::vector<RowPosition>& sorted) {
  std::vector<int64_t> starts;
  const int64_t size = sorted.size();
  starts.reserve(size + 1);
  for (int64_t i = 0; i < size; ++i) {
    if (i == 0 || Row(sorted[i]) != Row(sorted[i - 1])) starts.push_back(i);
  }
  starts.push_back(size);
  return starts;
}

}  // namespace tfxc
