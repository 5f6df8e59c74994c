// CPU kernels of the row updates: validate, sort the gradient rows by table row, update each touched row once.
#define EIGEN_USE_THREADS
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/huge_pages.h"
#include "common/kernel.h"
#include "row_updates/row_groups.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/kernels/training_op_helpers.h"

namespace tfxc {
namespace {

using tensorflow::Var;

// The shape of a slot beside a table.
template <typename Rule>
TensorShape SlotShape(const TensorShape& table) {
  return Rule::kOneSlotPerRow ? TensorShape({table.dim_size(0)}) : table;
}

// Range-checks every row id, then sorts the pairs (row, position).
template <typename Index>
absl::Status CheckAndSortByRow(const Index* row_ids, int64_t num_gradients, int64_t num_rows,
                               std::vector<RowPosition>* sorted) {
  constexpr int64_t kLimit = std::numeric_limits<uint32_t>::max();
  if (num_rows > kLimit || num_gradients > kLimit) {
    return InvalidArgument("a row update takes at most ", kLimit, " table rows and gradient rows, got ", num_rows,
                           " and ", num_gradients, "; split the table");
  }
  sorted->reserve(num_gradients);
  bool in_order = true;  // as the gradients of class scores come
  int64_t before = 0;
  for (int64_t position = 0; position < num_gradients; ++position) {
    const int64_t row = static_cast<int64_t>(row_ids[position]);
    if (row < 0 || row >= num_rows) {
      return InvalidArgument("row id ", row, " at position ", position, " is outside [0, ", num_rows,
                             "): the table has ", num_rows, " rows; nothing was updated");
    }
    sorted->push_back(Pack(row, position));
    in_order &= before <= row;
    before = row;
  }
  if (!in_order) SortByRow(num_rows, sorted);
  return absl::OkStatus();
}

template <typename Index, template <typename Rows> class Rule>
class RowUpdateOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<int> handles(kNumVariables);
    for (int i = 0; i < kNumVariables; ++i) handles[i] = i;
    // Exclusive, and in address order so that two updates sharing variables cannot deadlock. The switch to
    // copy-on-read happens below under the same lock, hence sparse = false here.
    auto locks = tensorflow::MaybeLockVariableInputMutexesInOrder<Eigen::ThreadPoolDevice, float>(
        context, /*do_lock=*/true, /*sparse=*/false, handles);
    OP_REQUIRES_OK(context, context->status());
    std::array<tensorflow::core::RefCountPtr<Var>, kNumVariables> variables;
    for (int i = 0; i < kNumVariables; ++i) {
      OP_REQUIRES_OK(context, LookupResource(context, tensorflow::HandleFromInput(context, i), &variables[i]));
    }
    std::array<double, kNumScalars> scalars{};
    OP_REQUIRES_OK(context, ReadScalars(context, &scalars));
    Seed seed;
    OP_REQUIRES_OK(context, ReadSeed(context, kNumVariables + 2 + kNumScalars, &seed));
    OP_REQUIRES_OK(context, CheckVariables(variables));
    const TensorShape& table_shape = variables[0]->tensor()->shape();
    OP_REQUIRES_OK(context, CheckGradient(context, table_shape));

    const Tensor& values = context->input(kNumVariables);
    const Tensor& row_ids = context->input(kNumVariables + 1);
    std::vector<RowPosition> sorted;
    OP_REQUIRES_OK(context, CheckAndSortByRow(Data<Index>(row_ids), row_ids.NumElements(), table_shape.dim_size(0),
                                              &sorted));
    if (sorted.empty() || values.NumElements() == 0) return;
    const int64_t width = values.NumElements() / values.dim_size(0);
    std::array<float*, kNumVariables - 1> slots{};
    for (int i = 0; i < kNumVariables; ++i) {
      MakeWritable(i, variables[i].get(), /*some_rows=*/row_ids.NumElements() < table_shape.dim_size(0));
      if (i > 0) slots[i - 1] = Data<float>(variables[i]->tensor());
    }
    Tensor* table = variables[0]->tensor();
    const auto update = [&](const auto& rule) {
      const float* gradient = Data<float>(values);
      ForEach(context, sorted.size(), /*cost=*/200 + 8 * width, [&](int64_t begin, int64_t end) {
        UpdateRows(sorted, begin, end, gradient, width, rule);
      });
    };
    if (table->dtype() == tensorflow::DT_BFLOAT16) {
      update(Rule<Bfloat16Rows>(Bfloat16Rows(Halves(table), width, seed), slots, scalars, width));
    } else {
      update(Rule<FloatRows>(FloatRows{Data<float>(table), width}, slots, scalars, width));
    }
  }

 private:
  static constexpr int kNumVariables = 1 + Rule<FloatRows>::kNumSlots, kNumScalars = Rule<FloatRows>::kNumScalars;

  static absl::Status ReadScalars(OpKernelContext* context, std::array<double, kNumScalars>* scalars) {
    for (int i = 0; i < kNumScalars; ++i) {
      const Tensor& scalar = context->input(kNumVariables + 2 + i);
      if (!tensorflow::TensorShapeUtils::IsScalar(scalar.shape())) {
        return InvalidArgument("input ", kNumVariables + 2 + i, " has shape ", scalar.shape().DebugString(),
                               ", expected a scalar");
      }
      (*scalars)[i] = *Data<double>(scalar);
    }
    return absl::OkStatus();
  }

  static absl::Status CheckVariables(const std::array<tensorflow::core::RefCountPtr<Var>, kNumVariables>& variables) {
    for (int i = 0; i < kNumVariables; ++i) {
      const Tensor& tensor = *variables[i]->tensor();
      const bool has_type = i == 0 ? IsTableType(tensor) : tensor.dtype() == tensorflow::DT_FLOAT;
      if (!tensor.IsInitialized() || !has_type || tensor.dims() < 1) {
        return InvalidArgument("a row update needs initialized variables of rank 1 or more, a table of float32 or ",
                               "bfloat16 and slots of float32, got ", variables[i]->DebugString());
      }
    }
    const TensorShape& table = variables[0]->tensor()->shape();
    for (int i = 1; i < kNumVariables; ++i) {
      const TensorShape& slot = variables[i]->tensor()->shape();
      if (slot != SlotShape<Rule<FloatRows>>(table)) {
        return InvalidArgument("slot ", i, " has shape ", slot.DebugString(), ", expected ",
                               SlotShape<Rule<FloatRows>>(table).DebugString(), " for a table of shape ", table.DebugString());
      }
    }
    return absl::OkStatus();
  }

  static absl::Status CheckGradient(OpKernelContext* context, const TensorShape& table) {
    const Tensor& values = context->input(kNumVariables);
    const Tensor& row_ids = context->input(kNumVariables + 1);
    // Dimension by dimension: with rows as wide as a table of none may be, a shape of them all would be too large.
    bool fits = row_ids.dims() == 1 && values.dims() == table.dims() && values.dim_size(0) == row_ids.NumElements();
    for (int i = 1; fits && i < table.dims(); ++i) fits = values.dim_size(i) == table.dim_size(i);
    if (!fits) {
      return InvalidArgument("gradient values ", values.shape().DebugString(), " and row ids ",
                             row_ids.shape().DebugString(), " do not fit a table of shape ", table.DebugString(),
                             "; expected values [N, ...] with the table's trailing dimensions and N row ids");
    }
    return absl::OkStatus();
  }

  // Makes the buffer of the i-th variable its own: a tensor somebody has read keeps its values. From an update of some
  // rows on dense reads copy, so that the next need not copy all; one of all rows leaves that as it is, like a stock
  // step, since what gets one is often read whole. Requires the variable's exclusive lock.
  void MakeWritable(int i, Var* variable, bool some_rows) {
    Tensor* tensor = variable->tensor();
    if (!tensor->RefCountIsOne()) *tensor = tensorflow::tensor::DeepCopy(*tensor);
    if (some_rows) variable->copy_on_read_mode.store(true);
    void* data = tensor->data();
    if (in_huge_pages_[i].exchange(data) != data) MoveToHugePages(data, tensor->TotalBytes());
  }

  // The buffers moved last: a variable that was assigned to has another.
  std::array<std::atomic<const void*>, kNumVariables> in_huge_pages_{};
};

#define TFXC_REGISTER(NAME, INDEX, RULE)                                                               \
  REGISTER_KERNEL_BUILDER(Name(NAME).Device(tensorflow::DEVICE_CPU).TypeConstraint<INDEX>("Tindices"), \
                          RowUpdateOp<INDEX, RULE>);
#define TFXC_REGISTER_ROW_UPDATE(NAME, RULE) \
  TFXC_REGISTER(NAME, int32_t, RULE)         \
  TFXC_REGISTER(NAME, int64_t, RULE)

TFXC_REGISTER_ROW_UPDATE("Tfxc>LazyAdamUpdate", LazyAdamRule)
TFXC_REGISTER_ROW_UPDATE("Tfxc>RowSgdUpdate", RowSgdRule)
TFXC_REGISTER_ROW_UPDATE("Tfxc>RowwiseAdagradUpdate", RowwiseAdagradRule)

}  // namespace
}  // namespace tfxc
