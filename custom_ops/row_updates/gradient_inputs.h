// Reads and checks the two forms in which an op gets the sparse gradient of a table.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "common/checks.h"
#include "common/kernel.h"
#include "common/limits.h"
#include "row_updates/row_groups.h"

namespace tfxc {

// Compares the sizes one by one: a table without rows may have rows so wide that a TensorShape would overflow.
inline bool FitsRowsOf(const TensorShape& table, const Tensor& values) {
  bool fits = values.dims() == table.dims();
  for (int i = 1; fits && i < table.dims(); ++i) fits = values.dim_size(i) == table.dim_size(i);
  return fits;
}

// The form of a tf.IndexedSlices: values [G, ...] and row_ids [G] in any order.
template <typename Index>
class SliceInputs {
 public:
  static constexpr int kNumInputs = 2;

  absl::Status Read(OpKernelContext* context, int first, const TensorShape& table) {
    const Tensor& values = context->input(first);
    const Tensor& row_ids = context->input(first + 1);
    if (row_ids.dims() != 1 || !FitsRowsOf(table, values) || values.dim_size(0) != row_ids.NumElements()) {
      return InvalidArgument("gradient values ", values.shape().DebugString(), " and row ids ",
                             row_ids.shape().DebugString(), " do not fit a table of shape ", table.DebugString(),
                             "; expected values [N, ...] with the table's trailing dimensions and N row ids");
    }
    TF_RETURN_IF_ERROR(CheckAndSort(Data<Index>(row_ids), row_ids.NumElements(), table.dim_size(0)));
    const int64_t width = sorted_.empty() ? 0 : values.NumElements() / values.dim_size(0);
    gradients = {sorted_.data(), static_cast<int64_t>(sorted_.size()), Data<float>(values), width, nullptr, 1};
    return absl::OkStatus();
  }

  // A step of all rows comes as slices, too.
  bool IsOfSomeRows(int64_t num_rows) const { return gradients.count < num_rows; }

  RowGradients gradients;

 private:
  absl::Status CheckAndSort(const Index* row_ids, int64_t num_gradients, int64_t num_rows) {
    constexpr int64_t kLimit = std::numeric_limits<uint32_t>::max();
    if (num_rows > kLimit || num_gradients > kLimit) {
      return InvalidArgument("a row update takes at most ", kLimit, " table rows and gradient rows, got ", num_rows,
                             " and ", num_gradients, "; split the table");
    }
    sorted_.reserve(num_gradients);
    bool in_order = true;  // true for the gradients of class scores
    int64_t before = 0;
    for (int64_t position = 0; position < num_gradients; ++position) {
      const int64_t row = static_cast<int64_t>(row_ids[position]);
      if (row < 0 || row >= num_rows) {
        return InvalidArgument("row id ", row, " at position ", position, " is outside [0, ", num_rows,
                               "): the table has ", num_rows, " rows; nothing was updated");
      }
      sorted_.push_back(Pack(row, position));
      in_order &= before <= row;
      before = row;
    }
    if (!in_order) SortByRow(num_rows, &sorted_);
    return absl::OkStatus();
  }

  std::vector<RowPosition> sorted_;
};

// The form of score gradients: query [N, D], the gradient [N, S] of each score, and the slots of [N, S] that score a
// row of the table, sorted. A row's gradient is the sum of score gradients * query.
class ScoreInputs {
 public:
  static constexpr int kNumInputs = 3;

  absl::Status Read(OpKernelContext* context, int first, const TensorShape& table) {
    const Tensor& query = context->input(first);
    const Tensor& score_gradients = context->input(first + 1);
    const Tensor& slots = context->input(first + 2);
    if (table.dims() != 2 || !FitsRowsOf(table, query) || score_gradients.dims() != 2 ||
        score_gradients.dim_size(0) != query.dim_size(0) || score_gradients.NumElements() > kMostSlots ||
        slots.dims() != 1) {
      return InvalidArgument("query ", query.shape().DebugString(), ", score gradients ",
                             score_gradients.shape().DebugString(), " and slots ", slots.shape().DebugString(),
                             " do not fit a table of shape ", table.DebugString(),
                             "; expected [N, D], [N, S] of at most ", kMostSlots, " and a vector for a table [rows, D]");
    }
    const auto* sorted = Data<RowPosition>(slots);
    const int64_t num_slots = score_gradients.NumElements();
    TF_RETURN_IF_ERROR(Check(sorted, slots.NumElements(), table.dim_size(0), num_slots));
    gradients = {sorted, slots.NumElements(), Data<float>(query), query.dim_size(1), Data<float>(score_gradients),
                 static_cast<uint32_t>(score_gradients.dim_size(1))};
    return absl::OkStatus();
  }

  bool IsOfSomeRows(int64_t) const { return true; }

  RowGradients gradients;

 private:
  static absl::Status Check(const RowPosition* sorted, int64_t count, int64_t num_rows, int64_t num_slots) {
    if (AllSorted(sorted, count, num_rows, num_slots)) return absl::OkStatus();
    for (int64_t i = 0; i < count; ++i) {
      const bool in_order = i == 0 || sorted[i - 1] < sorted[i];
      if (Row(sorted[i]) >= num_rows || Position(sorted[i]) >= num_slots || !in_order) {
        return InvalidArgument("slots[", i, "] is slot ", Position(sorted[i]), " of row ", Row(sorted[i]),
                               "; expected slots below ", num_slots, " and rows below ", num_rows,
                               ", in ascending order of both; nothing was updated");
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace tfxc
