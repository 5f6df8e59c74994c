// The rules by which a row changes, and the loop that visits each touched row once. Free of TensorFlow.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/row_sort.h"
#include "common/simd.h"
#include "row_updates/row_kernels.h"
#include "row_updates/table_rows.h"

namespace tfxc {

// A rule changes one row of the table and of its slots. `Rows` is FloatRows or Bfloat16Rows, `slots` are the buffers of
// the slots, `scalars` the op's scalar inputs in their order.
template <typename Rows>
struct LazyAdamRule {
  static constexpr int kNumSlots = 2, kNumScalars = 4;
  static constexpr bool kOneSlotPerRow = false;
  LazyAdamRule(Rows table, const std::array<float*, 2>& slots, const std::array<double, 4>& scalars, int64_t width)
      : table(std::move(table)), momentum(slots[0]), velocity(slots[1]), width(width),
        scalars{static_cast<float>(scalars[0]), static_cast<float>(1.0 - scalars[1]),
                static_cast<float>(1.0 - scalars[2]), static_cast<float>(scalars[3])} {}
  TFXC_INLINE void Prefetch(int64_t row) const {
    table.Prefetch(row);
    for (const float* data : {momentum, velocity}) PrefetchRow(data + row * width, width);
  }
  void operator()(int64_t row, const float* gradient) {
    const int64_t start = row * width;
    AdamRow(gradient, scalars, table.Open(row), momentum + start, velocity + start, width);
    table.Close(row);
  }
  Rows table;
  float *momentum, *velocity;
  int64_t width;
  AdamScalars scalars;
};

template <typename Rows>
struct RowSgdRule {
  static constexpr int kNumSlots = 0, kNumScalars = 1;
  static constexpr bool kOneSlotPerRow = false;
  RowSgdRule(Rows table, const std::array<float*, 0>&, const std::array<double, 1>& scalars, int64_t width)
      : table(std::move(table)), width(width), learning_rate(scalars[0]) {}
  TFXC_INLINE void Prefetch(int64_t row) const { table.Prefetch(row); }
  void operator()(int64_t row, const float* gradient) {
    SgdRow(gradient, learning_rate, table.Open(row), width);
    table.Close(row);
  }
  Rows table;
  int64_t width;
  float learning_rate;
};

template <typename Rows>
struct RowwiseAdagradRule {
  static constexpr int kNumSlots = 1, kNumScalars = 2;
  static constexpr bool kOneSlotPerRow = true;
  RowwiseAdagradRule(Rows table, const std::array<float*, 1>& slots, const std::array<double, 2>& scalars,
                     int64_t width)
      : table(std::move(table)), accumulator(slots[0]), width(width), learning_rate(scalars[0]), epsilon(scalars[1]) {}
  TFXC_INLINE void Prefetch(int64_t row) const {
    table.Prefetch(row);
    __builtin_prefetch(accumulator + row);
  }
  void operator()(int64_t row, const float* gradient) {
    accumulator[row] += MeanSquare(gradient, width);
    SgdRow(gradient, learning_rate / (std::sqrt(accumulator[row]) + epsilon), table.Open(row), width);
    table.Close(row);
  }
  Rows table;
  float* accumulator;
  int64_t width;
  float learning_rate, epsilon;
};

// Gradients of rows, sorted by row. The gradient at a position is the values there; with multipliers it is a multiple
// of values that `share` neighbouring positions have in common: for score gradients, a slot's multiple of its query.
struct RowGradients {
  TFXC_INLINE const float* Values(int64_t position) const {
    return values + (multipliers == nullptr ? position : static_cast<uint32_t>(position) / share) * width;
  }
  TFXC_INLINE float Multiplier(int64_t position) const { return multipliers == nullptr ? 1.0f : multipliers[position]; }

  const RowPosition* sorted;
  int64_t count;
  const float* values;
  int64_t width;
  const float* multipliers;  // or null
  uint32_t share;
};

// Calls rule(row, gradient) once for each touched row, with the sum of its gradients, for the rows whose first sorted
// gradient i has begin <= i < end.
template <typename Rule>
void UpdateRows(const RowGradients& gradients, int64_t begin, int64_t end, Rule rule) {
  constexpr int64_t kAhead = 32;  // how many rows ahead are prefetched: a busy memory takes that long to answer
  const RowPosition* sorted = gradients.sorted;
  const int64_t count = gradients.count, width = gradients.width;
  // Inlined, because the compiler drops a call that only prefetches.
  const auto prefetch = [&](int64_t i) __attribute__((always_inline)) {
    if (i >= count) return;
    PrefetchRow(gradients.Values(Position(sorted[i])), width);
    rule.Prefetch(Row(sorted[i]));
  };
  std::vector<float> sum(width);
  int64_t i = begin;
  while (i > 0 && i < end && Row(sorted[i]) == Row(sorted[i - 1])) ++i;
  while (i < end) {
    const int64_t row = Row(sorted[i]);
    const bool is_last = i + 1 == count || Row(sorted[i + 1]) != row;
    if (is_last && gradients.multipliers == nullptr) {
      prefetch(i + kAhead);
      rule(row, gradients.Values(Position(sorted[i++])));
      continue;
    }
    for (const int64_t first = i; i < count && Row(sorted[i]) == row; ++i) {
      prefetch(i + kAhead);
      const int64_t position = Position(sorted[i]);
      const auto take = i == first ? SetMultiple : AddMultiple;
      take(gradients.Multiplier(position), gradients.Values(position), sum.data(), width);
    }
    rule(row, sum.data());
  }
}

}  // namespace tfxc
