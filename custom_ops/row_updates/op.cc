// Registration of the row updates: a sparse gradient applied in place to the touched rows of a table and its slots.
#include "common/registration.h"

namespace tfxc {
namespace {

// Inputs: kNumVariables handles (the table first), values [N, ...], row_ids [N], then scalars.
template <int kNumVariables>
absl::Status RowUpdateShape(InferenceContext* context) {
  ShapeHandle values, row_ids, scalar;
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
  for (int input = kNumVariables + 2; input < context->num_inputs(); ++input) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(input), 0, &scalar));
  }
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
    .Attr("Tindices: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(RowUpdateShape<3>)
    .Doc("m += (g - m)(1 - beta_1); v += (g^2 - v)(1 - beta_2); variable -= learning_rate * m / (sqrt(v) + epsilon), "
         "in the rows of the gradient, duplicates summed first.");

REGISTER_OP("Tfxc>RowSgdUpdate")
    .Input("variable: resource")
    .Input("values: float")
    .Input("row_ids: Tindices")
    .Input("learning_rate: double")
    .Attr("Tindices: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(RowUpdateShape<1>)
    .Doc("variable -= learning_rate * g in the rows of the gradient, duplicates summed first.");

REGISTER_OP("Tfxc>RowwiseAdagradUpdate")
    .Input("variable: resource")
    .Input("accumulator: resource")
    .Input("values: float")
    .Input("row_ids: Tindices")
    .Input("learning_rate: double")
    .Input("epsilon: double")
    .Attr("Tindices: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(RowUpdateShape<2>)
    .Doc("accumulator += mean(g^2); variable -= learning_rate * g / (sqrt(accumulator) + epsilon), in the rows of the "
         "gradient, duplicates summed first.");

}  // namespace tfxc
