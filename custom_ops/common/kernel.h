// What the files of CPU kernels call TensorFlow's by their short names.
#ifndef TFXC_COMMON_KERNEL_H_
#define TFXC_COMMON_KERNEL_H_

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tfxc {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::errors::InvalidArgument;

}  // namespace tfxc

#endif  // TFXC_COMMON_KERNEL_H_
