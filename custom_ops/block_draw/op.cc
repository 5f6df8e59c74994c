// Registration of the ops that draw by blocks: their interface and their shapes.
#include "common/registration.h"

namespace tfxc {
namespace {

// Checks rows [L, F], query [N, F] and block_mass [N, num_blocks], and gives the query's shape.
absl::Status CheckInputs(InferenceContext* c, ShapeHandle* query) {
  ShapeHandle mass, merged;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, query));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &mass));
  TF_RETURN_IF_ERROR(c->Merge(mass, c->Matrix(c->Dim(*query, 0), c->UnknownDim()), &merged));
  const auto* handle = c->input_handle_shapes_and_types(0);
  if (handle != nullptr && !handle->empty()) {
    TF_RETURN_IF_ERROR(c->Merge((*handle)[0].shape, c->Matrix(c->UnknownDim(), c->Dim(*query, 1)), &merged));
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Tfxc>BlockDraw")
    .Input("rows: resource")
    .Input("query: float")
    .Input("block_mass: float")
    .Input("seed: int64")
    .Output("class_ids: int32")
    .Output("log_prob: float")
    .Attr("kernel: list(float) >= 4")
    .Attr("block_size: int >= 1")
    .Attr("num_samples: int >= 1")
    .SetIsStateful()
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

REGISTER_OP("Tfxc>BlockLogProb")
    .Input("rows: resource")
    .Input("query: float")
    .Input("block_mass: float")
    .Input("class_ids: int32")
    .Output("log_prob: float")
    .Attr("kernel: list(float) >= 4")
    .Attr("block_size: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle query, ids;
      TF_RETURN_IF_ERROR(CheckInputs(c, &query));
      TF_RETURN_IF_ERROR(c->Merge(c->input(3), c->Matrix(c->Dim(query, 0), c->UnknownDim()), &ids));
      c->set_output(0, ids);
      return absl::OkStatus();
    })
    .Doc("Log-probabilities with which Tfxc>BlockDraw draws given classes.");

}  // namespace tfxc
