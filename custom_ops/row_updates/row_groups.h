// Groups the rows of a sparse gradient by the table row they belong to, and visits each touched row once.
#ifndef TFXC_CUSTOM_OPS_ROW_UPDATES_ROW_GROUPS_H_
#define TFXC_CUSTOM_OPS_ROW_UPDATES_ROW_GROUPS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/kernel.h"
#include "common/row_sort.h"
#include "common/simd.h"
#include "row_kernels.h"

namespace tfxc {

// Range-checks every row id, then sorts the pairs (row, position).
template <typename Index>
absl::Status CheckAndSortByRow(const Index* row_ids, int64_t num_gradients, int64_t num_rows,
                       std::vector<RowPosition>* sorted) {
  constexpr int64_t kLimit = std::numeric_limits<uint32_t>::max();
  if (num_rows > kLimit || num_gradients > kLimit) {
    return absl::InvalidArgumentError(absl::StrCat("a row update takes at most ", kLimit,
                                                   " table rows and gradient rows, got ", num_rows, " and ",
                                                   num_gradients, "; split the table"));
  }
  sorted->resize(num_gradients);
  for (int64_t position = 0; position < num_gradients; ++position) {
    const int64_t row = static_cast<int64_t>(row_ids[position]);
    if (row < 0 || row >= num_rows) {
      return absl::InvalidArgumentError(absl::StrCat("row id ", row, " at position ", position,
                                                     " is outside [0, ", num_rows, "): the table has ", num_rows,
                                                     " rows; nothing was updated"));
    }
    (*sorted)[position] = Pack(row, position);
  }
  // The gradients of class scores come in order.
  if (!std::is_sorted(sorted->begin(), sorted->end())) SortByRow(num_rows, sorted);
  return absl::OkStatus();
}

// Calls rule(row, gradient) once for each touched row, `gradient` being the sum of its gradients, on TensorFlow's
// threads. A shard owns the rows whose first gradient lies in its part of `sorted`.
template <typename Rule>
void ForEachTouchedRow(tensorflow::OpKernelContext* context, const std::vector<RowPosition>& sorted,
                       const float* values, int64_t width, const Rule& rule) {
  constexpr int64_t kAhead = 6;  // rows in flight: enough to hide memory latency
  const int64_t num_gradients = sorted.size();
  const auto prefetch = [&](int64_t i) {
    if (i >= num_gradients) return;
    PrefetchRow(values + Position(sorted[i]) * width, width);
    rule.Prefetch(Row(sorted[i]));
  };
  const auto update_rows = [&](int64_t begin, int64_t end) {
    std::vector<float> sum(width);
    int64_t i = begin;
    while (i > 0 && i < end && Row(sorted[i]) == Row(sorted[i - 1])) ++i;
    while (i < end) {
      const int64_t row = Row(sorted[i]);
      const float* gradient = values + Position(sorted[i]) * width;
      prefetch(i + kAhead);
      int64_t next = i + 1;
      if (next < num_gradients && Row(sorted[next]) == row) {
        std::copy_n(gradient, width, sum.data());
        for (; next < num_gradients && Row(sorted[next]) == row; ++next) {
          prefetch(next + kAhead);
          AddRow(values + Position(sorted[next]) * width, sum.data(), width);
        }
        gradient = sum.data();
      }
      rule(row, gradient);
      i = next;
    }
  };
  const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
  const int64_t cycles_per_row = 200 + 8 * width;
  tensorflow::Shard(workers.num_threads, workers.workers, num_gradients, cycles_per_row, update_rows);
}

}  // namespace tfxc

#endif  // TFXC_CUSTOM_OPS_ROW_UPDATES_ROW_GROUPS_H_
