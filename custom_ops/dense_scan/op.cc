// Registers the ops that go over all classes of a dense head: their interfaces and their shapes.
#include "common/registration.h"

namespace tfxc {
namespace {

// query [N, D], the table [rows, D], and bias [L] or [0].
absl::Status MergeInputs(InferenceContext* c, ShapeHandle* query, ShapeHandle* table, ShapeHandle* bias) {
  TF_RETURN_IF_ERROR(QueryOfTable(c, 0, 1, query, table));
  return c->WithRank(c->input(2), 1, bias);
}

absl::Status ScanShape(InferenceContext* c) {
  ShapeHandle query, table, bias, exclude, k;
  TF_RETURN_IF_ERROR(MergeInputs(c, &query, &table, &bias));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 0, &k));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 2, &exclude));
  DimensionHandle num_best;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(3, &num_best));
  c->set_output(0, c->Vector(c->Dim(query, 0)));
  for (int output : {1, 2}) c->set_output(output, c->Matrix(c->Dim(query, 0), num_best));
  bool with_tile_maxima;
  TF_RETURN_IF_ERROR(c->GetAttr("with_tile_maxima", &with_tile_maxima));
  c->set_output(3, with_tile_maxima ? c->Matrix(c->UnknownDim(), c->Dim(query, 0)) : c->Matrix(0, 0));
  return absl::OkStatus();
}

absl::Status ScanGradientShape(InferenceContext* c) {
  ShapeHandle query, table, bias;
  TF_RETURN_IF_ERROR(MergeInputs(c, &query, &table, &bias));
  c->set_output(0, query);
  c->set_output(1, table);
  c->set_output(2, bias);
  return absl::OkStatus();
}

absl::Status FilteredGradientShape(InferenceContext* c) {
  ShapeHandle query, table, bias, unused;
  TF_RETURN_IF_ERROR(MergeInputs(c, &query, &table, &bias));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(5), 2, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(6), 1, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(7), 2, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(8), 1, &unused));
  const DimensionHandle num_rows = c->UnknownDim();
  c->set_output(0, query);
  c->set_output(1, c->Vector(num_rows));
  c->set_output(2, c->Matrix(num_rows, c->Dim(query, 1)));
  c->set_output(3, c->UnknownShapeOfRank(1));
  return absl::OkStatus();
}

}  // namespace

#define TFXC_DENSE_SCAN_OP(NAME, REDUCTIONS)         \
  REGISTER_OP(NAME)                                  \
      .Input("query: float")                         \
      .Input("table: resource")                      \
      .Input("bias: float")                          \
      .Attr("reduction: " REDUCTIONS)                \
      .Attr("num_classes: int >= 1")                 \
      .Attr("row_offset: int >= 0 = 0")              \
      .Attr("normalize: bool = false")               \
      .SetIsStateful()

TFXC_DENSE_SCAN_OP("Tfxc>DenseScan", "{'none', 'squared_hinge', 'softplus', 'logsumexp'}")
    .Input("k: int32")
    .Input("exclude: int32")
    .Attr("with_tile_maxima: bool = false")
    .Output("reduced: float")
    .Output("scores: float")
    .Output("ids: int32")
    .Output("tile_maxima: float")
    .SetShapeFn(ScanShape)
    .Doc("The reduction over all classes of each query (0 for 'none'), its k best, which may be none, and if asked for "
         "the largest logit of every tile of 96 classes.");

TFXC_DENSE_SCAN_OP("Tfxc>DenseScanGrad", "{'squared_hinge', 'softplus', 'logsumexp'}")
    .Input("reduced: float")
    .Input("reduced_gradient: float")
    .Output("query_gradient: float")
    .Output("table_gradient: float")
    .Output("bias_gradient: float")
    .SetShapeFn(ScanGradientShape)
    .Doc("Dense gradients of the reduction; the logits are computed again, tile by tile.");

TFXC_DENSE_SCAN_OP("Tfxc>DenseScanFilteredGrad", "{'logsumexp'}")
    .Input("reduced: float")
    .Input("reduced_gradient: float")
    .Input("tile_maxima: float")
    .Input("more_ids: int32")
    .Input("more_row_gradients: float")
    .Input("more_bias_gradients: float")
    .Attr("log_threshold: float")
    .Output("query_gradient: float")
    .Output("ids: int32")
    .Output("row_gradients: float")
    .Output("bias_gradients: float")
    .SetShapeFn(FilteredGradientShape)
    .Doc("The gradients of the reduction without those of a query by a tile of classes where each has a probability "
         "below the threshold; of the classes of tiles that are left, in the order of their ids, and behind them the "
         "gradients that are given.");

}  // namespace tfxc
