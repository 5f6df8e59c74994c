// Registers the ops that draw by blocks: their interfaces and their shapes.
#include "common/registration.h"

namespace tfxc {
namespace {

// Checks rows [L, F], query [N, F] and block_mass [N, num_blocks], and returns the query's shape.
absl::Status CheckInputs(InferenceContext* c, ShapeHandle* query) {
  ShapeHandle rows, mass;
  TF_RETURN_IF_ERROR(QueryOfTable(c, 1, 0, query, &rows));
  return c->Merge(c->input(2), c->Matrix(c->Dim(*query, 0), c->UnknownDim()), &mass);
}

}  // namespace

#define TFXC_BLOCK_OP(NAME)               \
  REGISTER_OP(NAME)                       \
      .Input("rows: resource")            \
      .Input("query: float")              \
      .Input("block_mass: float")         \
      .Attr("kernel: list(float) >= 4")   \
      .Attr("block_size: int >= 1")       \
      .SetIsStateful()

TFXC_BLOCK_OP("Tfxc>BlockDraw")
    .Input("seed: int64")
    .Output("class_ids: int32")
    .Output("log_prob: float")
    .Attr("num_samples: int >= 1")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle query, unused;
      TF_RETURN_IF_ERROR(CheckInputs(c, &query));
      TF_RETURN_IF_ERROR(c->Merge(c->input(3), c->Vector(2), &unused));
      int32_t num_samples;
      TF_RETURN_IF_ERROR(c->GetAttr("num_samples", &num_samples));
      c->set_output(0, c->Matrix(c->Dim(query, 0), num_samples));
      c->set_output(1, c->Matrix(c->Dim(query, 0), num_samples));
      return absl::OkStatus();
    })
    .Doc("Draws a block of classes by its mass, then a class of it by its kernel, with the log-probabilities.");

TFXC_BLOCK_OP("Tfxc>BlockLogProb")
    .Input("class_ids: int32")
    .Output("log_prob: float")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle query, ids;
      TF_RETURN_IF_ERROR(CheckInputs(c, &query));
      TF_RETURN_IF_ERROR(c->Merge(c->input(3), c->Matrix(c->Dim(query, 0), c->UnknownDim()), &ids));
      c->set_output(0, ids);
      return absl::OkStatus();
    })
    .Doc("Log-probabilities with which Tfxc>BlockDraw draws given classes.");

}  // namespace tfxc
