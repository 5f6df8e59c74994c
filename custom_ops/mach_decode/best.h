// The k best of a stream of scored ids, the lower id first among equals, whatever the order of the stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/lanes.h"
#include "common/scored.h"

namespace tfxc {

class Best {
 public:
  explicit Best(int64_t k) : k_(k) {}

  // A score below it cannot rank.
  float threshold() const { return threshold_; }

  // NaN, -inf and the least finite number never rank.
  void Offer(Scored one) {
    if (!(one.score > std::numeric_limits<float>::lowest())) return;
    const int64_t size = heap_.size();
    if (size == k_) {
      if (!(one < heap_.front())) return;
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.back() = one;
    } else {
      heap_.push_back(one);
    }
    std::push_heap(heap_.begin(), heap_.end());
    if (size + 1 >= k_) threshold_ = heap_.front().score;
  }

  bool Holds(int32_t id) const {
    return std::any_of(heap_.begin(), heap_.end(), [id](const Scored& one) { return one.id == id; });
  }

  void Merge(const Best& other) {
    for (Scored one : other.heap_) Offer(one);
  }

  // Best first; the rest is -inf and -1.
  void Write(float* scores, int32_t* ids) {
    std::sort(heap_.begin(), heap_.end());
    heap_.resize(k_, {-std::numeric_limits<float>::infinity(), -1});
    for (int64_t i = 0; i < k_; ++i) {
      scores[i] = heap_[i].score;
      ids[i] = heap_[i].id;
    }
  }

 private:
  int64_t k_;
  float threshold_ = -std::numeric_limits<float>::infinity();
  std::vector<Scored> heap_;  // the worst in front
};

// Offers ids first, first + 1, ... with their scores. The ids in `best` are lower and win ties.
template <typename Lanes>
TFXC_INLINE void OfferAll(const float* scores, int64_t count, int32_t first, Best* best) {
  constexpr int64_t kStride = 4 * kLanes;  // few scores rank: usually one comparison rules out so many
  for (int64_t start = 0; start < count; start += kStride) {
    const int64_t end = start + kStride <= count ? start + kStride : count;
    if (end == start + kStride) {
      Lanes largest = Load<Lanes>(scores + start);  // NaN in it stays, and is examined
      for (int64_t v = kSizeOf<Lanes>; v < kStride; v += kSizeOf<Lanes>) {
        const Lanes next = Load<Lanes>(scores + start + v);
        largest = next > largest ? next : largest;
      }
      if (!Any(~(largest <= best->threshold()))) continue;
    }
    for (int64_t i = start; i < end; ++i) {
      if (scores[i] > best->threshold()) best->Offer({scores[i], static_cast<int32_t>(first + i)});
    }
  }
}

}  // namespace tfxc
