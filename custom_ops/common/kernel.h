// What the files of CPU kernels share: TensorFlow's short names, errors, and tensors as plain arrays.
#ifndef TFXC_COMMON_KERNEL_H_
#define TFXC_COMMON_KERNEL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tfxc {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename... Args>
absl::Status InvalidArgument(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// The numbers of a tensor, at any address: a tensor that is a part of another, or that came from another library, need
// not be aligned, and the process dies where Tensor::flat() or scalar() meets one. What an op allocates is aligned.
template <typename T>
const T* Data(const Tensor& tensor) {
  return tensor.unaligned_flat<T>().data();
}
template <typename T>
T* Data(Tensor* tensor) {
  return tensor->unaligned_flat<T>().data();
}

}  // namespace tfxc

#endif  // TFXC_COMMON_KERNEL_H_
