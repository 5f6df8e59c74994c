// Registration of the log-sum-exp of candidates: its interface and its shapes.
#include "common/registration.h"

namespace tfxc {
namespace {

struct Dimensions {
  DimensionHandle queries, width, slots, candidates, labels;
};

// Checks table [rows, D], query [N, D], class_ids [N, S] and, at `per_candidate`, something [N, S - P].
absl::Status ReadDimensions(InferenceContext* c, int per_candidate, Dimensions* d) {
  ShapeHandle query, ids, given;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &query));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &ids));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(per_candidate), 2, &given));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(query, 0), c->Dim(ids, 0), &d->queries));
  TF_RETURN_IF_ERROR(c->Merge(d->queries, c->Dim(given, 0), &d->queries));
  d->width = c->Dim(query, 1);
  d->slots = c->Dim(ids, 1);
  d->candidates = c->Dim(given, 1);
  const auto* handle = c->input_handle_shapes_and_types(0);
  if (handle != nullptr && !handle->empty()) {
    ShapeHandle table;
    TF_RETURN_IF_ERROR(c->WithRank((*handle)[0].shape, 2, &table));
    TF_RETURN_IF_ERROR(c->Merge(c->Dim(table, 1), d->width, &d->width));
  }
  return c->Subtract(d->slots, d->candidates, &d->labels);
}

}  // namespace

REGISTER_OP("Tfxc>CandidateLogSumExp")
    .Input("table: resource")
    .Input("query: float")
    .Input("class_ids: int32")
    .Input("offsets: float")
    .Output("label_scores: float")
    .Output("log_sum: float")
    .Output("label_vectors: float")
    .Output("shares: float")
    .Output("mean: float")
    .Output("slots: uint64")
    .Attr("normalize: bool")
    .Attr("row_offset: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      Dimensions d;
      TF_RETURN_IF_ERROR(ReadDimensions(c, 3, &d));
      c->set_output(0, c->Matrix(d.queries, d.labels));
      c->set_output(1, c->Matrix(d.queries, 1));
      c->set_output(2, c->MakeShape({d.queries, d.labels, d.width}));
      c->set_output(3, c->Matrix(d.queries, d.candidates));
      c->set_output(4, c->Matrix(d.queries, d.width));
      c->set_output(5, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc("Scores of the first class_ids, and the log-sum-exp of the last ones' scores + offsets; id -1, or offset -infinity, is an "
         "empty slot. "
         "The class vectors of labels, shares of the sum, the mean class vector by them, and the filled slots, sorted, "
         "as row << 32 | slot, are for "
         "the gradient.");

REGISTER_OP("Tfxc>CandidateLogSumExpGrad")
    .Input("table: resource")
    .Input("query: float")
    .Input("class_ids: int32")
    .Input("label_vectors: float")
    .Input("shares: float")
    .Input("mean: float")
    .Input("slots: uint64")
    .Input("label_gradient: float")
    .Input("sum_gradient: float")
    .Output("query_gradient: float")
    .Output("score_gradients: float")
    .Output("offset_gradient: float")
    .Output("row_gradients: float")
    .Output("rows: int32")
    .Attr("normalize: bool")
    .Attr("row_offset: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      Dimensions d;
      TF_RETURN_IF_ERROR(ReadDimensions(c, 4, &d));
      ShapeHandle given;
      TF_RETURN_IF_ERROR(c->Merge(c->input(3), c->MakeShape({d.queries, d.labels, d.width}), &given));
      TF_RETURN_IF_ERROR(c->Merge(c->input(5), c->Matrix(d.queries, d.width), &given));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(6), 1, &given));
      TF_RETURN_IF_ERROR(c->Merge(c->input(7), c->Matrix(d.queries, d.labels), &given));
      TF_RETURN_IF_ERROR(c->Merge(c->input(8), c->Matrix(d.queries, 1), &given));
      const DimensionHandle touched = c->UnknownDim();
      c->set_output(0, c->Matrix(d.queries, d.width));
      c->set_output(1, c->Matrix(d.queries, d.slots));
      c->set_output(2, c->Matrix(d.queries, d.candidates));
      c->set_output(3, c->Matrix(touched, d.width));
      c->set_output(4, c->Vector(touched));
      return absl::OkStatus();
    })
    .Doc("Gradients of Tfxc>CandidateLogSumExp: dense for query, scores and offsets; for the table one row a touched "
         "class. Only what is used is made.");

}  // namespace tfxc
