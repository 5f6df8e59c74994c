// Registers the ops of the uniformly sparse head: their interfaces and their shapes.
#include "common/limits.h"
#include "common/registration.h"

namespace tfxc {
namespace {

struct Sizes {
  DimensionHandle queries, inputs, classes, fan_in, biases;
};

// Checks the first inputs of all ops: query [N, E], weights [L, K] and indices [ceil(L / G), K].
absl::Status MergeInputs(InferenceContext* c, Sizes* sizes) {
  ShapeHandle query, weights, indices;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &query));
  TF_RETURN_IF_ERROR(MatrixOf(c, 1, &weights));
  TF_RETURN_IF_ERROR(MatrixOf(c, 2, &indices));
  int64_t group_size;
  TF_RETURN_IF_ERROR(ReadBounded(c, "group_size", kMostClasses, &group_size));
  const DimensionHandle classes = c->Dim(weights, 0);
  DimensionHandle groups = c->UnknownDim(), fan_in;
  if (c->ValueKnown(classes)) groups = c->MakeDim((c->Value(classes) + group_size - 1) / group_size);
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(indices, 0), groups, &groups));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(indices, 1), c->Dim(weights, 1), &fan_in));
  *sizes = {c->Dim(query, 0), c->Dim(query, 1), classes, fan_in, c->UnknownDim()};
  return absl::OkStatus();
}

// The same, with the next input, bias [L] or [0].
absl::Status MergeInputsAndBias(InferenceContext* c, Sizes* sizes) {
  ShapeHandle bias;
  TF_RETURN_IF_ERROR(MergeInputs(c, sizes));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 1, &bias));
  sizes->biases = c->Dim(bias, 0);
  return absl::OkStatus();
}

absl::Status LogitsShape(InferenceContext* c) {
  Sizes sizes;
  TF_RETURN_IF_ERROR(MergeInputsAndBias(c, &sizes));
  c->set_output(0, c->Matrix(sizes.queries, c->UnknownDim()));
  return absl::OkStatus();
}

absl::Status DenseGradientShape(InferenceContext* c) {
  Sizes sizes;
  TF_RETURN_IF_ERROR(MergeInputsAndBias(c, &sizes));
  c->set_output(0, c->Matrix(sizes.queries, sizes.inputs));
  c->set_output(1, c->Matrix(sizes.classes, sizes.fan_in));
  c->set_output(2, c->Vector(sizes.biases));
  return absl::OkStatus();
}

absl::Status ReduceShape(InferenceContext* c) {
  Sizes sizes;
  ShapeHandle labels;
  TF_RETURN_IF_ERROR(MergeInputsAndBias(c, &sizes));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 2, &labels));
  c->set_output(0, c->Vector(sizes.queries));
  c->set_output(1, labels);
  return absl::OkStatus();
}

absl::Status CandidatesShape(InferenceContext* c) {
  Sizes sizes;
  ShapeHandle ids;
  TF_RETURN_IF_ERROR(MergeInputs(c, &sizes));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 2, &ids));
  c->set_output(0, ids);
  return absl::OkStatus();
}

absl::Status CandidatesGradientShape(InferenceContext* c) {
  Sizes sizes;
  TF_RETURN_IF_ERROR(MergeInputs(c, &sizes));
  const DimensionHandle touched = c->UnknownDim();
  c->set_output(0, c->Matrix(sizes.queries, sizes.inputs));
  c->set_output(1, c->Matrix(touched, sizes.fan_in));
  c->set_output(2, c->Vector(touched));
  return absl::OkStatus();
}

}  // namespace

#define TFXC_SPARSE_HEAD_OP(NAME)         \
  REGISTER_OP(NAME)                       \
      .Input("query: float")              \
      .Input("weights: resource")         \
      .Input("indices: resource")         \
      .Attr("group_size: int >= 1 = 1")   \
      .SetIsStateful()

TFXC_SPARSE_HEAD_OP("Tfxc>SparseHeadLogits")
    .Input("bias: float")
    .Input("start: int32")
    .Input("stop: int32")
    .Output("logits: float")
    .SetShapeFn(LogitsShape)
    .Doc("logits[n, l - start] = sum_k weights[l, k] * query[n, indices[l / group_size, k]] + bias[l] for classes start "
         "to stop.");

TFXC_SPARSE_HEAD_OP("Tfxc>SparseHeadLogitsGrad")
    .Input("bias: float")
    .Input("start: int32")
    .Input("stop: int32")
    .Input("gradient: float")
    .Output("query_gradient: float")
    .Output("weight_gradient: float")
    .Output("bias_gradient: float")
    .SetShapeFn(DenseGradientShape)
    .Doc("Dense gradients of Tfxc>SparseHeadLogits, 0 for the classes outside the block.");

TFXC_SPARSE_HEAD_OP("Tfxc>SparseHeadReduce")
    .Input("bias: float")
    .Input("labels: int32")
    .Attr("reduction: {'squared_hinge', 'softplus', 'logsumexp'}")
    .Output("reduced: float")
    .Output("positives: float")
    .SetShapeFn(ReduceShape)
    .Doc("The reduction over all classes of each query, and the logits of its labels (-1: 0).");

TFXC_SPARSE_HEAD_OP("Tfxc>SparseHeadReduceGrad")
    .Input("bias: float")
    .Input("labels: int32")
    .Input("reduced: float")
    .Input("reduced_gradient: float")
    .Input("positives_gradient: float")
    .Attr("reduction: {'squared_hinge', 'softplus', 'logsumexp'}")
    .Output("query_gradient: float")
    .Output("weight_gradient: float")
    .Output("bias_gradient: float")
    .SetShapeFn(DenseGradientShape)
    .Doc("Dense gradients of Tfxc>SparseHeadReduce; the logits are computed again, class by class.");

TFXC_SPARSE_HEAD_OP("Tfxc>SparseHeadCandidates")
    .Input("class_ids: int32")
    .Output("scores: float")
    .SetShapeFn(CandidatesShape)
    .Doc("Logits of chosen classes, biases aside; id -1 is an empty slot, score 0.");

TFXC_SPARSE_HEAD_OP("Tfxc>SparseHeadCandidatesGrad")
    .Input("class_ids: int32")
    .Input("gradient: float")
    .Output("query_gradient: float")
    .Output("row_gradients: float")
    .Output("rows: int32")
    .SetShapeFn(CandidatesGradientShape)
    .Doc("Gradients of Tfxc>SparseHeadCandidates: dense for the query, one row a touched class for the weights.");

}  // namespace tfxc
