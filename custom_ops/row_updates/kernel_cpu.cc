// CPU kernels of the row updates: they check everything, then update each touched row once.
#define EIGEN_USE_THREADS
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "common/huge_pages.h"
#include "common/kernel.h"
#include "row_updates/gradient_inputs.h"
#include "row_updates/row_groups.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/kernels/training_op_helpers.h"

namespace tfxc {
namespace {

using tensorflow::Var;

// The shape of a table's slot.
template <typename Rule>
TensorShape SlotShape(const TensorShape& table) {
  return Rule::kOneSlotPerRow ? TensorShape({table.dim_size(0)}) : table;
}

template <typename Inputs, template <typename Rows> class Rule>
class RowUpdateOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<int> handles(kNumVariables);
    for (int i = 0; i < kNumVariables; ++i) handles[i] = i;
    // The locks are exclusive, and taken in address order, so that two updates that share variables cannot deadlock.
    // The switch to copy-on-read happens below under the same lock, hence sparse = false here.
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
    OP_REQUIRES_OK(context, ReadSeed(context, kFirstScalar + kNumScalars, &seed));
    OP_REQUIRES_OK(context, CheckVariables(variables));
    const TensorShape& table_shape = variables[0]->tensor()->shape();
    Inputs inputs;
    OP_REQUIRES_OK(context, inputs.Read(context, kNumVariables, table_shape));
    const RowGradients& gradients = inputs.gradients;
    const int64_t width = gradients.width;
    if (gradients.count == 0 || width == 0) return;
    std::array<float*, kNumVariables - 1> slots{};
    for (int i = 0; i < kNumVariables; ++i) {
      MakeWritable(i, variables[i].get(), inputs.IsOfSomeRows(table_shape.dim_size(0)));
      if (i > 0) slots[i - 1] = Data<float>(variables[i]->tensor());
    }
    Tensor* table = variables[0]->tensor();
    const auto update = [&](const auto& rule) {
      ForEach(context, gradients.count, /*cost=*/200 + 8 * width,
              [&](int64_t begin, int64_t end) { UpdateRows(gradients, begin, end, rule); });
    };
    if (table->dtype() == tensorflow::DT_BFLOAT16) {
      update(Rule<Bfloat16Rows>(Bfloat16Rows(Halves(table), width, seed), slots, scalars, width));
    } else {
      update(Rule<FloatRows>(FloatRows{Data<float>(table), width}, slots, scalars, width));
    }
  }

 private:
  static constexpr int kNumVariables = 1 + Rule<FloatRows>::kNumSlots, kNumScalars = Rule<FloatRows>::kNumScalars;
  static constexpr int kFirstScalar = kNumVariables + Inputs::kNumInputs;

  static absl::Status ReadScalars(OpKernelContext* context, std::array<double, kNumScalars>* scalars) {
    for (int i = 0; i < kNumScalars; ++i) {
      const Tensor& scalar = context->input(kFirstScalar + i);
      if (!tensorflow::TensorShapeUtils::IsScalar(scalar.shape())) {
        return InvalidArgument("input ", kFirstScalar + i, " has shape ", scalar.shape().DebugString(),
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
                               SlotShape<Rule<FloatRows>>(table).DebugString(), " for a table of shape ",
                               table.DebugString());
      }
    }
    return absl::OkStatus();
  }

  // Gives the i-th variable a buffer of its own: a tensor that somebody has read keeps its values. After an update of
  // some rows, dense reads copy, so that the next update need not copy all. An update of all rows does not change that,
  // like a stock step, since such a variable is often read whole. Requires the variable's exclusive lock.
  void MakeWritable(int i, Var* variable, bool some_rows) {
    Tensor* tensor = variable->tensor();
    if (!tensor->RefCountIsOne()) *tensor = tensorflow::tensor::DeepCopy(*tensor);
    if (some_rows) variable->copy_on_read_mode.store(true);
    void* data = tensor->data();
    if (in_huge_pages_[i].exchange(data) != data) MoveToHugePages(data, tensor->TotalBytes());
  }

  // The buffers that were moved last: an assignment gives a variable another buffer.
  std::array<std::atomic<const void*>, kNumVariables> in_huge_pages_{};
};

#define TFXC_REGISTER_SLICES(NAME, INDEX, RULE)                                                        \
  REGISTER_KERNEL_BUILDER(Name(NAME).Device(tensorflow::DEVICE_CPU).TypeConstraint<INDEX>("Tindices"), \
                          RowUpdateOp<SliceInputs<INDEX>, RULE>);
#define TFXC_REGISTER_ROW_UPDATE(NAME, RULE)   \
  TFXC_REGISTER_SLICES(NAME, int32_t, RULE)    \
  TFXC_REGISTER_SLICES(NAME, int64_t, RULE)    \
  REGISTER_KERNEL_BUILDER(Name(NAME "FromScores").Device(tensorflow::DEVICE_CPU), RowUpdateOp<ScoreInputs, RULE>);

TFXC_REGISTER_ROW_UPDATE("Tfxc>LazyAdamUpdate", LazyAdamRule)
TFXC_REGISTER_ROW_UPDATE("Tfxc>RowSgdUpdate", RowSgdRule)
TFXC_REGISTER_ROW_UPDATE("Tfxc>RowwiseAdagradUpdate", RowwiseAdagradRule)

}  // namespace
}  // namespace tfxc
