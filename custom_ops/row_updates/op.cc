// Registers the row updates, which apply a sparse gradient in place to the touched rows of a table and its slots. The
// gradient comes as rows, or as the factors that Tfxc>CandidateScoresGrad returns.
#include "common/registration.h"

namespace tfxc {
namespace {

// Checks that values have the table's trailing dimensions.
absl::Status RowsOfTable(InferenceContext* context, ShapeHandle values) {
  const auto* table = context->input_handle_shapes_and_types(0);
  if (table == nullptr || table->empty() || !context->RankKnown((*table)[0].shape)) return absl::OkStatus();
  ShapeHandle expected;
  TF_RETURN_IF_ERROR(context->ReplaceDim((*table)[0].shape, 0, context->Dim(values, 0), &expected));
  return context->Merge(values, expected, &values);
}

// Checks scalars from input `first` on, and the seed, the last input.
absl::Status ScalarsAndSeed(InferenceContext* context, int first) {
  ShapeHandle given;
  const int seed = context->num_inputs() - 1;
  for (int input = first; input < seed; ++input) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(input), 0, &given));
  }
  DimensionHandle two;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(seed), 1, &given));
  return context->WithValue(context->Dim(given, 0), 2, &two);
}

// Inputs: kNumVariables handles (the table first), values [N, ...], row_ids [N], scalars, and the seed.
template <int kNumVariables>
absl::Status RowUpdateShape(InferenceContext* context) {
  ShapeHandle values, row_ids;
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(kNumVariables), 1, &values));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(kNumVariables + 1), 1, &row_ids));
  DimensionHandle num_gradients;
  TF_RETURN_IF_ERROR(context->Merge(context->Dim(values, 0), context->Dim(row_ids, 0), &num_gradients));
  TF_RETURN_IF_ERROR(RowsOfTable(context, values));
  return ScalarsAndSeed(context, kNumVariables + 2);
}

// Inputs: kNumVariables handles (the table first), query [N, D], score_gradients [N, S], slots, scalars, and the seed.
template <int kNumVariables>
absl::Status RowUpdateFromScoresShape(InferenceContext* context) {
  ShapeHandle query, score_gradients, slots;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(kNumVariables), 2, &query));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(kNumVariables + 1), 2, &score_gradients));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(kNumVariables + 2), 1, &slots));
  DimensionHandle num_queries;
  TF_RETURN_IF_ERROR(context->Merge(context->Dim(query, 0), context->Dim(score_gradients, 0), &num_queries));
  TF_RETURN_IF_ERROR(RowsOfTable(context, query));
  return ScalarsAndSeed(context, kNumVariables + 3);
}

}  // namespace

// Registers an update by a gradient that comes as rows, and ...FromScores, by one that comes as score gradients.
#define TFXC_ROW_UPDATE(NAME, NUM_VARIABLES, VARIABLES, SCALARS, DOC)                                          \
  REGISTER_OP("Tfxc>" NAME)                                                                                    \
      VARIABLES.Input("values: float").Input("row_ids: Tindices")                                              \
      SCALARS.Input("seed: int64")                                                                             \
      .Attr("Tindices: {int32, int64}")                                                                        \
      .SetIsStateful()                                                                                         \
      .SetShapeFn(RowUpdateShape<NUM_VARIABLES>)                                                               \
      .Doc(DOC " in the rows of the gradient, duplicates summed first; a table of bfloat16 is rounded by the seed."); \
  REGISTER_OP("Tfxc>" NAME "FromScores")                                                                       \
      VARIABLES.Input("query: float").Input("score_gradients: float").Input("slots: uint64")                   \
      SCALARS.Input("seed: int64")                                                                             \
      .SetIsStateful()                                                                                         \
      .SetShapeFn(RowUpdateFromScoresShape<NUM_VARIABLES>)                                                     \
      .Doc("Tfxc>" NAME " by the gradient score_gradients * query of the slots: row << 32 | slot, ascending.")

TFXC_ROW_UPDATE("LazyAdamUpdate", 3,
                .Input("variable: resource").Input("momentum: resource").Input("velocity: resource"),
                .Input("learning_rate: double").Input("beta_1: double").Input("beta_2: double").Input("epsilon: double"),
                "m += (g - m)(1 - beta_1); v += (g^2 - v)(1 - beta_2); "
                "variable -= learning_rate * m / (sqrt(v) + epsilon),");
TFXC_ROW_UPDATE("RowSgdUpdate", 1, .Input("variable: resource"), .Input("learning_rate: double"),
                "variable -= learning_rate * g");
TFXC_ROW_UPDATE("RowwiseAdagradUpdate", 2, .Input("variable: resource").Input("accumulator: resource"),
                .Input("learning_rate: double").Input("epsilon: double"),
                "accumulator += mean(g^2); variable -= learning_rate * g / (sqrt(accumulator) + epsilon),");

}  // namespace tfxc
