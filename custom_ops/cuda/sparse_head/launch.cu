#include <algorithm>
#include <type_traits>

#include "cuda/sparse_head/launch.h"
#include "cuda/sparse_head/launch_gradients.cuh"

#define TFXC_RETURN_IF_ERROR(CALL)                                            \
  do {                                                                        \
    if (const cudaError_t error = (CALL); error != cudaSuccess) return error; \
  } while (false)

namespace tfxc {
namespace {

// Partial sums of the squared hinge. The same on every device, so that the sums are.
constexpr int64_t kMaxPartials = 1024;
constexpr int64_t kMaxBlocks = INT32_MAX;

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), int64_t blocks, int64_t rows, cudaStream_t stream,
                   Arguments... arguments) {
  if (blocks == 0 || rows == 0) return cudaSuccess;
  if (blocks > kMaxBlocks) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rows));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

int64_t CeilDivide(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Calls work(width) with the smallest tile, as a compile-time constant, that takes so many queries. One query
// alone is its own tile: the gradients, which read several queries at once, ask for no less than 8.
template <int kAtLeast, typename Work>
cudaError_t WithWidth(int64_t count, Work work) {
  if constexpr (kAtLeast == 1) {
    if (count == 1) return work(std::integral_constant<int, 1>());
  }
  if (count <= 8) return work(std::integral_constant<int, 8>());
  return work(std::integral_constant<int, kMaxTileWidth>());
}

// The parts of the workspace. No launch uses all of them, but their sum is small.
struct Workspace {
  void* tile;                      // [E, W] of either type
  float* sums;                     // [E, W]
  unsigned long long* fixed_sums;  // [E, W]
  double* partials;                // [kMaxPartials, W]
  uint32_t* marks;                 // [L / 32]
  Scales* scales;
  size_t bytes;
};

Workspace Divide(const DeviceHead& head, void* memory) {
  Workspace parts = {};
  const auto take = [&](auto** part, int64_t bytes) {
    *part = reinterpret_cast<std::remove_reference_t<decltype(*part)>>(reinterpret_cast<uintptr_t>(memory) +
                                                                       parts.bytes);
    parts.bytes += CeilDivide(bytes, 256) * 256;
  };
  const int64_t cells = head.num_inputs * kMaxTileWidth;
  take(&parts.tile, cells * sizeof(float));
  take(&parts.sums, cells * sizeof(float));
  take(&parts.fixed_sums, cells * sizeof(unsigned long long));
  take(&parts.partials, kMaxPartials * kMaxTileWidth * sizeof(double));
  take(&parts.marks, CeilDivide(head.num_classes, 32) * sizeof(uint32_t));
  take(&parts.scales, sizeof(Scales));
  return parts;
}

Rows RowsOf(const DeviceHead& head) {
  return {head.weights, head.indices, head.bias, head.fan_in, head.num_inputs};
}

cudaError_t CheckSizes(const DeviceHead& head, Classes classes) {
  const bool valid = head.num_queries >= 0 && head.num_inputs >= 0 && head.num_inputs <= INT32_MAX &&
                     head.num_classes >= 0 && head.num_classes <= INT32_MAX && head.fan_in >= 0 &&
                     head.fan_in <= head.num_inputs && 0 <= classes.first && classes.first <= classes.last &&
                     classes.last <= head.num_classes;
  return valid ? cudaSuccess : cudaErrorInvalidValue;
}

// Calls run(width, tile, first query, count) for the queries, a tile at a time: one alone stays in the cache.
template <int kAtLeast, typename T, typename Run>
cudaError_t ForEachTile(const DeviceHead& head, const void* query, T* tile, cudaStream_t stream, Run run) {
  for (int64_t n = 0; n < head.num_queries; n += kMaxTileWidth) {
    const int64_t count = std::min<int64_t>(kMaxTileWidth, head.num_queries - n);
    TFXC_RETURN_IF_ERROR(WithWidth<kAtLeast>(count, [&](auto width) {
      TFXC_RETURN_IF_ERROR(
          Launch(FillTileKernel<decltype(width)::value, T>, CeilDivide(head.num_inputs, kLanes), 1, stream,
                 static_cast<const T*>(query) + n * head.num_inputs, count, head.num_inputs, tile));
      return run(width, n, count);
    }));
  }
  return cudaSuccess;
}

template <typename T>
cudaError_t Logits(const DeviceHead& head, const void* query, Classes classes, float* logits, void* workspace,
                   cudaStream_t stream) {
  const int64_t size = classes.last - classes.first;
  T* tile = static_cast<T*>(Divide(head, workspace).tile);
  return ForEachTile<1>(head, query, tile, stream, [&](auto width, int64_t n, int64_t count) {
    return Launch(LogitsKernel<decltype(width)::value, T>, CeilDivide(size, kBlockClasses), 1, stream,
                  RowsOf(head), tile, classes, count, logits + n * size);
  });
}

template <typename T>
cudaError_t SquaredHinge(const DeviceHead& head, const void* query, const DeviceLabels& labels,
                         float* reduced, float* positives, void* workspace, cudaStream_t stream) {
  const Workspace parts = Divide(head, workspace);
  const int64_t num_partials = std::min(kMaxPartials, CeilDivide(head.num_classes, kBlockClasses));
  const int64_t num_slots = head.num_queries * labels.per_query;
  T* tile = static_cast<T*>(parts.tile);
  TFXC_RETURN_IF_ERROR(ForEachTile<1>(head, query, tile, stream, [&](auto width, int64_t n, int64_t count) {
    TFXC_RETURN_IF_ERROR(Launch(SquaredHingeKernel<decltype(width)::value, T>, num_partials, 1, stream,
                                RowsOf(head), tile, head.num_classes, parts.partials));
    return Launch(SumPartialsKernel, CeilDivide(count, kWarps), 1, stream, parts.partials, num_partials,
                  decltype(width)::value, count, reduced + n);
  }));
  return Launch(LabelLogitsKernel<T>, CeilDivide(num_slots, kWarps), 1, stream, RowsOf(head),
                static_cast<const T*>(query), labels.ids, labels.per_query, num_slots, head.num_classes,
                positives);
}

// Zeros for the classes outside the block, and for all if no query reaches the rest.
cudaError_t ClearRows(const DeviceHead& head, Classes classes, const DeviceGradients& out,
                      cudaStream_t stream) {
  const Classes kept = head.num_queries == 0 ? Classes{0, 0} : classes;
  for (const Classes range : {Classes{0, kept.first}, Classes{kept.last, head.num_classes}}) {
    const int64_t size = range.last - range.first;
    TFXC_RETURN_IF_ERROR(cudaMemsetAsync(out.weights + range.first * head.fan_in, 0,
                                         size * head.fan_in * sizeof(float), stream));
    if (out.bias == nullptr) continue;
    TFXC_RETURN_IF_ERROR(cudaMemsetAsync(out.bias + range.first, 0, size * sizeof(float), stream));
  }
  return cudaSuccess;
}

cudaError_t LaunchMaxAbs(const float* values, int64_t rows, int64_t columns, float* maxima,
                         cudaStream_t stream) {
  return Launch(MaxAbsKernel, std::min(kMaxPartials, CeilDivide(columns, kThreads)), rows, stream, values,
                columns, maxima);
}

// Runs add(width, first query, count, sums) for each tile, which adds to sums of zero, and lays them out as
// gradients. set_scales(first query, count) is called before when sums are to be deterministic.
template <typename SetScales, typename Add>
cudaError_t Backward(const DeviceHead& head, const float* query, bool deterministic, float* query_gradient,
                     const Workspace& parts, cudaStream_t stream, SetScales set_scales, Add add) {
  float* tile = static_cast<float*>(parts.tile);
  return ForEachTile<8>(head, query, tile, stream, [&](auto width, int64_t n, int64_t count) {
    constexpr int W = decltype(width)::value;
    const int64_t cells = head.num_inputs * W;
    const auto sum_up = [&](auto sums) {
      TFXC_RETURN_IF_ERROR(add(width, n, count, sums));
      return Launch(QueryGradientKernel<W, decltype(sums)>, CeilDivide(head.num_inputs, kLanes), 1, stream,
                    sums, count, head.num_inputs, query_gradient + n * head.num_inputs);
    };
    TFXC_RETURN_IF_ERROR(cudaMemsetAsync(parts.sums, 0, cells * sizeof(float), stream));
    if (!deterministic) return sum_up(FloatSums{parts.sums});
    TFXC_RETURN_IF_ERROR(cudaMemsetAsync(parts.fixed_sums, 0, cells * sizeof(unsigned long long), stream));
    TFXC_RETURN_IF_ERROR(cudaMemsetAsync(parts.scales, 0, sizeof(Scales), stream));
    TFXC_RETURN_IF_ERROR(set_scales(n, count));
    return sum_up(FixedSums{parts.fixed_sums, parts.sums, parts.scales});
  });
}

}  // namespace

size_t WorkspaceBytes(const DeviceHead& head) { return Divide(head, nullptr).bytes; }

cudaError_t LaunchLogits(const DeviceHead& head, const void* query, QueryType type, int64_t start,
                         int64_t stop, float* logits, void* workspace, cudaStream_t stream) {
  TFXC_RETURN_IF_ERROR(CheckSizes(head, {start, stop}));
  const auto launch = type == QueryType::kFloat32 ? Logits<float> : Logits<__nv_bfloat16>;
  return launch(head, query, {start, stop}, logits, workspace, stream);
}

cudaError_t LaunchSquaredHinge(const DeviceHead& head, const void* query, QueryType type,
                               const DeviceLabels& labels, float* reduced, float* positives, void* workspace,
                               cudaStream_t stream) {
  TFXC_RETURN_IF_ERROR(CheckSizes(head, {0, head.num_classes}));
  const auto launch = type == QueryType::kFloat32 ? SquaredHinge<float> : SquaredHinge<__nv_bfloat16>;
  return launch(head, query, labels, reduced, positives, workspace, stream);
}

cudaError_t LaunchLogitsGradient(const DeviceHead& head, const float* query, int64_t start, int64_t stop,
                                 const float* logits_gradient, bool deterministic,
                                 const DeviceGradients& gradients, void* workspace, cudaStream_t stream) {
  const Classes classes = {start, stop};
  TFXC_RETURN_IF_ERROR(CheckSizes(head, classes));
  TFXC_RETURN_IF_ERROR(ClearRows(head, classes, gradients, stream));
  const Workspace parts = Divide(head, workspace);
  const int64_t size = stop - start;
  const float* tile = static_cast<const float*>(parts.tile);
  const auto set_scales = [&](int64_t n, int64_t count) {
    const float* weights = head.weights + start * head.fan_in;
    TFXC_RETURN_IF_ERROR(LaunchMaxAbs(weights, 1, size * head.fan_in, &parts.scales->weight, stream));
    TFXC_RETURN_IF_ERROR(
        LaunchMaxAbs(logits_gradient + n * size, count, size, parts.scales->gradient, stream));
    return Launch(ScaleKernel, 1, 1, stream, parts.scales, nullptr, LabelInputs(), count, head.fan_in, size);
  };
  const auto add = [&](auto width, int64_t n, int64_t count, auto sums) {
    return Launch(LogitsGradientKernel<decltype(width)::value, decltype(sums)>,
                  CeilDivide(size, kBlockClasses), 1, stream, RowsOf(head), tile, classes,
                  logits_gradient + n * size, count, RowGradients{gradients.weights, gradients.bias, n > 0},
                  sums);
  };
  return Backward(head, query, deterministic, gradients.query, parts, stream, set_scales, add);
}

cudaError_t LaunchSquaredHingeGradient(const DeviceHead& head, const float* query, const DeviceLabels& labels,
                                       const float* reduced_gradient, const float* positives_gradient,
                                       bool deterministic, const DeviceGradients& gradients, void* workspace,
                                       cudaStream_t stream) {
  const Classes classes = {0, head.num_classes};
  TFXC_RETURN_IF_ERROR(CheckSizes(head, classes));
  TFXC_RETURN_IF_ERROR(ClearRows(head, classes, gradients, stream));
  const Workspace parts = Divide(head, workspace);
  const float* tile = static_cast<const float*>(parts.tile);
  const int64_t num_slots = head.num_queries * labels.per_query;
  const int64_t mark_bytes = CeilDivide(head.num_classes, 32) * sizeof(uint32_t);
  TFXC_RETURN_IF_ERROR(cudaMemsetAsync(parts.marks, 0, mark_bytes, stream));
  TFXC_RETURN_IF_ERROR(Launch(MarkLabelsKernel, CeilDivide(num_slots, kThreads), 1, stream, labels.ids,
                              num_slots, head.num_classes, parts.marks));
  const auto labels_of = [&](int64_t n) {
    const int64_t slot = n * labels.per_query;
    return LabelInputs{labels.ids + slot, positives_gradient + slot, labels.per_query, parts.marks};
  };
  const auto set_scales = [&](int64_t n, int64_t count) {
    Scales* scales = parts.scales;
    const float *inputs = query + n * head.num_inputs, *upstream = reduced_gradient + n;
    const int64_t num_weights = head.num_classes * head.fan_in, num_biases = head.bias ? head.num_classes : 0;
    TFXC_RETURN_IF_ERROR(LaunchMaxAbs(head.weights, 1, num_weights, &scales->weight, stream));
    TFXC_RETURN_IF_ERROR(LaunchMaxAbs(head.bias, 1, num_biases, &scales->bias, stream));
    TFXC_RETURN_IF_ERROR(LaunchMaxAbs(inputs, count, head.num_inputs, scales->query, stream));
    return Launch(ScaleKernel, 1, 1, stream, scales, upstream, labels_of(n), count, head.fan_in,
                  head.num_classes);
  };
  const auto add = [&](auto width, int64_t n, int64_t count, auto sums) {
    const int64_t blocks = CeilDivide(head.num_classes, kBlockClasses);
    return Launch(SquaredHingeGradientKernel<decltype(width)::value, decltype(sums)>, blocks, 1, stream,
                  RowsOf(head), tile, head.num_classes, labels_of(n), reduced_gradient + n, count,
                  RowGradients{gradients.weights, gradients.bias, n > 0}, sums);
  };
  return Backward(head, query, deterministic, gradients.query, parts, stream, set_scales, add);
}

cudaError_t LaunchCheckIndices(const DeviceHead& head, int64_t* first_bad, cudaStream_t stream) {
  TFXC_RETURN_IF_ERROR(
      cudaMemsetAsync(first_bad, 0xff, sizeof(*first_bad), stream));  // -1, the largest unsigned
  return Launch(CheckIndicesKernel, CeilDivide(head.num_classes * head.fan_in, kThreads), 1, stream,
                RowsOf(head), head.num_classes, reinterpret_cast<unsigned long long*>(first_bad));
}

}  // namespace tfxc
