// The CUDA kernels of the backward passes of the uniformly sparse head.
#ifndef TFXC_CUDA_SPARSE_HEAD_LAUNCH_GRADIENTS_CUH_
#define TFXC_CUDA_SPARSE_HEAD_LAUNCH_GRADIENTS_CUH_

#include "cuda/sparse_head/launch_kernels.cuh"

namespace tfxc {
namespace {

// What the deterministic sums of a tile are scaled by, and the largest magnitudes this follows from.
struct Scales {
  float weight, bias;
  float query[kMaxTileWidth], gradient[kMaxTileWidth];
  double scale[kMaxTileWidth];
};

// Sums of weight * gradient over the classes, [E, W], in the order in which they arrive.
struct FloatSums {
  float* sums;

  __device__ void Add(int64_t cell, int, float weight, float gradient) const {
    atomicAdd(sums + cell, weight * gradient);
  }
  __device__ float Get(int64_t cell, int) const { return sums[cell]; }
};

// The same in fixed point: sums of integers do not depend on the order.
struct FixedSums {
  unsigned long long* sums;  // two's complement
  float* broken;             // 0, or NaN where a product was not finite
  const Scales* scales;

  __device__ void Add(int64_t cell, int n, float weight, float gradient) const {
    const double product = static_cast<double>(weight) * gradient;
    if (isfinite(product)) {
      atomicAdd(sums + cell, static_cast<unsigned long long>(__double2ll_rn(product * scales->scale[n])));
    } else {
      broken[cell] = NAN;
    }
  }
  __device__ float Get(int64_t cell, int n) const {
    const double sum = static_cast<double>(static_cast<long long>(sums[cell])) / scales->scale[n];
    return static_cast<float>(sum) + broken[cell];
  }
};

struct RowGradients {
  float* weights;
  float* bias;
  bool accumulate;  // a tile came before
};

// sum_n gradient[n] * inputs[n] over the queries whose gradient is not 0, the bits of `active`.
template <int W>
__device__ inline float WeightGradient(const float* inputs, float gradient, unsigned active) {
  float sum = 0.0f;
  for (int first = 0; first < W; first += kVector) {
    const unsigned bits = active >> first & ((1u << kVector) - 1);
    if (bits == 0) continue;  // so it is in all lanes
    const float4 x = __ldg(reinterpret_cast<const float4*>(inputs + first));
    if (bits & 1) sum += __shfl_sync(kAllLanes, gradient, first) * x.x;
    if (bits & 2) sum += __shfl_sync(kAllLanes, gradient, first + 1) * x.y;
    if (bits & 4) sum += __shfl_sync(kAllLanes, gradient, first + 2) * x.z;
    if (bits & 8) sum += __shfl_sync(kAllLanes, gradient, first + 3) * x.w;
  }
  return sum;
}

// All gradients of class l from that of its logits, query n's in lane n of all groups. The queries' sums are
// added to with queries side by side in the lanes, which makes for whole lines; a row's are summed up one
// input a lane, which needs no sum over lanes and skips the queries that do not count.
template <int W, typename Sums>
__device__ inline void ClassGradient(const Rows& rows, const float* tile, int64_t l, float gradient,
                                     const RowGradients& out, const Sums& sums) {
  const unsigned active = __ballot_sync(kAllLanes, gradient != 0.0f) & (kAllLanes >> (kLanes - W));
  if (active == 0 && out.accumulate) return;
  for (int64_t first = 0; first < rows.fan_in; first += kLanes) {
    float sum = 0.0f;
    if (active != 0) {
      const Entry own = LoadEntry(rows, l, first + Lane());
      ForEachEntry<W, 1>(own, NumEntries(rows, first), [&](int64_t cell, float weight) {
        if (gradient != 0.0f) sums.Add(cell, Lane() % W, weight, gradient);
      });
      sum = WeightGradient<W>(tile + static_cast<int64_t>(own.input) * W, gradient, active);
    }
    if (first + Lane() < rows.fan_in) {
      float* weight = out.weights + l * rows.fan_in + first + Lane();
      *weight = out.accumulate ? *weight + sum : sum;
    }
  }
  if (out.bias == nullptr) return;
  for (int step = 1; step < W; step *= 2) gradient += __shfl_xor_sync(kAllLanes, gradient, step);
  if (Lane() == 0) out.bias[l] = out.accumulate ? out.bias[l] + gradient : gradient;
}

// From logits_gradient [count, classes], read line by line.
template <int W, typename Sums>
__global__ void __launch_bounds__(kThreads, kBlocks)
    LogitsGradientKernel(Rows rows, const float* tile, Classes classes, const float* logits_gradient,
                         int64_t count, RowGradients out, Sums sums) {
  __shared__ float staged[W][kBlockClasses + 1];
  const int64_t first = classes.first + static_cast<int64_t>(blockIdx.x) * kBlockClasses;
  const int64_t size = classes.last - classes.first, l = first + Lane();
  for (int n = Warp(); n < W; n += kWarps) {
    const bool inside = n < count && l < classes.last;
    staged[n][Lane()] = inside ? logits_gradient[n * size + l - classes.first] : 0.0f;
  }
  __syncthreads();
  for (int c = Warp(); c < kBlockClasses && first + c < classes.last; c += kWarps) {
    ClassGradient<W>(rows, tile, first + c, staged[Lane() % W][c], out, sums);
  }
}

// The labels of a tile's queries, and one bit a class that says whether it is any query's label at all: only
// then does a class look for itself among them.
struct LabelInputs {
  const int32_t* ids;     // [count, P]
  const float* gradient;  // [count, P]
  int64_t per_query;
  const uint32_t* marks;
};

__global__ void MarkLabelsKernel(const int32_t* ids, int64_t num_slots, int64_t num_classes,
                                 uint32_t* marks) {
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (slot >= num_slots) return;
  const int32_t id = ids[slot];
  if (id >= 0 && id < num_classes) atomicOr(marks + id / 32, 1u << id % 32);
}

// The logits are computed again. Their gradient is 2 * upstream[n] * max(0, 1 + logit), plus that of the
// labels.
template <int W, typename Sums>
__global__ void __launch_bounds__(kThreads, kBlocks)
    SquaredHingeGradientKernel(Rows rows, const float* tile, int64_t num_classes, LabelInputs labels,
                               const float* upstream, int64_t count, RowGradients out, Sums sums) {
  const int n = Lane() % W;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockClasses;
  const float slope = n < count ? 2.0f * upstream[n] : 0.0f;
  for (int c = Warp(); c < kBlockClasses && first + c < num_classes; c += kWarps) {
    const int64_t l = first + c;
    const float beyond = Beyond(ClassLogit<W>(rows, tile, l));
    float gradient = n < count ? slope * beyond : 0.0f;  // also where a bias that is not finite meets padding
    if (labels.marks[l / 32] >> l % 32 & 1) {
      const int64_t end = n < count ? (n + 1) * labels.per_query : 0;
      for (int64_t slot = n * labels.per_query; slot < end; ++slot) {
        if (labels.ids[slot] == l) gradient += labels.gradient[slot];
      }
    }
    ClassGradient<W>(rows, tile, l, gradient, out, sums);
  }
}

// maxima[row] = the largest finite magnitude of values [rows, columns]; row is blockIdx.y. It must be 0
// before.
__global__ void MaxAbsKernel(const float* values, int64_t columns, float* maxima) {
  float largest = 0.0f;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < columns; i += stride) {
    largest = MaxAbs(largest, values[blockIdx.y * columns + i]);
  }
  for (int step = kLanes / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  }
  // Floats that are not negative are ordered as their bits are.
  if (Lane() == 0) atomicMax(reinterpret_cast<int*>(maxima + blockIdx.y), __float_as_int(largest));
}

// scale[n] such that as many products as there are classes cannot overflow, with two bits to spare for
// rounding. For the squared hinge (upstream not null) the gradients are bounded by means of the largest logit
// there can be.
__global__ void ScaleKernel(Scales* scales, const float* upstream, LabelInputs labels, int64_t count,
                            int64_t fan_in, int64_t num_classes) {
  const int n = threadIdx.x;
  if (n >= count) return;
  double gradient = scales->gradient[n];
  if (upstream != nullptr) {
    const double logit = scales->bias + static_cast<double>(fan_in) * scales->weight * scales->query[n];
    gradient = 2.0 * MaxAbs(0.0f, upstream[n]) * (1.0 + logit);
    for (int64_t p = 0; p < labels.per_query; ++p)
      gradient += MaxAbs(0.0f, labels.gradient[n * labels.per_query + p]);
  }
  const double product = gradient * scales->weight;
  int bits = product > 0.0 ? ilogb(product) + 1 : 0;
  for (int64_t classes = 1; classes < num_classes; classes *= 2) ++bits;
  scales->scale[n] = scalbn(1.0, 61 - bits);
}

// Sums [E, W] to query_gradient [count, E], through shared memory as both are read and written in lines.
template <int W, typename Sums>
__global__ void QueryGradientKernel(Sums sums, int64_t count, int64_t num_inputs, float* query_gradient) {
  __shared__ float staged[W][kLanes + 1];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kLanes;
  for (int i = threadIdx.x; i < kLanes * W; i += kThreads) {
    if (first + i / W < num_inputs) staged[i % W][i / W] = sums.Get(first * W + i, i % W);
  }
  __syncthreads();
  const int64_t e = first + Lane();
  for (int n = Warp(); n < count && e < num_inputs; n += kWarps) {
    query_gradient[n * num_inputs + e] = staged[n][Lane()];
  }
}

}  // namespace
}  // namespace tfxc

#endif  // TFXC_CUDA_SPARSE_HEAD_LAUNCH_GRADIENTS_CUH_
