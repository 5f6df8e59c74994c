// Registers the log-sum-exp of candidates and its gradient: their interfaces and their shapes.
#include "common/registration.h"

namespace tfxc {

REGISTER_OP("Tfxc>CandidateLogSumExp")
    .Input("table: resource")
    .Input("query: float")
    .Input("label_ids: int32")
    .Input("class_ids: int32")
    .Input("offsets: float")
    .Output("label_scores: float")
    .Output("log_sum: float")
    .Output("label_vectors: float")
    .Output("shares: float")
    .Output("mean: float")
    .Output("slots: uint64")
    .Output("ids: int32")
    .Attr("normalize: bool")
    .Attr("row_offset: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle query, table, labels, candidates, offsets;
      DimensionHandle queries;
      TF_RETURN_IF_ERROR(QueryOfTable(c, 1, 0, &query, &table));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &labels));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 2, &candidates));
      TF_RETURN_IF_ERROR(c->Merge(candidates, c->input(4), &offsets));
      TF_RETURN_IF_ERROR(c->Merge(c->Dim(query, 0), c->Dim(labels, 0), &queries));
      TF_RETURN_IF_ERROR(c->Merge(queries, c->Dim(offsets, 0), &queries));
      const DimensionHandle num_labels = c->Dim(labels, 1), num_candidates = c->Dim(offsets, 1);
      DimensionHandle slots;
      TF_RETURN_IF_ERROR(c->Add(num_labels, num_candidates, &slots));
      c->set_output(0, c->Matrix(queries, num_labels));
      c->set_output(1, c->Matrix(queries, 1));
      c->set_output(2, c->MakeShape({queries, num_labels, c->Dim(query, 1)}));
      c->set_output(3, c->Matrix(queries, num_candidates));
      c->set_output(4, c->Matrix(queries, c->Dim(query, 1)));
      c->set_output(5, c->Vector(c->UnknownDim()));
      c->set_output(6, c->Matrix(queries, slots));
      return absl::OkStatus();
    })
    .Doc("Scores of label_ids, and the log-sum-exp of class_ids' scores + offsets; id -1, or offset -infinity, is an "
         "empty slot. The class vectors of labels, shares of the sum, the mean class vector by them, the filled slots, "
         "sorted, as row << 32 | slot, and the ids of labels and candidates side by side, -1 in empty slots, are for the "
         "gradient.");

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
      ShapeHandle query, table, ids, shares, given;
      DimensionHandle queries, labels;
      TF_RETURN_IF_ERROR(QueryOfTable(c, 1, 0, &query, &table));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &ids));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 2, &shares));
      TF_RETURN_IF_ERROR(c->Merge(c->Dim(query, 0), c->Dim(ids, 0), &queries));
      TF_RETURN_IF_ERROR(c->Merge(queries, c->Dim(shares, 0), &queries));
      TF_RETURN_IF_ERROR(c->Subtract(c->Dim(ids, 1), c->Dim(shares, 1), &labels));
      const DimensionHandle width = c->Dim(query, 1);
      TF_RETURN_IF_ERROR(c->Merge(c->input(3), c->MakeShape({queries, labels, width}), &given));
      TF_RETURN_IF_ERROR(c->Merge(c->input(5), c->Matrix(queries, width), &given));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(6), 1, &given));
      TF_RETURN_IF_ERROR(c->Merge(c->input(7), c->Matrix(queries, labels), &given));
      TF_RETURN_IF_ERROR(c->Merge(c->input(8), c->Matrix(queries, 1), &given));
      const DimensionHandle touched = c->UnknownDim();
      c->set_output(0, c->Matrix(queries, width));
      c->set_output(1, c->Matrix(queries, c->Dim(ids, 1)));
      c->set_output(2, c->Matrix(queries, c->Dim(shares, 1)));
      c->set_output(3, c->Matrix(touched, width));
      c->set_output(4, c->Vector(touched));
      return absl::OkStatus();
    })
    .Doc("Gradients of Tfxc>CandidateLogSumExp: dense for query, scores and offsets; for the table one row a touched "
         "class. Only what is used is made.");

}  // namespace tfxc
