#include "mach_decode/exhaustive.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/gather.h"
#include "common/vectorize.h"

namespace tfxc {
namespace {

// The number of classes whose buckets are computed at a time: they stay in the first-level cache.
constexpr int64_t kStretch = 1024;
// Bytes of the scores of a block of classes: half of a second-level cache, where they stay for the next repetition.
constexpr int64_t kBlockBytes = 128 << 10;

constexpr int kGroup = 2 * kLanes;  // classes whose buckets are computed at once

// The buckets of consecutive classes, a group at a time. From one group to the next the value mod p grows by a
// constant, so additions are enough, and the value mod M can be updated, too.
template <typename Lanes>
class BucketStream {
 public:
  TFXC_INLINE BucketStream(const Hashes& hashes, int64_t r, int64_t first) {
    prime_ = hashes.prime;
    num_buckets_ = hashes.num_buckets;
    step_ = kGroup * hashes.functions[r].multiplier % hashes.prime;
    bucket_step_ = step_ % num_buckets_;
    // A value that wraps around falls by p - step.
    const uint32_t fall = (prime_ - step_) % num_buckets_;
    wrapped_step_ = fall == 0 ? 0 : num_buckets_ - fall;
    for (int j = 0; j < kGroup; ++j) {
      const uint32_t value = hashes.Value(r, first + j);
      value_[j / kSize][j % kSize] = value;
      bucket_[j / kSize][j % kSize] = value % num_buckets_;
    }
  }

  // The buckets of the next `count` classes, a multiple of a group.
  TFXC_INLINE void Next(int64_t count, uint32_t* out) {
    UintOf<Lanes> value[kParts], bucket[kParts];
    for (int part = 0; part < kParts; ++part) {
      value[part] = value_[part];
      bucket[part] = bucket_[part];
    }
    for (int64_t i = 0; i < count; i += kGroup) {
      std::memcpy(out + i, bucket, sizeof(bucket));
      for (int part = 0; part < kParts; ++part) {
        value[part] += step_;
        const auto wraps = value[part] >= prime_;
        value[part] = wraps ? value[part] - prime_ : value[part];
        bucket[part] += wraps ? UintOf<Lanes>{} + wrapped_step_ : UintOf<Lanes>{} + bucket_step_;
        const UintOf<Lanes> less = bucket[part] - num_buckets_;  // below 0 it is huge
        bucket[part] = bucket[part] < less ? bucket[part] : less;
      }
    }
    for (int part = 0; part < kParts; ++part) {
      value_[part] = value[part];
      bucket_[part] = bucket[part];
    }
  }

 private:
  static constexpr int kSize = kSizeOf<Lanes>, kParts = kGroup / kSize;
  UintOf<Lanes> value_[kParts], bucket_[kParts];
  uint32_t prime_, num_buckets_, step_, bucket_step_, wrapped_step_;
};

// NaN in either stays.
template <Decoder decoder, typename Values>
TFXC_INLINE Values Fold(Values sum, Values value) {
  return decoder == Decoder::kMean ? sum + value : ((value < sum) | (value != value)) ? value : sum;
}

// Updates scores[i] by the value of bucket i: the first repetition sets it, the others add to it or keep the minimum. A
// median needs all values.
template <Decoder decoder, typename Lanes>
TFXC_INLINE void FoldStretch(const float* table, const uint32_t* buckets, int64_t count, bool set, float* scores) {
  if (set || decoder == Decoder::kMedian) return Gather(table, buckets, count, scores);
  float values[kStretch];
  Gather(table, buckets, count, values);
  for (int64_t i = 0; i < count; ++i) scores[i] = Fold<decoder>(scores[i], values[i]);
}

template <Decoder decoder, typename Lanes>
TFXC_INLINE void FoldStretch(const TileRow* table, const uint32_t* buckets, int64_t count, bool set, TileRow* scores) {
  if (set || decoder == Decoder::kMedian) {
    for (int64_t i = 0; i < count; ++i) scores[i] = table[buckets[i]];
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const float* values = table[buckets[i]].lane;
      for (int j = 0; j < kTileWidth; j += kSizeOf<Lanes>) {
        float* own = scores[i].lane + j;
        Store(Fold<decoder>(Load<Lanes>(own), Load<Lanes>(values + j)), own);
      }
    }
  }
}

// The median over R of values [R, count], in values[0]; for even R the mean of the two in the middle.
template <typename Lanes>
TFXC_INLINE void Medians(int64_t num_values, int64_t count, float* values) {
  struct alignas(sizeof(Lanes)) Row {
    Lanes lane;
  };
  std::vector<Row> rows(num_values);
  const int64_t middle = num_values / 2;
  for (int64_t i = 0; i < count; i += kSizeOf<Lanes>) {
    auto is_nan = Lanes{} != Lanes{};
    for (int64_t r = 0; r < num_values; ++r) {
      rows[r].lane = Load<Lanes>(values + r * count + i);
      is_nan |= rows[r].lane != rows[r].lane;
    }
    // Moves the largest to the end, until the middle ones are in place.
    for (int64_t end = num_values - 1; end >= std::max<int64_t>(middle - 1, 1); --end) {
      auto largest = rows[0].lane;
      for (int64_t r = 0; r < end; ++r) {
        const auto next = rows[r + 1].lane;
        rows[r].lane = next < largest ? next : largest;
        largest = next < largest ? largest : next;
      }
      rows[end].lane = largest;
    }
    const Lanes upper = rows[middle].lane, lower = rows[num_values % 2 ? middle : middle - 1].lane;
    Store(is_nan ? Fill<Lanes>(std::numeric_limits<float>::quiet_NaN()) : 0.5f * (lower + upper), values + i);
  }
}

// Scores of `padded` classes from the first on; tables[r] is [M] of floats, or of vectors with a lane for each query.
template <Decoder decoder, typename Lanes, typename Values>
TFXC_INLINE void ScoreBlock(const Hashes& hashes, const std::vector<const Values*>& tables, int64_t first,
                            int64_t padded, Values* scores) {
  constexpr int kWidth = sizeof(Values) / sizeof(float);
  uint32_t buckets[kStretch];
  for (int64_t r = 0; r < hashes.Count(); ++r) {
    BucketStream<Lanes> stream(hashes, r, first);
    Values* own = decoder == Decoder::kMedian ? scores + r * padded : scores;
    for (int64_t start = 0; start < padded; start += kStretch) {
      const int64_t count = std::min(kStretch, padded - start);
      stream.Next(count, buckets);
      FoldStretch<decoder, Lanes>(tables[r], buckets, count, r == 0, own + start);
    }
  }
  float* all = reinterpret_cast<float*>(scores);
  if (decoder == Decoder::kMedian) Medians<Lanes>(hashes.Count(), padded * kWidth, all);
  if (decoder == Decoder::kMean) {
    const float scale = 1.0f / hashes.Count();
    for (int64_t i = 0; i < padded * kWidth; ++i) all[i] *= scale;
  }
}

template <typename Lanes, typename Values>
TFXC_INLINE void ScoreBlockBy(Decoder decoder, const Hashes& hashes, const std::vector<const Values*>& tables,
                              int64_t first, int64_t padded, Values* scores) {
  if (decoder == Decoder::kMean) ScoreBlock<Decoder::kMean, Lanes>(hashes, tables, first, padded, scores);
  if (decoder == Decoder::kMin) ScoreBlock<Decoder::kMin, Lanes>(hashes, tables, first, padded, scores);
  if (decoder == Decoder::kMedian) ScoreBlock<Decoder::kMedian, Lanes>(hashes, tables, first, padded, scores);
}

template <typename Lanes>
TFXC_INLINE void ScoreOneOf(Decoder decoder, const Hashes& hashes, const std::vector<const float*>& tables,
                            int64_t first, int64_t padded, float* scores) {
  ScoreBlockBy<Lanes>(decoder, hashes, tables, first, padded, scores);
}
TFXC_BY_WIDTH(void, ScoreOne,
              (Decoder decoder, const Hashes& hashes, const std::vector<const float*>& tables, int64_t first,
               int64_t padded, float* scores),
              (decoder, hashes, tables, first, padded, scores))

template <typename Lanes>
TFXC_INLINE void ScoreTileOf(Decoder decoder, const Hashes& hashes, const std::vector<const TileRow*>& tables,
                             int64_t first, int64_t padded, TileRow* scores) {
  ScoreBlockBy<Lanes>(decoder, hashes, tables, first, padded, scores);
}
TFXC_BY_WIDTH(void, ScoreTile,
              (Decoder decoder, const Hashes& hashes, const std::vector<const TileRow*>& tables, int64_t first,
               int64_t padded, TileRow* scores),
              (decoder, hashes, tables, first, padded, scores))

template <typename Lanes>
TFXC_INLINE void OfferOneOf(const float* scores, int64_t count, int32_t first, Best* best) {
  OfferAll<Lanes>(scores, count, first, best);
}
TFXC_BY_WIDTH(void, OfferOne, (const float* scores, int64_t count, int32_t first, Best* best),
              (scores, count, first, best))

// Lane j belongs to best[j].
template <typename Lanes>
TFXC_INLINE void OfferLanesOf(const TileRow* scores, int64_t count, int32_t first, int64_t num_lanes, Best* best) {
  constexpr int kSize = kSizeOf<Lanes>;
  Lanes thresholds[kParts<Lanes>];
  for (int j = 0; j < kTileWidth; ++j) {
    thresholds[j / kSize][j % kSize] = j < num_lanes ? best[j].threshold() : std::numeric_limits<float>::infinity();
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int part = 0; part < kParts<Lanes>; ++part) {
      const float* own = scores[i].lane + part * kSize;
      const IntOf<Lanes> above = Load<Lanes>(own) > thresholds[part];
      if (!Any(above)) continue;
      for (int j = 0; j < kSize && part * kSize + j < num_lanes; ++j) {
        if (!above[j]) continue;
        Best& one = best[part * kSize + j];
        one.Offer({own[j], static_cast<int32_t>(first + i)});
        thresholds[part][j] = one.threshold();
      }
    }
  }
}
TFXC_BY_WIDTH(void, OfferLanes,
              (const TileRow* scores, int64_t count, int32_t first, int64_t num_lanes, Best* best),
              (scores, count, first, num_lanes, best))

// Sets the scores of excluded classes of a block to -inf.
template <typename SetScore>
void Exclude(const Queries& queries, int64_t query, int64_t first, int64_t count, SetScore set_score) {
  const int32_t* ids = queries.exclude + query * queries.num_excluded;
  for (int64_t x = 0; x < queries.num_excluded; ++x) {
    const int64_t i = ids[x] - first;
    if (ids[x] >= 0 && i >= 0 && i < count) set_score(i, -std::numeric_limits<float>::infinity());
  }
}

// Calls work(first, count, padded, scores) for blocks of classes, with room for their scores, for a median those of all
// repetitions.
template <typename Values, typename Work>
void ForEachBlock(const Hashes& hashes, Decoder decoder, int64_t first, int64_t last, Work work) {
  const int64_t depth = decoder == Decoder::kMedian ? hashes.Count() : 1;
  const int64_t room = kBlockBytes / static_cast<int64_t>(sizeof(Values)) / depth;
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
