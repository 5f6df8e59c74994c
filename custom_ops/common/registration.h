// What the files that register ops call TensorFlow's by their short names.
#ifndef TFXC_COMMON_REGISTRATION_H_
#define TFXC_COMMON_REGISTRATION_H_

#include "common/errors.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfxc {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

}  // namespace tfxc

#endif  // TFXC_COMMON_REGISTRATION_H_
