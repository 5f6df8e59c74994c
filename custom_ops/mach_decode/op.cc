// Registers the MACH decode: its interface and its shapes.
#include "common/registration.h"

namespace tfxc {

REGISTER_OP("Tfxc>MachTopK")
    .Input("tables: float")
    .Input("coefficients: int64")
    .Input("k: int32")
    .Input("exclude: int32")
    .Output("scores: float")
    .Output("ids: int32")
    .Attr("num_classes: int >= 1")
    .Attr("prime: int >= 2")
    .Attr("decoder: {'mean', 'min', 'median'}")
    .Attr("prune: bool")
    .Attr("num_probes: int >= 0")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle tables, unused;
      DimensionHandle k;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 3, &tables));
      TF_RETURN_IF_ERROR(c->Merge(c->input(1), c->Matrix(c->Dim(tables, 1), 3), &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
      TF_RETURN_IF_ERROR(c->Merge(c->input(3), c->Matrix(c->Dim(tables, 0), c->UnknownDim()), &unused));
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &k));
      c->set_output(0, c->Matrix(c->Dim(tables, 0), k));
      c->set_output(1, c->Matrix(c->Dim(tables, 0), k));
      return absl::OkStatus();
    })
    .Doc("The k best classes by the decoded scores of their buckets [B, R, M]; prune tries the best buckets first; "
         "num_probes, unless 0, looks into so many buckets of each repetition only.");

}  // namespace tfxc
