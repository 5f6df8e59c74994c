// What kernel_threads.cc calls the kernels with: threads, random inputs, and results to compare.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace tfxc {

// Calls work(first, last) for parts of [0, count): each thread takes the next part as soon as it is free.
class Threads {
 public:
  explicit Threads(int count) : count_(count) {}

  template <typename Work>
  void ForEach(int64_t count, const Work& work) const {
    const int64_t part = std::max<int64_t>(1, count / (3 * count_));
    std::atomic<int64_t> next{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < count_; ++i) {
      threads.emplace_back([&] {
        for (int64_t first; (first = next.fetch_add(part)) < count;) work(first, std::min(first + part, count));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  const int count_;
};

class Random {
 public:
  explicit Random(uint32_t seed) : generator_(seed) {}
  std::vector<float> Floats(int64_t count) {
    std::vector<float> values(count);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(generator_);
    return values;
  }
  template <typename T = int32_t>
  std::vector<T> Integers(int64_t count, int64_t low, int64_t high) {  // high is never taken
    std::vector<T> values(count);
    for (T& value : values) value = static_cast<T>(low + static_cast<int64_t>(generator_() % (high - low)));
    return values;
  }

 private:
  std::mt19937 generator_;
};

// The bytes of some results, one after the other.
class Bytes {
 public:
  template <typename T>
  Bytes& Add(const std::vector<T>& values) {
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    return *this;
  }
  bool operator!=(const Bytes& other) const { return bytes_ != other.bytes_; }

 private:
  std::string bytes_;
};

// A tile begins where a vector may, as what TensorFlow allocates does.
struct alignas(64) Line {
  float values[16];
};

class Tiles {
 public:
  explicit Tiles(int64_t num_floats) : lines_((num_floats + 15) / 16) {}
  float* data() { return lines_.data()->values; }

 private:
  std::vector<Line> lines_;
};

}  // namespace tfxc
