// Launches the CUDA kernels of the uniformly sparse head. Free of TensorFlow: an op passes its buffers and
// its stream.
//
// All pointers are to device memory and all arrays dense, in row-major order. Work is queued on the stream
// and not waited for. The kernels trust indices to be distinct within a row and in [0, E): LaunchCheckIndices
// tells whether they are. An index out of range is moved to the nearest input, so that it spoils numbers but
// never reads astray.
#ifndef TFXC_CUDA_SPARSE_HEAD_LAUNCH_H_
#define TFXC_CUDA_SPARSE_HEAD_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tfxc {

enum class QueryType { kFloat32, kBfloat16 };

// Class l of L reads inputs indices[l, :] of the E a query has, with weights[l, :]; both are [L, K].
struct DeviceHead {
  const float* weights;
  const int32_t* indices;
  const float* bias;                                     // [L], or null
  int64_t num_queries, num_inputs, num_classes, fan_in;  // N, E, L, K
};

// Labels [N, P] of the queries; what is not a class, as the padding -1, is an empty slot.
struct DeviceLabels {
  const int32_t* ids;
  int64_t per_query;  // P
};

// Where gradients go; all of it is written. Those of weights and bias are dense and 0 for classes not taken
// part in.
struct DeviceGradients {
  float* query;    // [N, E]
  float* weights;  // [L, K]
  float* bias;     // [L], or null
};

// The bytes any launch below may ask for as `workspace`, which must be aligned to 256. They do not grow with
// N.
size_t WorkspaceBytes(const DeviceHead& head);

// logits[n, l - start] = sum_k weights[l, k] * query[n, indices[l, k]] + bias[l] for start <= l < stop.
cudaError_t LaunchLogits(const DeviceHead& head, const void* query, QueryType type, int64_t start,
                         int64_t stop, float* logits, void* workspace, cudaStream_t stream);

// reduced[n] = sum_l max(0, 1 + logit[n, l])^2 over all classes as if none was a label, and the logits of the
// labels, positives [N, P], 0 in empty slots. The order of summation is fixed.
cudaError_t LaunchSquaredHinge(const DeviceHead& head, const void* query, QueryType type,
                               const DeviceLabels& labels, float* reduced, float* positives, void* workspace,
                               cudaStream_t stream);

// The two backward passes: of LaunchLogits, for logits_gradient [N, stop - start], and of LaunchSquaredHinge,
// for reduced_gradient [N] and positives_gradient [N, P], which computes the logits again. Where the
// gradient of a logit is 0, weights and query are neither used in the gradients nor read for them (but for a
// query within the same 16 bytes as one that is), and nothing is added.
//
// The gradients of weights and bias have a fixed order of summation. That of the query is summed by float
// atomics, in any order; if `deterministic`, by integer atomics instead, so that every run gives the same
// bits. For these a product becomes a multiple of 2^(ceil(log2 L) - 61) of the largest one that is possible
// for its query; a product that is not finite makes its sum NaN.
cudaError_t LaunchLogitsGradient(const DeviceHead& head, const float* query, int64_t start, int64_t stop,
                                 const float* logits_gradient, bool deterministic,
                                 const DeviceGradients& gradients, void* workspace, cudaStream_t stream);
cudaError_t LaunchSquaredHingeGradient(const DeviceHead& head, const float* query, const DeviceLabels& labels,
                                       const float* reduced_gradient, const float* positives_gradient,
                                       bool deterministic, const DeviceGradients& gradients, void* workspace,
                                       cudaStream_t stream);

// *first_bad = the first position l * K + k whose index is outside [0, E) or stands in the row already; -1 if
// there is none. Compares every pair of a row.
cudaError_t LaunchCheckIndices(const DeviceHead& head, int64_t* first_bad, cudaStream_t stream);

}  // namespace tfxc

#endif  // TFXC_CUDA_SPARSE_HEAD_LAUNCH_H_
