// Registers the ops of candidates from hash tables: their interfaces and their shapes.
#include "common/registration.h"

namespace tfxc {
namespace {

// Inputs 0 to 3 are query_codes [N, M, T], codes [L, T], offsets [T, buckets + 1] and members [T, L].
absl::Status CheckTables(InferenceContext* c) {
  ShapeHandle query, codes, offsets, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 3, &query));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &codes));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &offsets));
  DimensionHandle tables;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(query, 2), c->Dim(codes, 1), &tables));
  TF_RETURN_IF_ERROR(c->Merge(tables, c->Dim(offsets, 0), &tables));
  return c->Merge(c->input(3), c->Matrix(tables, c->Dim(codes, 0)), &unused);
}

}  // namespace

#define TFXC_LSH_OP(NAME)                   \
  REGISTER_OP(NAME)                         \
      .Input("query_codes: int32")          \
      .Input("codes: uint16")               \
      .Input("offsets: int32")              \
      .Input("members: int32")              \
      .Attr("num_candidates: int >= 1")     \
      .Attr("uniform_fraction: float")      \
      .Attr("bucket_slots: int >= 0")

TFXC_LSH_OP("Tfxc>LshDraw")
    .Input("seed: int64")
    .Output("class_ids: int32")
    .Output("log_expected_count: float")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      TF_RETURN_IF_ERROR(CheckTables(c));
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->Merge(c->input(4), c->Vector(2), &unused));
      int64_t num_candidates;
      TF_RETURN_IF_ERROR(c->GetAttr("num_candidates", &num_candidates));
      for (int i = 0; i < 2; ++i) c->set_output(i, c->Matrix(c->Dim(c->input(0), 0), num_candidates));
      return absl::OkStatus();
    })
    .Doc("Draws classes from the buckets of each query, with the log of their expected counts.");

TFXC_LSH_OP("Tfxc>LshLogExpectedCount")
    .Input("class_ids: int32")
    .Output("log_expected_count: float")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      TF_RETURN_IF_ERROR(CheckTables(c));
      ShapeHandle ids;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 2, &ids));
      DimensionHandle unused;
      TF_RETURN_IF_ERROR(c->Merge(c->Dim(ids, 0), c->Dim(c->input(0), 0), &unused));
      c->set_output(0, ids);
      return absl::OkStatus();
    })
    .Doc("The log expected count of any classes among the candidates of Tfxc>LshDraw.");

}  // namespace tfxc
