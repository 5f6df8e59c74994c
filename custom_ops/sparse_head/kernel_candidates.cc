// Ops of the uniformly sparse head for a few chosen classes a query; their cost does not depend on L.
#include <algorithm>
#include <vector>

#include "common/kernel.h"
#include "common/row_sort.h"
#include "common/simd.h"
#include "inputs.h"

namespace tfxc {
namespace {

bool InRange(const SparseRows& rows, int64_t l) {
  const int32_t* inputs = rows.indices + l * rows.fan_in;
  return std::all_of(inputs, inputs + rows.fan_in,
                     [&](int32_t input) { return static_cast<uint32_t>(input) < rows.num_inputs; });
}

// The first touched class that reads an input out of range. Rows are asked for ahead: this is their first use.
absl::Status CheckTouched(const HeadInputs& inputs, const Tensor& ids) {
  constexpr int64_t kAhead = 16;
  const int32_t* id = Data<int32_t>(ids);
  const SparseRows& rows = inputs.rows;
  const int64_t num_slots = ids.NumElements();
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    if (slot + kAhead < num_slots && id[slot + kAhead] >= 0) {
      const int64_t start = id[slot + kAhead] * rows.fan_in;
      PrefetchRow(rows.indices + start, rows.fan_in);
      PrefetchRow(rows.weights + start, rows.fan_in);
    }
    if (id[slot] >= 0 && !InRange(inputs.rows, id[slot])) return CheckClass(inputs, id[slot]);
  }
  return absl::OkStatus();
}

template <typename Work>
void ShardOver(OpKernelContext* context, int64_t total, int64_t cost, Work work) {
  const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(workers.num_threads, workers.workers, total, cost, work);
}

class SparseHeadCandidatesOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    HeadInputs inputs;
    OP_REQUIRES_OK(context, ReadInputs(context, /*bias=*/nullptr, &inputs));
    const Tensor& ids = context->input(3);
    OP_REQUIRES_OK(context, CheckIds(inputs, ids, "class_ids"));
    OP_REQUIRES_OK(context, CheckTouched(inputs, ids));
    Tensor* scores;
    OP_REQUIRES_OK(context, context->allocate_output(0, ids.shape(), &scores));
    const SparseRows& rows = inputs.rows;
    const int64_t samples = ids.dim_size(1), fan_in = rows.fan_in;
    const int32_t* id = Data<int32_t>(ids);
    float* out = Data<float>(scores);
    ShardOver(context, inputs.num_queries, samples * (20 + 2 * fan_in), [&](int64_t first, int64_t last) {
      for (int64_t slot = first * samples; slot < last * samples; ++slot) {
        const int64_t l = id[slot];
        out[slot] = 0.0f;
        if (l < 0) continue;
        const float* query = inputs.query + slot / samples * inputs.num_inputs;
        float score = 0.0f;
        for (int64_t k = l * fan_in; k < (l + 1) * fan_in; ++k) score += rows.weights[k] * query[rows.indices[k]];
        out[slot] = score;
      }
    });
  }
};

class SparseHeadCandidatesGradOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    HeadInputs inputs;
    OP_REQUIRES_OK(context, ReadInputs(context, /*bias=*/nullptr, &inputs));
    const Tensor &ids = context->input(3), &gradient = context->input(4);
    OP_REQUIRES_OK(context, CheckIds(inputs, ids, "class_ids"));
    OP_REQUIRES_OK(context, CheckTouched(inputs, ids));
    OP_REQUIRES(context, gradient.shape() == ids.shape(),
                InvalidArgument("The gradient must have the shape of class_ids, ", ids.shape().DebugString(),
                                ", but has ", gradient.shape().DebugString(), "."));
    const float* g = Data<float>(gradient);
    Tensor* query_gradient;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &query_gradient));
    QueryGradients(context, inputs, ids, g, Data<float>(query_gradient));
    RowGradients(context, inputs, ids, g);
  }

 private:
  static void QueryGradients(OpKernelContext* context, const HeadInputs& inputs, const Tensor& ids, const float* g,
                             float* query_gradient) {
    const SparseRows& rows = inputs.rows;
    const int64_t samples = ids.dim_size(1), fan_in = rows.fan_in;
    const int32_t* id = Data<int32_t>(ids);
    const int64_t cost = inputs.num_inputs / 8 + samples * (20 + 2 * fan_in);
    ShardOver(context, inputs.num_queries, cost, [&](int64_t first, int64_t last) {
      for (int64_t n = first; n < last; ++n) {
        float* out = query_gradient + n * inputs.num_inputs;
        std::fill(out, out + inputs.num_inputs, 0.0f);
        for (int64_t slot = n * samples; slot < (n + 1) * samples; ++slot) {
          const int64_t l = id[slot];
          if (l < 0 || g[slot] == 0.0f) continue;
          for (int64_t k = l * fan_in; k < (l + 1) * fan_in; ++k) out[rows.indices[k]] += g[slot] * rows.weights[k];
        }
      }
    });
  }

  // One row a touched class: the slots are sorted by class, so that each row is summed in one place.
  static void RowGradients(OpKernelContext* context, const HeadInputs& inputs, const Tensor& ids, const float* g) {
    const int64_t samples = ids.dim_size(1), fan_in = inputs.rows.fan_in;
    const int32_t* id = Data<int32_t>(ids);
    std::vector<RowPosition> slots;
    slots.reserve(ids.NumElements());
    for (int64_t slot = 0; slot < ids.NumElements(); ++slot) {
      if (id[slot] >= 0) slots.push_back(Pack(id[slot], slot));
    }
    SortByRow(inputs.num_classes, &slots);
    const std::vector<int64_t> starts = GroupStarts(slots);
    const int64_t touched = starts.size() - 1;
    Tensor *row_gradients, *class_ids;
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({touched, fan_in}), &row_gradients));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({touched}), &class_ids));
    float* sums = Data<float>(row_gradients);
    int32_t* touched_ids = Data<int32_t>(class_ids);
    const int64_t cost = (20 + 2 * fan_in) * (1 + slots.size() / std::max<int64_t>(touched, 1));
    ShardOver(context, touched, cost, [&](int64_t first, int64_t last) {
      for (int64_t u = first; u < last; ++u) {
        const int64_t l = Row(slots[starts[u]]);
        const int32_t* indices = inputs.rows.indices + l * fan_in;
        float* out = sums + u * fan_in;
        std::fill(out, out + fan_in, 0.0f);
        for (int64_t i = starts[u]; i < starts[u + 1]; ++i) {
          const int64_t slot = Position(slots[i]);
          if (g[slot] == 0.0f) continue;
          const float* query = inputs.query + slot / samples * inputs.num_inputs;
          for (int64_t k = 0; k < fan_in; ++k) out[k] += g[slot] * query[indices[k]];
        }
        touched_ids[u] = static_cast<int32_t>(l);
      }
    });
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfxc>SparseHeadCandidates").Device(tensorflow::DEVICE_CPU), SparseHeadCandidatesOp);
REGISTER_KERNEL_BUILDER(Name("Tfxc>SparseHeadCandidatesGrad").Device(tensorflow::DEVICE_CPU),
                        SparseHeadCandidatesGradOp);

}  // namespace
}  // namespace tfxc
