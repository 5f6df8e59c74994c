#include "mach_decode/exhaustive.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/gather.h"
#include "common/vectorize.h"

namespace tfxc {
namespace {

// Classes whose buckets are worked out at a time: they stay in the first-level cache.
constexpr int64_t kStretch = 1024;
// Bytes of scores of a block of classes: half of a second-level cache, where they wait for the next repetition.
constexpr int64_t kBlockBytes = 128 << 10;

// The buckets of consecutive classes, 32 at a time. From one group to the next the value mod p grows by a constant,
// so it takes additions only, and the value mod M can be carried along.
class BucketStream {
 public:
  static constexpr int kGroup = 2 * kLanes;

  BucketStream(const Hashes& hashes, int64_t r, int64_t first) {
    prime_ = hashes.prime;
    num_buckets_ = hashes.num_buckets;
    step_ = kGroup * hashes.functions[r].multiplier % hashes.prime;
    bucket_step_ = step_ % num_buckets_;
    // When the value wraps around it falls by p - step.
    const uint32_t fall = (prime_ - step_) % num_buckets_;
    wrapped_step_ = fall == 0 ? 0 : num_buckets_ - fall;
    for (int j = 0; j < kGroup; ++j) {
      const uint32_t value = hashes.Value(r, first + j);
      value_[j / kLanes][j % kLanes] = value;
      bucket_[j / kLanes][j % kLanes] = value % num_buckets_;
    }
  }

  // The buckets of the next `count` classes, a multiple of 32.
  TFXC_INLINE void Next(int64_t count, uint32_t* out) {
    UintLanes value[2] = {value_[0], value_[1]}, bucket[2] = {bucket_[0], bucket_[1]};
    for (int64_t i = 0; i < count; i += kGroup) {
      std::memcpy(out + i, bucket, sizeof(bucket));
      for (int half = 0; half < 2; ++half) {
        value[half] += step_;
        const auto wraps = value[half] >= prime_;
        value[half] = wraps ? value[half] - prime_ : value[half];
        bucket[half] += wraps ? UintLanes{} + wrapped_step_ : UintLanes{} + bucket_step_;
        const UintLanes less = bucket[half] - num_buckets_;  // below 0 it is huge
        bucket[half] = bucket[half] < less ? bucket[half] : less;
      }
    }
    for (int half = 0; half < 2; ++half) {
      value_[half] = value[half];
      bucket_[half] = bucket[half];
    }
  }

 private:
  UintLanes value_[2], bucket_[2];
  uint32_t prime_, num_buckets_, step_, bucket_step_, wrapped_step_;
};

// NaN in either stays.
template <Decoder decoder, typename Values>
TFXC_INLINE Values Fold(Values sum, Values value) {
  return decoder == Decoder::kMean ? sum + value : (value < sum) | (value != value) ? value : sum;
}

// scores[i] takes in the value of bucket i: the first repetition sets it, the others add to it or keep the smaller. A
// median needs all values.
template <Decoder decoder>
TFXC_INLINE void FoldStretch(const float* table, const uint32_t* buckets, int64_t count, bool set, float* scores) {
  if (set || decoder == Decoder::kMedian) return Gather(table, buckets, count, scores);
  float values[kStretch];
  Gather(table, buckets, count, values);
  for (int64_t i = 0; i < count; ++i) scores[i] = Fold<decoder>(scores[i], values[i]);
}

template <Decoder decoder>
TFXC_INLINE void FoldStretch(const TileRow* table, const uint32_t* buckets, int64_t count, bool set, TileRow* scores) {
  if (set || decoder == Decoder::kMedian) {
    for (int64_t i = 0; i < count; ++i) scores[i] = table[buckets[i]];
  } else {
    for (int64_t i = 0; i < count; ++i) {
      scores[i].lane = Fold<decoder>(scores[i].lane, table[buckets[i]].lane);
    }
  }
}

// values [R, count] -> the median over R in values[0]; for even R the mean of the two in the middle.
TFXC_INLINE void Medians(int64_t num_values, int64_t count, float* values) {
  std::vector<TileRow> rows(num_values);
  const int64_t middle = num_values / 2;
  for (int64_t i = 0; i < count; i += kTileWidth) {
    auto is_nan = Lanes{} != Lanes{};
    for (int64_t r = 0; r < num_values; ++r) {
      std::memcpy(&rows[r], values + r * count + i, sizeof(TileRow));
      is_nan |= rows[r].lane != rows[r].lane;
    }
    // Carries the largest to the end until the middle ones are in place.
    for (int64_t end = num_values - 1; end >= std::max<int64_t>(middle - 1, 1); --end) {
      auto largest = rows[0].lane;
      for (int64_t r = 0; r < end; ++r) {
        const auto next = rows[r + 1].lane;
        rows[r].lane = next < largest ? next : largest;
        largest = next < largest ? largest : next;
      }
      rows[end].lane = largest;
    }
    const TileRow &upper = rows[middle], &lower = rows[num_values % 2 ? middle : middle - 1];
    const TileRow median = {is_nan ? Fill(std::numeric_limits<float>::quiet_NaN()) : 0.5f * (lower.lane + upper.lane)};
    std::memcpy(values + i, &median, sizeof(median));
  }
}

// Scores of `padded` classes from the first on; tables[r] is [M] of floats, or of vectors with a lane a query.
template <Decoder decoder, typename Values>
TFXC_INLINE void ScoreBlock(const Hashes& hashes, const std::vector<const Values*>& tables, int64_t first,
                            int64_t padded, Values* scores) {
  constexpr int kWidth = sizeof(Values) / sizeof(float);
  uint32_t buckets[kStretch];
  for (int64_t r = 0; r < hashes.Count(); ++r) {
    BucketStream stream(hashes, r, first);
    Values* own = decoder == Decoder::kMedian ? scores + r * padded : scores;
    for (int64_t start = 0; start < padded; start += kStretch) {
      const int64_t count = std::min(kStretch, padded - start);
      stream.Next(count, buckets);
      FoldStretch<decoder>(tables[r], buckets, count, r == 0, own + start);
    }
  }
  float* all = reinterpret_cast<float*>(scores);
  if (decoder == Decoder::kMedian) Medians(hashes.Count(), padded * kWidth, all);
  if (decoder == Decoder::kMean) {
    const float scale = 1.0f / hashes.Count();
    for (int64_t i = 0; i < padded * kWidth; ++i) all[i] *= scale;
  }
}

template <typename Values>
TFXC_INLINE void ScoreBlockBy(Decoder decoder, const Hashes& hashes, const std::vector<const Values*>& tables,
                              int64_t first, int64_t padded, Values* scores) {
  if (decoder == Decoder::kMean) ScoreBlock<Decoder::kMean>(hashes, tables, first, padded, scores);
  if (decoder == Decoder::kMin) ScoreBlock<Decoder::kMin>(hashes, tables, first, padded, scores);
  if (decoder == Decoder::kMedian) ScoreBlock<Decoder::kMedian>(hashes, tables, first, padded, scores);
}

TFXC_VECTORIZE void ScoreOne(Decoder decoder, const Hashes& hashes, const std::vector<const float*>& tables,
                             int64_t first, int64_t padded, float* scores) {
  ScoreBlockBy(decoder, hashes, tables, first, padded, scores);
}

TFXC_VECTORIZE void ScoreTile(Decoder decoder, const Hashes& hashes, const std::vector<const TileRow*>& tables,
                              int64_t first, int64_t padded, TileRow* scores) {
  ScoreBlockBy(decoder, hashes, tables, first, padded, scores);
}

TFXC_VECTORIZE void OfferOne(const float* scores, int64_t count, int32_t first, Best* best) {
  OfferAll(scores, count, first, best);
}

// Lane j belongs to best[j].
TFXC_VECTORIZE void OfferLanes(const TileRow* scores, int64_t count, int32_t first, int64_t num_lanes, Best* best) {
  TileRow thresholds;
  for (int j = 0; j < kTileWidth; ++j) {
    thresholds.lane[j] = j < num_lanes ? best[j].threshold() : std::numeric_limits<float>::infinity();
  }
  for (int64_t i = 0; i < count; ++i) {
    const IntLanes above = scores[i].lane > thresholds.lane;
    if (!Any(above)) continue;
    for (int64_t j = 0; j < num_lanes; ++j) {
      if (!above[j]) continue;
      best[j].Offer({scores[i].lane[j], static_cast<int32_t>(first + i)});
      thresholds.lane[j] = best[j].threshold();
    }
  }
}

// Excluded classes of a block score -inf.
template <typename SetScore>
void Exclude(const Queries& queries, int64_t query, int64_t first, int64_t count, SetScore set_score) {
  const int32_t* ids = queries.exclude + query * queries.num_excluded;
  for (int64_t x = 0; x < queries.num_excluded; ++x) {
    const int64_t i = ids[x] - first;
    if (ids[x] >= 0 && i >= 0 && i < count) set_score(i, -std::numeric_limits<float>::infinity());
  }
}

// Calls work(first, count, padded, scores) for blocks of classes with room for their scores, those of all
// repetitions if a median needs them.
template <typename Values, typename Work>
void ForEachBlock(const Hashes& hashes, Decoder decoder, int64_t first, int64_t last, Work work) {
  const int64_t depth = decoder == Decoder::kMedian ? hashes.Count() : 1;
  const int64_t room = kBlockBytes / static_cast<int64_t>(sizeof(Values)) / depth;
  constexpr int64_t kGroup = BucketStream::kGroup;
  const auto padded = [](int64_t count) { return (count + kGroup - 1) / kGroup * kGroup; };
  const int64_t size = padded(std::min(std::max<int64_t>(room, 1), last - first));
  std::vector<Values> scores(size * depth);
  for (int64_t start = first; start < last; start += size) {
    const int64_t count = std::min(size, last - start);
    work(start, count, padded(count), scores.data());
  }
}

}  // namespace

void RankClasses(const Hashes& hashes, const Queries& queries, int64_t query, int64_t first, int64_t last,
                 Best* best) {
  std::vector<const float*> tables;
  for (int64_t r = 0; r < hashes.Count(); ++r) tables.push_back(queries.Table(hashes, query, r));
  ForEachBlock<float>(hashes, queries.decoder, first, last,
                      [&](int64_t start, int64_t count, int64_t padded, float* scores) {
                        ScoreOne(queries.decoder, hashes, tables, start, padded, scores);
                        Exclude(queries, query, start, count, [&](int64_t i, float score) { scores[i] = score; });
                        OfferOne(scores, count, start, best);
                      });
}

void LayOutTile(const Hashes& hashes, const Queries& queries, const std::vector<int64_t>& tile, int64_t r,
                TileRow* laid_out) {
  for (int64_t m = 0; m < hashes.num_buckets; ++m) laid_out[m] = TileRow();
  for (size_t j = 0; j < tile.size(); ++j) {
    const float* table = queries.Table(hashes, tile[j], r);
    for (int64_t m = 0; m < hashes.num_buckets; ++m) laid_out[m].lane[j] = table[m];
  }
}

void RankClassesOfTile(const Hashes& hashes, const Queries& queries, const std::vector<int64_t>& tile,
                       const TileRow* laid_out, int64_t first, int64_t last, Best* best) {
  std::vector<const TileRow*> tables;
  for (int64_t r = 0; r < hashes.Count(); ++r) tables.push_back(laid_out + r * hashes.num_buckets);
  ForEachBlock<TileRow>(hashes, queries.decoder, first, last,
                        [&](int64_t start, int64_t count, int64_t padded, TileRow* scores) {
                          ScoreTile(queries.decoder, hashes, tables, start, padded, scores);
                          for (size_t j = 0; j < tile.size(); ++j) {
                            Exclude(queries, tile[j], start, count,
                                    [&](int64_t i, float score) { scores[i].lane[j] = score; });
                          }
                          OfferLanes(scores, count, start, tile.size(), best);
                        });
}

}  // namespace tfxc
