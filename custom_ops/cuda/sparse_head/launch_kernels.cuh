// The CUDA kernels of the uniformly sparse head.
//
// They work on tiles of W queries laid side by side, [E, W], so that an index fetches one contiguous run. A
// warp takes a class: groups of its lanes share out the inputs of the class, and a lane of a group holds V
// queries, which it reads at once. Weights and indices of a class are read once by the warp, 32 at a time,
// and handed around by shuffles. A number for each query is in lane n for query n, and again in lanes n + W,
// n + 2 W, ... of the warp.
#ifndef TFXC_CUDA_SPARSE_HEAD_LAUNCH_KERNELS_CUH_
#define TFXC_CUDA_SPARSE_HEAD_LAUNCH_KERNELS_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace tfxc {
namespace {

constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kLanes;
constexpr int kBlocks = 5;  // on a multiprocessor, to leave a thread registers enough for reads in flight
constexpr int kBlockClasses = 32;  // classes of a block: one line of logits
constexpr int kMaxTileWidth = 32;
constexpr int kVector = 4;  // queries that a lane reads at once, of a tile of so many or more

struct Rows {
  const float* weights;
  const int32_t* indices;
  const float* bias;
  int64_t fan_in, num_inputs;
};

struct Classes {
  int64_t first, last;
};

// What of a class one lane holds: input number k.
struct Entry {
  float weight;
  int32_t input;
};

__device__ inline int Lane() { return threadIdx.x % kLanes; }
__device__ inline int Warp() { return threadIdx.x / kLanes; }

__device__ inline float Load(const float* x) { return __ldg(x); }
__device__ inline float Load(const __nv_bfloat16* x) { return __bfloat162float(__ldg(x)); }

template <typename T>
__device__ inline void Load(const T* x, float (&values)[1]) {
  values[0] = Load(x);
}
__device__ inline void Load(const float* x, float (&values)[kVector]) {
  const float4 four = __ldg(reinterpret_cast<const float4*>(x));
  values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
}
__device__ inline void Load(const __nv_bfloat16* x, float (&values)[kVector]) {
  const uint2 four = __ldg(reinterpret_cast<const uint2*>(x));  // the upper halves of floats, two in a word
  values[0] = __uint_as_float(four.x << 16), values[1] = __uint_as_float(four.x & 0xffff0000u);
  values[2] = __uint_as_float(four.y << 16), values[3] = __uint_as_float(four.y & 0xffff0000u);
}

__device__ inline float MaxAbs(float largest, float x) {
  return isfinite(x) ? fmaxf(largest, fabsf(x)) : largest;
}

__device__ inline Entry LoadEntry(const Rows& rows, int64_t l, int64_t k) {
  if (k >= rows.fan_in) return {0.0f, 0};
  const int64_t input = __ldg(rows.indices + l * rows.fan_in + k), last = rows.num_inputs - 1;
  const int64_t nearest = input < 0 ? 0 : input > last ? last : input;
  return {__ldg(rows.weights + l * rows.fan_in + k), static_cast<int32_t>(nearest)};
}

__device__ inline int NumEntries(const Rows& rows, int64_t first) {
  const int64_t rest = rows.fan_in - first;
  return rest < kLanes ? static_cast<int>(rest) : kLanes;
}

// Calls use(cell, weight) for the share of `count` entries that the group of a lane has; cell is that of the
// first of its V queries, [input, query] of a tile.
template <int W, int V, typename Use>
__device__ inline void ForEachEntry(const Entry& own, int count, Use use) {
  constexpr int kGroupLanes = W / V, kGroups = kLanes / kGroupLanes;
  const int group = Lane() / kGroupLanes, n = Lane() % kGroupLanes * V;
#pragma unroll 8
  for (int k = 0; k < count; k += kGroups) {
    const float weight = __shfl_sync(kAllLanes, own.weight, k + group);
    const int64_t input = __shfl_sync(kAllLanes, own.input, k + group);
    if (k + group < count) use(input * W + n, weight);
  }
}

__device__ inline float AddFrom(float x, float other, int step) {
  return x + __shfl_xor_sync(kAllLanes, other, step);
}

// The sums over all groups, query n's in lane n, of sums that each lane has for its V queries.
template <int W>
__device__ inline float SumOverGroups(const float (&sums)[1]) {
  float sum = sums[0];
  for (int step = W; step < kLanes; step *= 2) sum = AddFrom(sum, sum, step);
  return sum;
}

// Halves of the warp exchange two of the four sums, and quarters one of two, so that no lane adds up what
// another does.
template <int W>
__device__ inline float SumOverGroups(const float (&sums)[kVector]) {
  const bool second_half = Lane() & 16, second_quarter = Lane() & 8;
  const float kept[] = {second_half ? sums[2] : sums[0], second_half ? sums[3] : sums[1]};
  const float given[] = {second_half ? sums[0] : sums[2], second_half ? sums[1] : sums[3]};
  const float first = AddFrom(kept[0], given[0], 16), second = AddFrom(kept[1], given[1], 16);
  float sum = AddFrom(second_quarter ? second : first, second_quarter ? first : second, 8);
  for (int step = W / kVector; step < 8; step *= 2) sum = AddFrom(sum, sum, step);
  const int n = Lane() % W;
  return __shfl_sync(kAllLanes, sum, n / kVector + n % kVector / 2 * 16 + n % 2 * 8);
}

// The logit of query n in lane n.
template <int W, typename T>
__device__ inline float ClassLogit(const Rows& rows, const T* tile, int64_t l) {
  constexpr int V = W < kVector ? 1 : kVector;
  float sums[V] = {};
  for (int64_t first = 0; first < rows.fan_in; first += kLanes) {
    ForEachEntry<W, V>(LoadEntry(rows, l, first + Lane()), NumEntries(rows, first),
                       [&](int64_t cell, float weight) {
                         float x[V];
                         Load(tile + cell, x);
#pragma unroll
                         for (int v = 0; v < V; ++v) sums[v] += weight * x[v];
                       });
  }
  const float sum = SumOverGroups<W>(sums);
  return rows.bias == nullptr ? sum : sum + __ldg(rows.bias + l);
}

// 1 + logit if positive, and NaN for NaN.
__device__ inline float Beyond(float logit) { return logit + 1.0f < 0.0f ? 0.0f : logit + 1.0f; }

// query [count, E] to a tile [E, W], which zeros fill up. Blocks take 32 inputs each.
template <int W, typename T>
__global__ void FillTileKernel(const T* query, int64_t count, int64_t num_inputs, T* tile) {
  __shared__ float staged[W][kLanes + 1];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kLanes;
  for (int n = Warp(); n < W; n += kWarps) {
    const int64_t e = first + Lane();
    staged[n][Lane()] = n < count && e < num_inputs ? Load(query + n * num_inputs + e) : 0.0f;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kLanes * W; i += kThreads) {
    if (first + i / W < num_inputs) tile[first * W + i] = static_cast<T>(staged[i % W][i / W]);
  }
}

// Logits go through shared memory: written from the lanes, each would touch a line of its own.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    LogitsKernel(Rows rows, const T* tile, Classes classes, int64_t count, float* logits) {
  __shared__ float staged[W][kBlockClasses + 1];
  const int64_t first = classes.first + static_cast<int64_t>(blockIdx.x) * kBlockClasses;
  const int64_t size = classes.last - classes.first;
  for (int c = Warp(); c < kBlockClasses && first + c < classes.last; c += kWarps) {
    const float logit = ClassLogit<W>(rows, tile, first + c);
    if (Lane() < W) staged[Lane()][c] = logit;
  }
  __syncthreads();
  const int64_t l = first + Lane();
  for (int n = Warp(); n < count && l < classes.last; n += kWarps) {
    logits[n * size + l - classes.first] = staged[n][Lane()];
  }
}

// partials[block, n] = sum of max(0, 1 + logit)^2 over the block's share of the classes.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    SquaredHingeKernel(Rows rows, const T* tile, int64_t num_classes, double* partials) {
  __shared__ double staged[kWarps][kLanes];
  const int64_t first = num_classes * blockIdx.x / gridDim.x,
                last = num_classes * (blockIdx.x + 1ll) / gridDim.x;
  double sum = 0.0;
  for (int64_t l = first + Warp(); l < last; l += kWarps) {
    const float beyond = Beyond(ClassLogit<W>(rows, tile, l));
    sum += static_cast<double>(beyond) * beyond;
  }
  staged[Warp()][Lane()] = sum;
  __syncthreads();
  if (threadIdx.x >= W) return;
  for (int warp = 1; warp < kWarps; ++warp) sum += staged[warp][threadIdx.x];
  partials[static_cast<int64_t>(blockIdx.x) * W + threadIdx.x] = sum;
}

// totals[n] = sum of partials[:, n]; a warp a query.
__global__ void SumPartialsKernel(const double* partials, int num_partials, int width, int64_t count,
                                  float* totals) {
  const int n = Warp() + blockIdx.x * kWarps;
  if (n >= count) return;
  double sum = 0.0;
  for (int i = Lane(); i < num_partials; i += kLanes) sum += partials[i * width + n];
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (Lane() == 0) totals[n] = static_cast<float>(sum);
}

// Logits [N, P] of the labels, straight from query [N, E]; a warp a slot.
template <typename T>
__global__ void LabelLogitsKernel(Rows rows, const T* query, const int32_t* labels, int64_t per_query,
                                  int64_t num_slots, int64_t num_classes, float* logits) {
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kWarps + Warp();
  if (slot >= num_slots) return;
  const int64_t l = labels[slot];
  const bool empty = l < 0 || l >= num_classes;
  const T* inputs = query + slot / per_query * rows.num_inputs;
  double sum = empty || rows.bias == nullptr || Lane() > 0 ? 0.0 : rows.bias[l];
  for (int64_t k = Lane(); !empty && k < rows.fan_in; k += kLanes) {
    const Entry entry = LoadEntry(rows, l, k);
    sum += static_cast<double>(entry.weight) * Load(inputs + entry.input);
  }
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (Lane() == 0) logits[slot] = static_cast<float>(sum);
}

__global__ void CheckIndicesKernel(Rows rows, int64_t num_classes, unsigned long long* first_bad) {
  const int64_t position = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (position >= num_classes * rows.fan_in) return;
  const int32_t* row = rows.indices + position / rows.fan_in * rows.fan_in;
  const int64_t own = position % rows.fan_in;
  const int32_t input = row[own];
  bool bad = input < 0 || input >= rows.num_inputs;
  for (int64_t k = 0; k < own && !bad; ++k) bad = row[k] == input;
  if (bad) atomicMin(first_bad, static_cast<unsigned long long>(position));
}

}  // namespace
}  // namespace tfxc

#endif  // TFXC_CUDA_SPARSE_HEAD_LAUNCH_KERNELS_CUH_
