// The k classes of the highest logits of each query, kept while classes pass by in the order of their ids.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/scored.h"

namespace tfxc::dense_scan {

// A bound that the shards of the classes share for each query: a score that k classes of one shard reach. A thread that
// reads it late does more work, and finds the same.
class Bounds {
 public:
  explicit Bounds(int64_t num_queries) : bounds_(num_queries) {
    for (auto& bound : bounds_) bound.store(-std::numeric_limits<float>::infinity(), std::memory_order_relaxed);
  }

  float get(int64_t query) const { return bounds_[query].load(std::memory_order_relaxed); }

  void Raise(int64_t query, float score) {
    float known = get(query);
    while (score > known && !bounds_[query].compare_exchange_weak(known, score, std::memory_order_relaxed)) {
    }
  }

 private:
  std::vector<std::atomic<float>> bounds_;
};

// For each of some queries, the best k of a shard so far, and up to k candidates more.
class Best {
 public:
  // excluded[q]: sorted ids that never rank.
  Best(int64_t num_queries, int64_t k, const std::vector<std::vector<int32_t>>& excluded, Bounds* bounds)
      : k_(k), excluded_(excluded), bounds_(bounds), found_(num_queries), thresholds_(num_queries + kPadding, -kNone) {
    std::fill_n(thresholds_.begin(), num_queries, kNone);
  }

  // A class ranks only above it; NaN and -inf never do, and no class does behind the last query.
  const float* thresholds() const { return thresholds_.data(); }

  // Reads the bounds of other shards for some queries. A class as good as a bound may have a lower id, and ranks.
  void Update(int64_t first, int64_t count) {
    for (int64_t q = first; q < first + count; ++q) {
      thresholds_[q] = std::max(thresholds_[q], Below(bounds_->get(q)));
    }
  }

  void Add(int64_t query, float score, int32_t id) {
    if (!(score > thresholds_[query]) || IsExcluded(query, id)) return;
    std::vector<Scored>& own = found_[query];
    own.push_back({score, id});
    if (static_cast<int64_t>(own.size()) < 2 * k_) return;
    std::nth_element(own.begin(), own.begin() + k_ - 1, own.end());
    own.resize(k_);
    thresholds_[query] = std::max(thresholds_[query], own.back().score);
    bounds_->Raise(query, own.back().score);
  }

  const std::vector<Scored>& found(int64_t query) const { return found_[query]; }

 private:
  static constexpr int64_t kPadding = 64;
  static constexpr float kNone = -std::numeric_limits<float>::infinity();

  // Threads may treat numbers between -kTiny and kTiny as 0.
  static float Below(float score) {
    constexpr float kTiny = std::numeric_limits<float>::min();
    return std::abs(score) <= kTiny ? -2 * kTiny : std::nextafterf(score, kNone);
  }

  bool IsExcluded(int64_t query, int32_t id) const {
    return !excluded_.empty() && std::binary_search(excluded_[query].begin(), excluded_[query].end(), id);
  }

  int64_t k_;
  const std::vector<std::vector<int32_t>>& excluded_;
  Bounds* bounds_;
  std::vector<std::vector<Scored>> found_;
  std::vector<float> thresholds_;
};

// Adds rows of logits, of the classes `ids` in ascending order, to the best of queries first, first + 1, ...
void AddToBest(const float* logits, int64_t num_rows, int width, int64_t num_queries, int64_t first, const int32_t* ids,
               Best* best);

}  // namespace tfxc::dense_scan
