// Short names of TensorFlow's shape inference, and the checks that shape functions share.
#pragma once

#include "common/errors.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfxc {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The shape of the matrix behind a handle; of unknown sizes where nothing is known of the variable.
inline absl::Status MatrixOf(InferenceContext* c, int input, ShapeHandle* shape) {
  const auto* handle = c->input_handle_shapes_and_types(input);
  if (handle == nullptr || handle->empty()) {
    *shape = c->UnknownShapeOfRank(2);
    return absl::OkStatus();
  }
  return c->WithRank((*handle)[0].shape, 2, shape);
}

// The shapes of a query [N, D] and of the table [rows, D] behind a handle, which have the same width.
inline absl::Status QueryOfTable(InferenceContext* c, int query_input, int table_input, ShapeHandle* query,
                                 ShapeHandle* table) {
  DimensionHandle width;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(query_input), 2, query));
  TF_RETURN_IF_ERROR(MatrixOf(c, table_input, table));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(*table, 1), c->Dim(*query, 1), &width));
  return c->ReplaceDim(*query, 1, width, query);
}

}  // namespace tfxc
