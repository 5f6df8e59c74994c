// Registers the MIDX draw: its interface and its shapes.
#include "common/registration.h"

namespace tfxc {

REGISTER_OP("Tfxc>MidxDraw")
    .Input("row_logits: float")
    .Input("column_logits: float")
    .Input("cell_mass: float")
    .Input("cell_offsets: int32")
    .Input("slots: int32")
    .Input("seed: int64")
    .Output("class_ids: int32")
    .Output("log_prob: float")
    .Output("log_partition: float")
    .Attr("num_samples: int >= 1")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle logits, mass, unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &logits));
      TF_RETURN_IF_ERROR(c->Merge(logits, c->input(1), &logits));
      DimensionHandle codewords = c->Dim(logits, 1);
      TF_RETURN_IF_ERROR(c->Merge(c->input(2), c->Matrix(codewords, codewords), &mass));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 2, &unused));
      TF_RETURN_IF_ERROR(c->Merge(c->input(5), c->Vector(2), &unused));
      int32_t num_samples;
      TF_RETURN_IF_ERROR(c->GetAttr("num_samples", &num_samples));
      c->set_output(0, c->Matrix(c->Dim(logits, 0), num_samples));
      c->set_output(1, c->Matrix(c->Dim(logits, 0), num_samples));
      c->set_output(2, c->Vector(c->Dim(logits, 0)));
      return absl::OkStatus();
    })
    .Doc("Draws classes from the softmax over quantised class vectors: ids, log-probabilities, and the log of the "
         "partition function.");

}  // namespace tfxc
