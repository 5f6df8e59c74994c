// The first steps of every op of the uniformly sparse head: it looks up its variables and checks its inputs.
#pragma once

#include "common/kernel.h"
#include "common/limits.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "sparse_head/tiles.h"

namespace tfxc {

// Query [N, E], the rows of the L classes, and the locks that keep writers away while they are read in place.
struct HeadInputs {
  tensorflow::core::RefCountPtr<tensorflow::Var> weights, indices;
  std::unique_ptr<tensorflow::tf_shared_lock> weights_lock, indices_lock;
  const float* query;
  int64_t num_queries, num_inputs, num_classes, num_biases;
  SparseRows rows;
};

// `bias` is [L] or [0], or nullptr for an op without biases.
inline absl::Status ReadInputs(OpKernelContext* context, int64_t group_size, const Tensor* bias, HeadInputs* inputs) {
  TF_RETURN_IF_ERROR(LookupResource(context, tensorflow::HandleFromInput(context, 1), &inputs->weights));
  TF_RETURN_IF_ERROR(LookupResource(context, tensorflow::HandleFromInput(context, 2), &inputs->indices));
  inputs->weights_lock = std::make_unique<tensorflow::tf_shared_lock>(*inputs->weights->mu());
  inputs->indices_lock = std::make_unique<tensorflow::tf_shared_lock>(*inputs->indices->mu());
  const Tensor& query = context->input(0);
  inputs->num_biases = bias == nullptr || bias->dims() != 1 ? 0 : bias->dim_size(0);
  const Tensor &weights = *inputs->weights->tensor(), &indices = *inputs->indices->tensor();
  if (weights.dtype() != tensorflow::DT_FLOAT || indices.dtype() != tensorflow::DT_INT32 || weights.dims() != 2 ||
      indices.dims() != 2 || indices.dim_size(1) != weights.dim_size(1) ||
      indices.dim_size(0) != (weights.dim_size(0) + group_size - 1) / group_size ||
      weights.dim_size(0) > kMostClasses || query.dims() != 2 || (bias != nullptr && bias->dims() != 1) ||
      (inputs->num_biases != 0 && inputs->num_biases != weights.dim_size(0))) {
    return InvalidArgument("A sparse head needs float32 weights [L, K], int32 indices [ceil(L / G), K] with G = ",
                           group_size, ", query [N, E] and bias [L] or [0], L below 2^31, but got ",
                           inputs->weights->DebugString(), ", ",
                           inputs->indices->DebugString(), ", ", query.shape().DebugString(), " and ",
                           bias == nullptr ? "none" : bias->shape().DebugString(), ".");
  }
  inputs->query = Data<float>(query);
  inputs->num_queries = query.dim_size(0);
  inputs->num_inputs = query.dim_size(1);
  inputs->num_classes = weights.dim_size(0);
  inputs->rows = {Data<float>(weights), Data<int32_t>(indices),
                  inputs->num_biases == 0 ? nullptr : Data<float>(*bias), weights.dim_size(1),
                  static_cast<uint32_t>(query.dim_size(1)), group_size};
  return absl::OkStatus();
}

// An error that names the bad input of a class, or OK for kNoClass.
inline absl::Status CheckClass(const HeadInputs& inputs, int64_t bad) {
  if (bad == kNoClass) return absl::OkStatus();
  const int32_t* row = InputsOf(inputs.rows, bad);
  int64_t k = 0;
  while (static_cast<uint32_t>(row[k]) < inputs.rows.num_inputs) ++k;
  return InvalidArgument("indices[", bad / inputs.rows.group_size, ", ", k, "] is ", row[k], ", but the query has ", inputs.num_inputs,
                         " inputs: indices are 0 to ", inputs.num_inputs - 1, ".");
}

}  // namespace tfxc
