// Registers the candidate score ops: their interfaces and their shapes.
#include "common/registration.h"

namespace tfxc {
namespace {

// Checks table [rows, D], query [N, D], class_ids [N, S]; merges N and D.
absl::Status MergeInputs(InferenceContext* c, DimensionHandle* n, DimensionHandle* d, DimensionHandle* s) {
  ShapeHandle query, table, ids;
  TF_RETURN_IF_ERROR(QueryOfTable(c, 1, 0, &query, &table));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &ids));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(query, 0), c->Dim(ids, 0), n));
  *d = c->Dim(query, 1);
  *s = c->Dim(ids, 1);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Tfxc>CandidateScores")
    .Input("table: resource")
    .Input("query: float")
    .Input("class_ids: int32")
    .Output("scores: float")
    .Attr("normalize: bool")
    .Attr("row_offset: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      DimensionHandle n, d, s;
      TF_RETURN_IF_ERROR(MergeInputs(c, &n, &d, &s));
      c->set_output(0, c->Matrix(n, s));
      return absl::OkStatus();
    })
    .Doc("scores[n, s] = query[n] . table[class_ids[n, s] + row_offset]; id -1 is an empty slot, score 0.");

REGISTER_OP("Tfxc>CandidateScoresGrad")
    .Input("table: resource")
    .Input("query: float")
    .Input("class_ids: int32")
    .Input("gradient: float")
    .Output("query_gradient: float")
    .Output("row_gradients: float")
    .Output("rows: int32")
    .Output("slots: uint64")
    .Attr("normalize: bool")
    .Attr("row_offset: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      DimensionHandle n, d, s;
      TF_RETURN_IF_ERROR(MergeInputs(c, &n, &d, &s));
      ShapeHandle gradient;
      TF_RETURN_IF_ERROR(c->Merge(c->input(3), c->Matrix(n, s), &gradient));
      c->set_output(0, c->Matrix(n, d));
      const DimensionHandle touched = c->UnknownDim();
      c->set_output(1, c->Matrix(touched, d));
      c->set_output(2, c->Vector(touched));
      c->set_output(3, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc("Gradients of Tfxc>CandidateScores: dense for the query; for the table one row a touched class, or the "
         "sorted slots, row << 32 | slot, from which an update makes it. Only what is used is made.");

}  // namespace tfxc
