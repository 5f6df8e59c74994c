// Compares every launch of launch.h with plain loops in double precision on random problems, then times them
// on a large one. Prints a line a case. Exit status: 0 if all agree, 1 on a mismatch or an error, 77 without
// a device.
//
// A result may be off by kTolerance times one more than the largest magnitude in the array it belongs to.
//
// Usage: sparse_head_launch_check [--no-timing]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cuda/sparse_head/launch_problem.cuh"

namespace tfxc {
namespace {

constexpr double kTolerance = 1e-5;
constexpr int kTimedRuns = 20;

double Logit(const Case& c, const Problem& p, int64_t n, int64_t l) {
  double logit = c.bias ? p.bias[l] : 0.0;
  for (int64_t i = l * c.fan_in; i < (l + 1) * c.fan_in; ++i) {
    logit += static_cast<double>(p.weights[i]) * p.query[n * c.inputs + p.indices[i]];
  }
  return logit;
}

template <typename T>
void Compare(const Case& c, const char* what, const std::vector<T>& got, const std::vector<double>& want) {
  double worst = 0.0, largest = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(got[i] - want[i]);
    worst = difference <= worst ? worst : difference;  // and NaN stays
    largest = std::max(largest, std::abs(want[i]));
  }
  const bool good = got.size() == want.size() && worst <= kTolerance * (largest + 1.0);
  std::printf("%s %s: %s, largest error %.1e\n", good ? "ok    " : "FAILED", c.name, what, worst);
  failed = failed || !good;
}

void CheckForward(const Case& c, Problem p, const Device& device, QueryType type) {
  const bool exact = type == QueryType::kFloat32;
  if (!exact) {
    for (float& x : p.query) x = __bfloat162float(__float2bfloat16(x));
  }
  std::vector<double> logits, reduced(c.queries), positives(c.queries * c.labels), loss(c.queries);
  for (int64_t n = 0; n < c.queries; ++n) {
    for (int64_t l = 0; l < c.classes; ++l) {
      const double logit = Logit(c, p, n, l), beyond = std::max(0.0, 1.0 + logit);
      const auto own = p.labels.begin() + n * c.labels;
      const bool positive = std::find(own, own + c.labels, l) != own + c.labels;
      if (c.start <= l && l < c.stop) logits.push_back(logit);
      reduced[n] += beyond * beyond;
      loss[n] += positive ? std::pow(std::max(0.0, 1.0 - logit), 2) : beyond * beyond;
    }
  }
  for (size_t i = 0; i < positives.size(); ++i) {
    positives[i] = p.labels[i] < 0 ? 0.0 : Logit(c, p, i / c.labels, p.labels[i]);
  }
  if (!device.RunLogits(type) || !device.RunSquaredHinge(type)) return;
  const std::vector<float> got = device.reduced.Read(), label_logits = device.positives.Read();
  std::vector<double> got_loss(got.begin(), got.end());
  for (size_t i = 0; i < positives.size(); ++i) {
    const auto own = p.labels.begin() + i / c.labels * c.labels, at = p.labels.begin() + i;
    if (*at < 0 || std::find(own, at, *at) != at) continue;  // a label counts once
    const double o = label_logits[i];
    got_loss[i / c.labels] += std::pow(std::max(0.0, 1.0 - o), 2) - std::pow(std::max(0.0, 1.0 + o), 2);
  }
  Compare(c, exact ? "logits" : "logits, bfloat16", device.logits.Read(), logits);
  Compare(c, exact ? "squared hinge" : "squared hinge, bfloat16", got, reduced);
  Compare(c, exact ? "label logits" : "label logits, bfloat16", label_logits, positives);
  Compare(c, exact ? "loss" : "loss, bfloat16", got_loss, loss);
}

// Gradients by plain loops from those of the logits of all classes, [N, L].
void CheckGradients(const Case& c, const Problem& p, const Device& device,
                    const std::vector<double>& gradient, const std::string& what,
                    const std::function<bool()>& run) {
  std::vector<double> d_query(p.query.size()), d_weights(p.weights.size()), d_bias(p.bias.size());
  for (int64_t n = 0; n < c.queries; ++n) {
    for (int64_t l = 0; l < c.classes; ++l) {
      const double g = gradient[n * c.classes + l];
      if (g == 0.0) continue;
      if (c.bias) d_bias[l] += g;
      for (int64_t i = l * c.fan_in; i < (l + 1) * c.fan_in; ++i) {
        d_query[n * c.inputs + p.indices[i]] += g * p.weights[i];
        d_weights[i] += g * p.query[n * c.inputs + p.indices[i]];
      }
    }
  }
  if (!run()) return;
  const std::vector<float> first = device.d_query.Read();
  Compare(c, (what + ": query").c_str(), first, d_query);
  Compare(c, (what + ": weights").c_str(), device.d_weights.Read(), d_weights);
  Compare(c, (what + ": bias").c_str(), device.d_bias.Read(), d_bias);
  if (what.find("deterministic") == std::string::npos || !run()) return;
  const std::vector<float> second = device.d_query.Read();
  const bool same = std::memcmp(first.data(), second.data(), first.size() * sizeof(float)) == 0;
  std::printf("%s %s: %s, same bits again\n", same ? "ok    " : "FAILED", c.name, what.c_str());
  failed = failed || !same;
}

void CheckBackward(const Case& c, const Problem& p, const Device& device) {
  std::vector<double> own(c.queries * c.classes), hinge(c.queries * c.classes);
  for (int64_t n = 0; n < c.queries; ++n) {
    for (int64_t l = 0; l < c.classes; ++l) {
      const int64_t i = n * c.classes + l;
      if (c.start <= l && l < c.stop) own[i] = p.logits_gradient[n * (c.stop - c.start) + l - c.start];
      hinge[i] = 2.0 * p.reduced_gradient[n] * std::max(0.0, 1.0 + Logit(c, p, n, l));
    }
    for (int64_t slot = n * c.labels; slot < (n + 1) * c.labels; ++slot) {
      if (p.labels[slot] >= 0) hinge[n * c.classes + p.labels[slot]] += p.positives_gradient[slot];
    }
  }
  for (const bool fixed : {false, true}) {
    const std::string suffix = fixed ? ", deterministic" : "";
    CheckGradients(c, p, device, own, "gradient of logits" + suffix,
                   [&] { return device.RunLogitsGradient(fixed); });
    CheckGradients(c, p, device, hinge, "gradient of squared hinge" + suffix,
                   [&] { return device.RunSquaredHingeGradient(fixed); });
  }
}

void CheckIndices(const Case& c, Problem p) {
  const auto expect = [&](const char* what, int64_t want) {
    const Device device(c, p);
    if (!device.RunCheckIndices()) return;
    const int64_t got = device.first_bad.Read()[0];
    std::printf("%s %s: %s, position %lld\n", got == want ? "ok    " : "FAILED", c.name, what,
                static_cast<long long>(got));
    failed = failed || got != want;
  };
  expect("indices in order", -1);
  int32_t& last = p.indices.back();
  last = static_cast<int32_t>(c.inputs);
  expect("an index beyond the inputs", p.indices.size() - 1);
  if (c.fan_in > 1) {
    last = p.indices[p.indices.size() - c.fan_in];
    expect("an index twice in a row", p.indices.size() - 1);
  }
  p.indices[p.indices.size() / 2] = -1;
  expect("a negative index before it", p.indices.size() / 2);
}

// Queries without a gradient hold NaN, which would show if they were used, and so do the weights of a class
// without.
void CheckSkips(const Case& c) {
  Problem p = Draw(c);
  std::vector<double> gradient(c.queries * c.classes);
  std::fill_n(p.weights.begin() + c.start * c.fan_in, c.fan_in, NAN);
  for (int64_t n = 0; n < c.queries; ++n) {
    for (int64_t l = c.start; l < c.stop; ++l) {
      float& g = p.logits_gradient[n * (c.stop - c.start) + l - c.start];
      if (n % 3 != 1 || l == c.start) g = 0.0f;
      gradient[n * c.classes + l] = g;
    }
    if (n % 3 != 1) std::fill_n(p.query.begin() + n * c.inputs, c.inputs, NAN);
  }
  const Device device(c, p);
  for (const bool fixed : {false, true}) {
    CheckGradients(c, p, device, gradient, fixed ? "skips, deterministic" : "skips",
                   [&] { return device.RunLogitsGradient(fixed); });
  }
}

// A weight that is not finite reaches the query's gradients of its own input only.
void CheckNotFinite(const Case& c) {
  Problem p = Draw(c);
  p.weights[0] = INFINITY;
  const Device device(c, p);
  if (!device.RunLogitsGradient(true)) return;
  const std::vector<float> got = device.d_query.Read();
  bool good = true;
  for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) {
    const bool spoiled =
        i % c.inputs == p.indices[0] && p.logits_gradient[i / c.inputs * (c.stop - c.start)] != 0.0f;
    good = good && std::isnan(got[i]) == spoiled;
  }
  std::printf("%s %s: a weight that is not finite, deterministic\n", good ? "ok    " : "FAILED", c.name);
  failed = failed || !good;
}

void Time(const Device& device, const char* what, const std::function<bool()>& run) {
  cudaEvent_t begin, end;
  float milliseconds = 0.0f;
  if (!run() || !Succeeds(cudaEventCreate(&begin), "event") || !Succeeds(cudaEventCreate(&end), "event"))
    return;
  cudaEventRecord(begin);
  for (int i = 0; i < kTimedRuns; ++i) run();
  cudaEventRecord(end);
  Succeeds(cudaEventSynchronize(end), what);
  Succeeds(cudaEventElapsedTime(&milliseconds, begin, end), what);
  std::printf("time   %s: %s, %.3f ms\n", device.c.name, what, milliseconds / kTimedRuns);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

void TimeAll(const Case& c) {
  const Device device(c, Draw(c));
  Time(device, "logits", [&] { return device.RunLogits(QueryType::kFloat32); });
  Time(device, "logits, bfloat16", [&] { return device.RunLogits(QueryType::kBfloat16); });
  Time(device, "squared hinge", [&] { return device.RunSquaredHinge(QueryType::kFloat32); });
  Time(device, "squared hinge, bfloat16", [&] { return device.RunSquaredHinge(QueryType::kBfloat16); });
  Time(device, "gradient of logits", [&] { return device.RunLogitsGradient(false); });
  Time(device, "gradient of logits, deterministic", [&] { return device.RunLogitsGradient(true); });
  Time(device, "gradient of squared hinge", [&] { return device.RunSquaredHingeGradient(false); });
  Time(device, "gradient of squared hinge, deterministic",
       [&] { return device.RunSquaredHingeGradient(true); });
  Time(device, "check of indices", [&] { return device.RunCheckIndices(); });
}

// Queries, inputs, classes, inputs a class, labels a query, first class, last class, bias, share of gradients
// not 0.
const Case kCases[] = {
    {"one input", 5, 1, 70, 1, 2, 0, 70, true, 1.0},
    {"every input", 3, 33, 50, 33, 2, 0, 50, true, 1.0},
    {"one query", 1, 200, 1000, 16, 3, 0, 1000, true, 1.0},
    {"tile of 8", 8, 100, 300, 20, 2, 7, 290, false, 1.0},
    {"tile not full", 45, 129, 333, 32, 4, 10, 301, true, 0.5},
    {"last tile of one", 65, 64, 97, 8, 1, 0, 97, true, 0.1},
    {"one input a class", 10, 50, 400, 1, 2, 0, 400, true, 1.0},
    {"one class", 7, 40, 1, 12, 1, 0, 1, true, 1.0},
    {"no label", 32, 64, 64, 40, 0, 0, 64, true, 0.3},
    {"zero gradients", 33, 70, 128, 5, 1, 0, 128, true, 0.0},
    {"more inputs than lanes", 12, 500, 130, 100, 5, 1, 2, false, 0.2},
    {"empty block", 4, 30, 20, 3, 1, 20, 20, true, 1.0},
    {"more classes than partial sums", 2, 16, 40000, 2, 1, 39000, 40000, true, 0.2},
    {"as many classes as it is for", 9, 16384, 670091, 32, 5, 0, 670091, true, 0.1},
};

int Main(bool timing) {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    std::printf("no CUDA device\n");
    return 77;
  }
  for (const Case& c : kCases) {
    const Problem p = Draw(c);
    const Device device(c, p);
    CheckForward(c, p, device, QueryType::kFloat32);
    CheckForward(c, p, device, QueryType::kBfloat16);
    CheckBackward(c, p, device);
    CheckIndices(c, p);
    if (c.start == c.stop) continue;
    CheckSkips(c);
    if (c.start == 0) CheckNotFinite(c);
  }
  if (timing && !failed) {
    TimeAll({"dense gradients", 32, 16384, 670091, 32, 5, 0, 670091, true, 1.0});
    TimeAll({"sparse gradients", 32, 16384, 670091, 32, 5, 0, 670091, true, 0.01, -1.9f});
  }
  Succeeds(cudaDeviceSynchronize(), "the end");
  std::printf(failed ? "FAILED\n" : "all agree\n");
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace tfxc

int main(int argc, char** argv) { return tfxc::Main(argc < 2 || std::strcmp(argv[1], "--no-timing") != 0); }
