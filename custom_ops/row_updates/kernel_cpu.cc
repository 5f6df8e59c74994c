// CPU kernels of the row updates: validate, sort the gradient rows by table row, update each touched row once.
#define EIGEN_USE_THREADS
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/huge_pages.h"
#include "common/kernel.h"
#include "common/simd.h"
#include "row_groups.h"
#include "row_kernels.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/kernels/training_op_helpers.h"

namespace tfxc {
namespace {

using tensorflow::Var;

TensorShape SameShape(const TensorShape& table) { return table; }
TensorShape OnePerRow(const TensorShape& table) { return TensorShape({table.dim_size(0)}); }

// A rule says how one row of the table and of its slots changes. `data` are the buffers of table and slots,
// `scalars` the op's scalar inputs in their order.
struct LazyAdamRule {
  static constexpr int kNumVariables = 3, kNumScalars = 4;
  static constexpr auto kSlotShape = SameShape;
  LazyAdamRule(const std::array<float*, 3>& data, const std::array<double, 4>& scalars, int64_t width)
      : table(data[0]), momentum(data[1]), velocity(data[2]), width(width),
        scalars{static_cast<float>(scalars[0]), static_cast<float>(1.0 - scalars[1]),
                static_cast<float>(1.0 - scalars[2]), static_cast<float>(scalars[3])} {}
  void Prefetch(int64_t row) const {
    for (const float* data : {table, momentum, velocity}) PrefetchRow(data + row * width, width);
  }
  void operator()(int64_t row, const float* gradient) const {
    const int64_t start = row * width;
    AdamRow(gradient, scalars, table + start, momentum + start, velocity + start, width);
  }
  float *table, *momentum, *velocity;
  int64_t width;
  AdamScalars scalars;
};

struct RowSgdRule {
  static constexpr int kNumVariables = 1, kNumScalars = 1;
  static constexpr auto kSlotShape = SameShape;
  RowSgdRule(const std::array<float*, 1>& data, const std::array<double, 1>& scalars, int64_t width)
      : table(data[0]), width(width), learning_rate(scalars[0]) {}
  void Prefetch(int64_t row) const { PrefetchRow(table + row * width, width); }
  void operator()(int64_t row, const float* gradient) const {
    SgdRow(gradient, learning_rate, table + row * width, width);
  }
  float* table;
  int64_t width;
  float learning_rate;
};

struct RowwiseAdagradRule {
  static constexpr int kNumVariables = 2, kNumScalars = 2;
  static constexpr auto kSlotShape = OnePerRow;
  RowwiseAdagradRule(const std::array<float*, 2>& data, const std::array<double, 2>& scalars, int64_t width)
      : table(data[0]), accumulator(data[1]), width(width), learning_rate(scalars[0]), epsilon(scalars[1]) {}
  void Prefetch(int64_t row) const {
    PrefetchRow(table + row * width, width);
    __builtin_prefetch(accumulator + row);
  }
  void operator()(int64_t row, const float* gradient) const {
    accumulator[row] += MeanSquare(gradient, width);
    SgdRow(gradient, learning_rate / (std::sqrt(accumulator[row]) + epsilon), table + row * width, width);
  }
  float *table, *accumulator;
  int64_t width;
  float learning_rate, epsilon;
};

template <typename Index, typename Rule>
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
    std::array<double, Rule::kNumScalars> scalars{};
    OP_REQUIRES_OK(context, ReadScalars(context, &scalars));
    OP_REQUIRES_OK(context, CheckVariables(variables));
    const TensorShape& table_shape = variables[0]->tensor()->shape();
    OP_REQUIRES_OK(context, CheckGradient(context, table_shape));

    const Tensor& values = context->input(kNumVariables);
    const Tensor& row_ids = context->input(kNumVariables + 1);
    std::vector<RowPosition> sorted;
    OP_REQUIRES_OK(context, CheckAndSortByRow(Data<Index>(row_ids), row_ids.NumElements(),
                                              table_shape.dim_size(0), &sorted));
    if (sorted.empty() || values.NumElements() == 0) return;
    const int64_t width = values.NumElements() / values.dim_size(0);
    std::array<float*, kNumVariables> data;
    for (int i = 0; i < kNumVariables; ++i) {
      data[i] = WritableData(variables[i].get());
      if (in_huge_pages_[i].exchange(data[i]) != data[i]) {
        MoveToHugePages(data[i], variables[i]->tensor()->TotalBytes());
      }
    }
    ForEachTouchedRow(context, sorted, Data<float>(values), width, Rule(data, scalars, width));
  }

 private:
  static constexpr int kNumVariables = Rule::kNumVariables;

  static absl::Status ReadScalars(OpKernelContext* context, std::array<double, Rule::kNumScalars>* scalars) {
    for (int i = 0; i < Rule::kNumScalars; ++i) {
      const Tensor& scalar = context->input(kNumVariables + 2 + i);
      if (!tensorflow::TensorShapeUtils::IsScalar(scalar.shape())) {
        return absl::InvalidArgumentError(absl::StrCat("input ", kNumVariables + 2 + i, " has shape ",
                                                       scalar.shape().DebugString(), ", expected a scalar"));
      }
      (*scalars)[i] = *Data<double>(scalar);
    }
    return absl::OkStatus();
  }

  static absl::Status CheckVariables(const std::array<tensorflow::core::RefCountPtr<Var>, kNumVariables>& variables) {
    for (const auto& variable : variables) {
      const Tensor& tensor = *variable->tensor();
      if (!tensor.IsInitialized() || tensor.dtype() != tensorflow::DT_FLOAT || tensor.dims() < 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a row update needs initialized float32 variables of rank 1 or more, got ", variable->DebugString()));
      }
    }
    const TensorShape& table = variables[0]->tensor()->shape();
    for (int i = 1; i < kNumVariables; ++i) {
      const TensorShape& slot = variables[i]->tensor()->shape();
      if (slot != Rule::kSlotShape(table)) {
        return absl::InvalidArgumentError(absl::StrCat("slot ", i, " has shape ", slot.DebugString(), ", expected ",
                                                       Rule::kSlotShape(table).DebugString(), " for a table of shape ",
                                                       table.DebugString()));
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
      return absl::InvalidArgumentError(absl::StrCat("gradient values ", values.shape().DebugString(), " and row ids ",
                                                     row_ids.shape().DebugString(), " do not fit a table of shape ",
                                                     table.DebugString(), "; expected values [N, ...] with the table's ",
                                                     "trailing dimensions and N row ids"));
    }
    return absl::OkStatus();
  }

  // The variable's buffer, made its own: a tensor somebody has read keeps its values, and from now on dense reads
  // copy. Requires the variable's exclusive lock.
  static float* WritableData(Var* variable) {
    if (!variable->tensor()->RefCountIsOne()) {
      *variable->tensor() = tensorflow::tensor::DeepCopy(*variable->tensor());
    }
    variable->copy_on_read_mode.store(true);
    return Data<float>(variable->tensor());
  }

  // The buffers moved last: a variable that was assigned to has another.
  std::array<std::atomic<const float*>, kNumVariables> in_huge_pages_{};
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
