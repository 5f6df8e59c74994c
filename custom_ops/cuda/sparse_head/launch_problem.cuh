// The random problems of launch_check.cu, and their copies on the device.
#ifndef TFXC_CUDA_SPARSE_HEAD_LAUNCH_PROBLEM_CUH_
#define TFXC_CUDA_SPARSE_HEAD_LAUNCH_PROBLEM_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "cuda/sparse_head/launch.h"

namespace tfxc {
namespace {

bool failed = false;

bool Succeeds(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  std::printf("FAILED %s: %s\n", what, cudaGetErrorString(error));
  failed = true;
  return false;
}

// A copy of a vector on the device. What it holds at first is NaN where nothing is given: all outputs must be
// written.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : size_(values.size()) {
    if (Allocate())
      Succeeds(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  explicit OnDevice(int64_t size) : size_(size) {
    if (Allocate()) Succeeds(cudaMemset(data_, 0xff, size_ * sizeof(T)), "fill");
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;

  T* get() const { return data_; }
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    Succeeds(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "read");
    return values;
  }

 private:
  bool Allocate() {
    return Succeeds(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(size_, 1) * sizeof(T)),
                    "allocate");
  }

  T* data_ = nullptr;
  size_t size_;
};

struct Case {
  const char* name;
  int64_t queries, inputs, classes, fan_in, labels;  // N, E, L, K, P
  int64_t start, stop;
  bool bias;
  double active;  // the share of the logits' gradients that are not 0
  float mean_bias = 0.0f;
};

struct Problem {
  std::vector<float> query, weights, bias, logits_gradient, reduced_gradient, positives_gradient;
  std::vector<int32_t> indices, labels;
};

void DrawDistinct(std::mt19937* random, int64_t below, int64_t count, int32_t* out) {
  if (2 * count > below) {
    std::vector<int32_t> all(below);
    for (int64_t e = 0; e < below; ++e) all[e] = e;
    std::shuffle(all.begin(), all.end(), *random);
    std::copy_n(all.begin(), count, out);
    return;
  }
  for (int64_t k = 0; k < count;) {
    out[k] = (*random)() % below;
    k += std::find(out, out + k, out[k]) == out + k;
  }
}

Problem Draw(const Case& c) {
  std::mt19937 random(c.queries * 131 + c.classes * 17 + c.fan_in);
  const auto normal = [&](int64_t size, float scale, double active = 1.0) {
    std::normal_distribution<float> value(0.0f, scale);
    std::bernoulli_distribution chosen(active);
    std::vector<float> values(size);
    for (float& x : values) x = active == 1.0 || chosen(random) ? value(random) : 0.0f;
    return values;
  };
  Problem p;
  p.query = normal(c.queries * c.inputs, 1.0f);
  p.weights = normal(c.classes * c.fan_in, 0.3f / std::sqrt(std::max<float>(c.fan_in, 1)));
  p.bias = normal(c.bias ? c.classes : 0, 0.3f);
  for (float& x : p.bias) x += c.mean_bias;
  p.logits_gradient = normal(c.queries * (c.stop - c.start), 1.0f, c.active);
  p.reduced_gradient = normal(c.queries, 1.0f);
  p.positives_gradient = normal(c.queries * c.labels, 1.0f);
  p.indices.resize(c.classes * c.fan_in);
  for (int64_t l = 0; l < c.classes; ++l) DrawDistinct(&random, c.inputs, c.fan_in, &p.indices[l * c.fan_in]);
  p.labels.resize(c.queries * c.labels);
  for (int32_t& id : p.labels) id = random() % 3 == 0 ? -1 : static_cast<int32_t>(random() % c.classes);
  return p;
}

// The problem and all results on the device, and the launches as they are both compared and timed.
struct Device {
  Device(const Case& c, const Problem& p)
      : c(c),
        query(p.query),
        weights(p.weights),
        bias(p.bias),
        logits_gradient(p.logits_gradient),
        reduced_gradient(p.reduced_gradient),
        positives_gradient(p.positives_gradient),
        indices(p.indices),
        labels(p.labels),
        bfloat16(std::vector<__nv_bfloat16>(p.query.begin(), p.query.end())),
        head{weights.get(), indices.get(), c.bias ? bias.get() : nullptr, c.queries, c.inputs,
             c.classes,     c.fan_in},
        logits(c.queries * (c.stop - c.start)),
        reduced(c.queries),
        positives(c.queries * c.labels),
        d_query(c.queries * c.inputs),
        d_weights(c.classes * c.fan_in),
        d_bias(c.bias ? c.classes : 0),
        first_bad(1),
        workspace(WorkspaceBytes(head)) {}

  const void* QueryOf(QueryType type) const {
    return type == QueryType::kFloat32 ? static_cast<const void*>(query.get()) : bfloat16.get();
  }
  DeviceGradients Gradients() const {
    return {d_query.get(), d_weights.get(), c.bias ? d_bias.get() : nullptr};
  }
  bool RunLogits(QueryType type) const {
    return Succeeds(
        LaunchLogits(head, QueryOf(type), type, c.start, c.stop, logits.get(), workspace.get(), nullptr),
        "logits");
  }
  bool RunSquaredHinge(QueryType type) const {
    return Succeeds(LaunchSquaredHinge(head, QueryOf(type), type, {labels.get(), c.labels}, reduced.get(),
                                       positives.get(), workspace.get(), nullptr),
                    "squared hinge");
  }
  bool RunLogitsGradient(bool deterministic) const {
    return Succeeds(LaunchLogitsGradient(head, query.get(), c.start, c.stop, logits_gradient.get(),
                                         deterministic, Gradients(), workspace.get(), nullptr),
                    "gradient of logits");
  }
  bool RunSquaredHingeGradient(bool deterministic) const {
    return Succeeds(LaunchSquaredHingeGradient(head, query.get(), {labels.get(), c.labels},
                                               reduced_gradient.get(), positives_gradient.get(),
                                               deterministic, Gradients(), workspace.get(), nullptr),
                    "gradient of squared hinge");
  }
  bool RunCheckIndices() const {
    return Succeeds(LaunchCheckIndices(head, first_bad.get(), nullptr), "check");
  }

  const Case& c;
  OnDevice<float> query, weights, bias, logits_gradient, reduced_gradient, positives_gradient;
  OnDevice<int32_t> indices, labels;
  OnDevice<__nv_bfloat16> bfloat16;
  DeviceHead head;
  OnDevice<float> logits, reduced, positives, d_query, d_weights, d_bias;
  OnDevice<int64_t> first_bad;
  OnDevice<char> workspace;
};

}  // namespace
}  // namespace tfxc

#endif  // TFXC_CUDA_SPARSE_HEAD_LAUNCH_PROBLEM_CUH_
