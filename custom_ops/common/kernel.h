// Shared by CPU kernels: short names of TensorFlow's types, errors, tensors as plain arrays, seeds, threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "common/errors.h"
#include "common/philox.h"
#include "common/table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tfxc {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The numbers of a tensor, at any address: a tensor that is a slice of another, or that came from another library, need
// not be aligned, and Tensor::flat() or scalar() ends the process there. Tensors that an op allocates are aligned.
template <typename T>
const T* Data(const Tensor& tensor) {
  return tensor.unaligned_flat<T>().data();
}
template <typename T>
T* Data(Tensor* tensor) {
  return tensor->unaligned_flat<T>().data();
}

inline bool IsTableType(const Tensor& tensor) {
  return tensor.dtype() == tensorflow::DT_FLOAT || tensor.dtype() == tensorflow::DT_BFLOAT16;
}

// The numbers of a tensor of bfloat16.
inline Bfloat16* Halves(Tensor* tensor) { return reinterpret_cast<Bfloat16*>(Data<tensorflow::bfloat16>(tensor)); }

// The rows [rows, width] of a tensor of IsTableType, from `first` on.
inline Table TableOf(const Tensor& tensor, int64_t first) {
  const int64_t width = tensor.dim_size(1);
  if (tensor.dtype() == tensorflow::DT_FLOAT) return Table(Data<float>(tensor) + first * width, width);
  return Table(reinterpret_cast<const Bfloat16*>(Data<tensorflow::bfloat16>(tensor)) + first * width, width);
}

// Whether a shape has these sizes. To make a TensorShape of them would end the process where their product is above
// int64, as it may be for a tensor without elements.
inline bool HasShape(const TensorShape& shape, std::initializer_list<int64_t> sizes) {
  bool has = shape.dims() == static_cast<int>(sizes.size());
  for (int i = 0; has && i < shape.dims(); ++i) has = shape.dim_size(i) == sizes.begin()[i];
  return has;
}

// Allocates an output of these sizes; InvalidArgument where their product is above int64.
inline absl::Status Allocate(OpKernelContext* context, int output, std::initializer_list<int64_t> sizes,
                             Tensor** tensor) {
  TensorShape shape;
  TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(absl::MakeConstSpan(sizes.begin(), sizes.size()), &shape));
  return context->allocate_output(output, shape, tensor);
}

// Reads the seed [2] from an input of an op.
inline absl::Status ReadSeed(OpKernelContext* context, int input, Seed* seed) {
  const Tensor& given = context->input(input);
  if (!HasShape(given.shape(), {2})) {
    return InvalidArgument("seed must have shape [2], but has ", given.shape().DebugString(), ".");
  }
  const int64_t* numbers = Data<int64_t>(given);
  *seed = {static_cast<uint64_t>(numbers[0]), static_cast<uint64_t>(numbers[1])};
  return absl::OkStatus();
}

// Calls work(first, last) for parts of [0, count) on TensorFlow's threads; `cost` is about the cycles of one item.
template <typename Work>
void ForEach(OpKernelContext* context, int64_t count, int64_t cost, const Work& work) {
  const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(workers.num_threads, workers.workers, count, cost, work);
}

// The same, while one of the threads calls aside(), which takes about as long as a part of the work.
template <typename Aside, typename Work>
void ForEachBeside(OpKernelContext* context, const Aside& aside, int64_t count, int64_t cost, const Work& work) {
  constexpr int64_t kParts = 32;
  ForEach(context, 1 + kParts, cost * (count / kParts + 1), [&](int64_t first, int64_t last) {
    if (first == 0) aside();
    const int64_t begin = std::max<int64_t>(first - 1, 0) * count / kParts, end = (last - 1) * count / kParts;
    if (begin < end) work(begin, end);
  });
}

}  // namespace tfxc
