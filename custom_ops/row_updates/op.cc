// Registration of the row updates: a sparse gradient applied in place to the touched rows of a table and its slots.
#include "common/registration.h"

namespace tfxc {
namespace {

// Inputs: kNumVariables handles (the table first), values [N, ...], row_ids [N], then scalars, and the seed.
template <int kNumVariables>
absl::Status RowUpdateShape(InferenceContext* context) {
  ShapeHandle values, row_ids, given;
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(kNumVariables), 1, &values));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(kNumVariables + 1), 1, &row_ids));
  DimensionHandle num_gradients;
  TF_RETURN_IF_ERROR(context->Merge(context->Dim(values, 0), context->Dim(row_ids, 0), &num_gradients));
  const auto* table = context->input_handle_shapes_and_types(0);
  if (table != nullptr && !table->empty() && context->RankKnown((*table)[0].shape)) {
    ShapeHandle expected;
    TF_RETURN_IF_ERROR(context->ReplaceDim((*table)[0].shape, 0, num_gradients, &expected));
    TF_RETURN_IF_ERROR(context->Merge(values, expected, &values));
  }
  const int seed = context->num_inputs() - 1;
  for (int input = kNumVariables + 2; input < seed; ++input) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(input), 0, &given));
  }
  DimensionHandle two;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(seed), 1, &given));
  TF_RETURN_IF_ERROR(context->WithValue(context->Dim(given, 0), 2, &two));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Tfxc>LazyAdamUpdate")
    .Input("variable: resource")
    .Input("momentum: resource")
    .Input("velocity: resource")
    .Input("values: float")
    .Input("row_ids: Tindices")
    .Input("learning_rate: double")
    .Input("beta_1: double")
    .Input("beta_2: double")
    .Input("epsilon: double")
    .Input("seed: int64")
    .Attr("Tindices: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(RowUpdateShape<3>)
    .Doc("m += (g - m)(1 - beta_1); v += (g^2 - v)(1 - beta_2); variable -= learning_rate * m / (sqrt(v) + epsilon), "
         "in the rows of the gradient, duplicates summed first; a table of bfloat16 is rounded by the seed.");

REGISTER_OP("Tfxc>RowSgdUpdate")
    .Input("variable: resource")
    .Input("values: float")
    .Input("row_ids: Tindices")
    .Input("learning_rate: double")
    .Input("seed: int64")
    .Attr("Tindices: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(RowUpdateShape<1>)
    .Doc("variable -= learning_rate * g in the rows of the gradient, duplicates summed first; a table of bfloat16 is "
         "rounded by the seed.");

REGISTER_OP("Tfxc>RowwiseAdagradUpdate")
    .Input("variable: resource")
    .Input("accumulator: resource")
    .Input("values: float")
    .Input("row_ids: Tindices")
    .Input("learning_rate: double")
    .Input("epsilon: double")
    .Input("seed: int64")
    .Attr("Tindices: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(RowUpdateShape<2>)
    .Doc("accumulator += mean(g^2); variable -= learning_rate * g / (sqrt(accumulator) + epsilon), in the rows of the "
         "gradient, duplicates summed first; a table of bfloat16 is rounded by the seed.");

}  // namespace tfxc
