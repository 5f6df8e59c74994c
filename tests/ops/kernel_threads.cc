// Calls the kernels from several threads, the way the ops cut up their work, and compares the results with those of one
// thread. Compiled with -fsanitize=thread: inside TensorFlow that sanitizer itself crashes. Prints a line a kernel.
// Exit status: 0 if all agree, 1 if not, and the sanitizer's own if it finds a race.
#include "kernel_threads.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "block_draw/blocks.h"
#include "candidate_log_sum_exp/log_sum_exp.h"
#include "candidate_scores/scores.h"
#include "common/philox.h"
#include "dense_scan/best.h"
#include "dense_scan/tile_gradient.h"
#include "dense_scan/tile_scan.h"
#include "hash_tables/tables.h"
#include "lsh_draw/draw.h"
#include "mach_decode/exhaustive.h"
#include "mach_decode/probed.h"
#include "mach_decode/pruned.h"
#include "midx_draw/draw.h"
#include "row_updates/row_groups.h"
#include "sparse_head/candidates.h"
#include "sparse_head/groups.h"
#include "sparse_head/tiles.h"

namespace tfxc {
namespace {

// The loops over all classes, of classes of their own or in groups, whose tiles are `widest` wide.
template <int64_t kGroup, int kWidest, auto logits_of, auto logits_gradient, auto reduce, auto reduce_gradient>
Bytes SparseHead(const Threads& threads) {
  constexpr int64_t kClasses = 301, kFanIn = 5, kInputs = 40, kQueries = 70, kShards = 8;
  Random random(1);
  const auto weights = random.Floats(kClasses * kFanIn), bias = random.Floats(kClasses);
  const auto indices = random.Integers(kClasses * kFanIn, 0, kInputs);
  const auto query = random.Floats(kQueries * kInputs), upstream = random.Floats(kQueries * kClasses);
  const SparseRows rows{weights.data(), indices.data(), bias.data(), kFanIn, kInputs, kGroup};
  const auto shard_of = [](int64_t shard) { return kClasses * shard / kShards; };
  Bytes bytes;
  for (int64_t n = 0; n < kQueries; n += kWidest) {
    const int64_t count = std::min<int64_t>(kWidest, kQueries - n);
    const int width = TileWidth(rows, count, kWidest);
    Tiles tile(kInputs * width), privates(kShards * kInputs * width);
    threads.ForEach(kInputs, [&](int64_t first, int64_t last) {
      FillTile(&query[n * kInputs], count, kInputs, width, first, last, tile.data());
    });
    std::vector<float> logits(count * kClasses), of_query(count * kInputs);
    std::vector<float> of_weights(kClasses * kFanIn), of_bias(kClasses);
    std::atomic<int64_t> bad{kNoClass};
    threads.ForEach(kShards, [&](int64_t begin, int64_t end) {
      for (int64_t shard = begin; shard < end; ++shard) {
        const int64_t first = shard_of(shard), last = shard_of(shard + 1);
        const int64_t found = logits_of(rows, tile.data(), width, count, first, last, &logits[first], kClasses);
        if (found != kNoClass) bad = found;
      }
    });
    bytes.Add(logits);
    const auto backward = [&](const auto& pass) {
      threads.ForEach(kShards, [&](int64_t begin, int64_t end) {
        for (int64_t shard = begin; shard < end; ++shard) {
          const int64_t first = shard_of(shard), last = shard_of(shard + 1);
          float* own = privates.data() + shard * kInputs * width;
          std::fill(own, own + kInputs * width, 0.0f);
          pass(first, last, TileGradients{&of_weights[first * kFanIn], &of_bias[first], own, n > 0});
        }
      });
      threads.ForEach(kInputs, [&](int64_t first, int64_t last) {
        SumTiles(privates.data(), kShards, kInputs, width, count, first, last, of_query.data());
      });
      bytes.Add(of_weights).Add(of_bias).Add(of_query);
    };
    backward([&](int64_t first, int64_t last, const TileGradients& out) {
      logits_gradient(rows, tile.data(), width, count, &upstream[n * kClasses + first], kClasses, first, last, out);
    });
    for (Reduction reduction : {Reduction::kSquaredHinge, Reduction::kSoftplus, Reduction::kLogSumExp}) {
      std::vector<double> sums(kShards * width);
      std::vector<float> maxima(kShards * width);
      threads.ForEach(kShards, [&](int64_t begin, int64_t end) {
        for (int64_t shard = begin; shard < end; ++shard) {
          reduce(rows, reduction, tile.data(), width, shard_of(shard), shard_of(shard + 1), &sums[shard * width],
                 &maxima[shard * width]);
        }
      });
      bytes.Add(sums).Add(maxima);
      const std::vector<float> reduced(width, 3.0f), scale(upstream.begin(), upstream.begin() + width);
      const std::vector<LabelGradient> labels = {{3, 0, 1.0f}, {3, 1, -1.0f}, {200, 2, 0.5f}};
      backward([&](int64_t first, int64_t last, const TileGradients& out) {
        const auto begin = std::lower_bound(labels.begin(), labels.end(), first,
                                            [](const LabelGradient& label, int64_t l) { return label.class_id < l; });
        reduce_gradient(rows, reduction, tile.data(), width, reduced.data(), scale.data(),
                        labels.data() + (begin - labels.begin()), labels.data() + labels.size(), first, last, out);
      });
    }
  }
  return bytes;
}

Bytes SparseCandidates(const Threads& threads) {
  constexpr int64_t kClasses = 50, kFanIn = 5, kInputs = 40, kQueries = 30, kSamples = 7;
  Random random(2);
  const auto weights = random.Floats(kClasses * kFanIn), query = random.Floats(kQueries * kInputs);
  const auto indices = random.Integers(kClasses * kFanIn, 0, kInputs);
  const auto ids = random.Integers(kQueries * kSamples, -1, kClasses);
  const auto upstream = random.Floats(kQueries * kSamples);
  const SparseRows rows{weights.data(), indices.data(), nullptr, kFanIn, kInputs, /*group_size=*/1};
  const CandidateSlots slots{ids.data(), kQueries * kSamples, kSamples, query.data()};
  std::vector<float> scores(slots.count), of_query(query.size());
  threads.ForEach(kQueries, [&](int64_t first, int64_t last) {
    SparseScores(rows, slots, first, last, scores.data());
  });
  threads.ForEach(kQueries, [&](int64_t first, int64_t last) {
    SparseQueryGradients(rows, slots, upstream.data(), first, last, of_query.data());
  });
  const auto sorted = SortedByClass(slots, kClasses);
  const auto starts = GroupStarts(sorted);
  const int64_t touched = starts.size() - 1;
  std::vector<float> of_rows(touched * kFanIn);
  std::vector<int32_t> classes(touched);
  threads.ForEach(touched, [&](int64_t first, int64_t last) {
    SparseRowGradients(rows, slots, upstream.data(), sorted, starts, first, last, of_rows.data(), classes.data());
  });
  return Bytes().Add(scores).Add(of_query).Add(of_rows).Add(classes);
}

Bytes CandidateScores(const Threads& threads) {
  constexpr int64_t kClasses = 60, kWidth = 19, kQueries = 40, kSamples = 9;
  Random random(3);
  const auto table = random.Floats(kClasses * kWidth), query = random.Floats(kQueries * kWidth);
  const auto upstream = random.Floats(kQueries * kSamples);
  const auto ids = random.Integers(kQueries * kSamples, -1, kClasses);
  Bytes bytes;
  for (bool normalize : {false, true}) {
    const CandidateProblem p{Table(table.data(), kWidth), query.data(), ids.data(), kQueries * kSamples,
                             kSamples, kWidth, kClasses, normalize};
    std::vector<float> scores(p.num_slots), of_query(query.size());
    threads.ForEach(kQueries, [&](int64_t first, int64_t last) { ScoreCandidates(p, first, last, scores.data()); });
    threads.ForEach(kQueries, [&](int64_t first, int64_t last) {
      CandidateQueryGradients(p, first, last, upstream.data(), of_query.data());
    });
    const ClassSlots groups = GroupByClass(p);
    std::vector<float> of_rows(groups.NumClasses() * kWidth);
    threads.ForEach(groups.NumClasses(), [&](int64_t first, int64_t last) {
      CandidateRowGradients(p, groups, first, last, upstream.data(), of_rows.data());
    });
    bytes.Add(scores).Add(of_query).Add(of_rows);
  }
  return bytes;
}

Bytes CandidateLogSumExp(const Threads& threads) {
  constexpr int64_t kClasses = 50, kWidth = 19, kQueries = 23, kLabels = 2, kSamples = 37;
  Random random(6);
  const auto table = random.Floats(kClasses * kWidth), query = random.Floats(kQueries * kWidth);
  const auto offsets = random.Floats(kQueries * (kSamples - kLabels));
  const auto of_labels = random.Floats(kQueries * kLabels), of_sums = random.Floats(kQueries);
  const auto ids = random.Integers(kQueries * kSamples, -1, kClasses);
  Bytes bytes;
  for (bool normalize : {false, true}) {
    const CandidateProblem p{Table(table.data(), kWidth), query.data(), ids.data(), kQueries * kSamples,
                             kSamples, kWidth, kClasses, normalize};
    std::vector<float> scores(of_labels.size()), vectors(of_labels.size() * kWidth), sums(kQueries);
    std::vector<float> shares(offsets.size()), mean(query.size());
    const LogSumExp out{kLabels,     offsets.data(), scores.data(), vectors.data(),
                        sums.data(), shares.data(),  mean.data()};
    threads.ForEach(kQueries, [&](int64_t first, int64_t last) { FoldCandidates(p, out, first, last); });
    std::vector<float> of_query(query.size()), of_scores(p.num_slots);
    const LogSumExpGradients given{kLabels,     vectors.data(),   shares.data(),
                                   mean.data(), of_labels.data(), of_sums.data()};
    threads.ForEach(kQueries, [&](int64_t first, int64_t last) {
      UnfoldCandidates(p, given, first, last, of_query.data(), of_scores.data());
    });
    bytes.Add(scores).Add(vectors).Add(sums).Add(shares).Add(mean).Add(of_query).Add(of_scores);
  }
  return bytes;
}

Bytes RowUpdates(const Threads& threads) {
  constexpr int64_t kRows = 40, kWidth = 21, kGradients = 300;
  Random random(4);
  const auto values = random.Floats(kGradients * kWidth);
  const auto rows = random.Integers(kGradients, 0, kRows);
  std::vector<RowPosition> sorted;
  for (int64_t i = 0; i < kGradients; ++i) sorted.push_back(Pack(rows[i] * rows[i] / kRows, i));  // some rows often
  SortByRow(kRows, &sorted);
  std::vector<float> table = random.Floats(kRows * kWidth), slot(table.size(), 0.1f), velocity(table.size(), 0.2f);
  const auto multipliers = random.Floats(kGradients);
  const auto update = [&](const auto& rule) {
    for (const float* given : {static_cast<const float*>(nullptr), multipliers.data()}) {
      threads.ForEach(kGradients, [&](int64_t begin, int64_t end) {
        UpdateRows({sorted.data(), kGradients, values.data(), kWidth, given, /*share=*/5}, begin, end, rule);
      });
    }
  };
  const auto update_all = [&](const auto& rows) {
    using Rows = std::decay_t<decltype(rows)>;
    update(LazyAdamRule<Rows>(rows, {slot.data(), velocity.data()}, {0.1, 0.9, 0.99, 1e-7}, kWidth));
    update(RowSgdRule<Rows>(rows, {}, {0.1}, kWidth));
    update(RowwiseAdagradRule<Rows>(rows, {slot.data()}, {0.1, 1e-7}, kWidth));
  };
  update_all(FloatRows{table.data(), kWidth});
  std::vector<Bfloat16> halves(table.size());
  for (size_t i = 0; i < table.size(); ++i) halves[i] = RoundStochastically(table[i], 0);
  update_all(Bfloat16Rows(halves.data(), kWidth, {1, 2}));
  return Bytes().Add(table).Add(halves).Add(slot).Add(velocity);
}

Bytes DrawByBlocks(const Threads& threads) {
  constexpr int64_t kClasses = 210, kWidth = 7, kBlock = 16, kQueries = 50, kSamples = 20;
  Random random(5);
  const auto rows = random.Floats(kClasses * kWidth), query = random.Floats(kQueries * kWidth);
  const Blocks blocks{rows.data(), kClasses, kWidth, kBlock, {1.0f, 0.0f, 1.0f, 0.5f}};
  const auto mass = random.Floats(kQueries * blocks.Count());
  const Seed seed{7, 8};
  std::vector<uint64_t> block_bits(kQueries * kSamples), bits(block_bits.size());
  std::vector<int32_t> ids(bits.size());
  std::vector<float> log_prob(bits.size());
  Slots slots{query.data(), kSamples, {}, bits.data(), ids.data(), log_prob.data()};
  slots.sorted.resize(bits.size());
  threads.ForEach(kQueries, [&](int64_t first, int64_t last) {
    BlockDistribution distribution(blocks);
    for (int64_t n = first; n < last; ++n) {
      distribution.SetMass(&mass[n * blocks.Count()]);
      FillBits(seed, n, kSamples, &block_bits[n * kSamples], &bits[n * kSamples]);
      for (int64_t slot = n * kSamples; slot < (n + 1) * kSamples; ++slot) {
        const int64_t block = distribution.Draw(block_bits[slot]);
        slots.sorted[slot] = Pack(block, slot);
        log_prob[slot] = distribution.LogProb(block);
      }
    }
  });
  SortByRow(blocks.Count(), &slots.sorted);
  const std::vector<Tile> tiles = MakeTiles(slots.sorted, kSamples);
  threads.ForEach(tiles.size(), [&](int64_t first, int64_t last) {
    VisitTiles(blocks, tiles.data() + first, last - first, &slots);
  });
  return Bytes().Add(ids).Add(log_prob);
}

Bytes HashTablesAndDraws(const Threads& threads) {
  constexpr int64_t kClasses = 200, kTables = 19, kBuckets = 8, kQueries = 40, kParts = 2, kCandidates = 60;
  Random random(6);
  const auto codes = random.Integers<uint16_t>(kClasses * kTables, 0, kBuckets);
  std::vector<int32_t> offsets(kTables * (kBuckets + 1)), members(kTables * kClasses);
  threads.ForEach((kTables + kTablesAPass - 1) / kTablesAPass, [&](int64_t first, int64_t last) {
    for (int64_t pass = first; pass < last; ++pass) {
      SortTables({codes.data(), kClasses, kTables, kBuckets}, pass * kTablesAPass,
                 std::min((pass + 1) * kTablesAPass, kTables), offsets.data(), members.data());
    }
  });
  const HashTables tables{kClasses, kTables, kBuckets, codes.data(), offsets.data(), members.data()};
  const auto query = random.Integers(kQueries * kParts * kTables, 0, kBuckets);
  Bytes bytes;
  for (int64_t bucket_slots : {0, 2}) {
    std::vector<int32_t> ids(kQueries * kCandidates);
    std::vector<float> counts(ids.size()), asked(ids.size());
    threads.ForEach(kQueries, [&](int64_t first, int64_t last) {
      QueryBuckets buckets(tables, {kCandidates, 0.2, bucket_slots});
      for (int64_t n = first; n < last; ++n) {
        const int64_t at = n * kCandidates;
        buckets.SetQuery(&query[n * kParts * kTables], kParts);
        buckets.Draw({7, 8}, n, &ids[at], &counts[at]);
        const std::vector<int32_t> every(kCandidates, static_cast<int32_t>(n));
        buckets.LogCounts(every.data(), kCandidates, &asked[at]);
      }
    });
    bytes.Add(ids).Add(counts).Add(asked);
  }
  return bytes.Add(offsets).Add(members);
}

Bytes Midx(const Threads& threads) {
  constexpr int64_t kCodewords = 5, kClasses = 90, kQueries = 40, kSamples = 33;
  Random random(7);
  auto cells = random.Integers(kClasses, 0, kCodewords * kCodewords);
  std::sort(cells.begin(), cells.end());
  std::vector<int32_t> offsets(kCodewords * kCodewords + 1);
  std::vector<float> mass(kCodewords * kCodewords);
  std::vector<Slot> slots(kClasses);
  for (int32_t i = 0; i < kClasses; ++i) {
    slots[i] = {1.0f, i, i, 1.0f};
    ++offsets[cells[i] + 1];
    ++mass[cells[i]];
  }
  for (size_t cell = 1; cell < offsets.size(); ++cell) offsets[cell] += offsets[cell - 1];
  const auto u = random.Floats(kQueries * kCodewords), v = random.Floats(kQueries * kCodewords);
  const Cells index(kCodewords, kClasses, mass.data(), offsets.data(), slots.data());
  std::vector<int32_t> ids(kQueries * kSamples);
  std::vector<float> log_prob(ids.size()), log_partition(kQueries);
  threads.ForEach(kQueries, [&](int64_t first, int64_t last) {
    DrawClasses(index, {u.data(), v.data(), {7, 8}, kSamples}, first, last, ids.data(), log_prob.data(),
                log_partition.data());
  });
  return Bytes().Add(ids).Add(log_prob).Add(log_partition);
}

Hashes MachHashes(int64_t num_classes, int64_t num_buckets, uint64_t prime, int64_t count) {
  Hashes hashes{{}, prime, num_buckets, num_classes};
  for (int64_t r = 0; r < count; ++r) {
    const uint64_t multiplier = 17 + 5 * r;
    uint64_t inverse = 1;
    for (uint64_t i = 0; i < prime - 2; ++i) inverse = inverse * multiplier % prime;
    hashes.functions.push_back({multiplier, 3 * static_cast<uint64_t>(r), inverse});
  }
  return hashes;
}

Bytes Mach(const Threads& threads) {
  constexpr int64_t kClasses = 9000, kBuckets = 300, kRepetitions = 4, kQueries = 19, kBest = 6, kPiece = 1000;
  const Hashes hashes = MachHashes(kClasses, kBuckets, 9001, kRepetitions);
  Random random(8);
  auto tables = random.Floats(kQueries * kRepetitions * kBuckets);
  for (float& value : tables) value = std::exp(3.0f * value);
  const auto exclude = random.Integers(kQueries * 2, -1, kClasses);
  Bytes bytes;
  const auto write = [&](std::vector<Best>* best) {
    std::vector<float> scores(best->size() * kBest);
    std::vector<int32_t> ids(scores.size());
    for (size_t n = 0; n < best->size(); ++n) (*best)[n].Write(&scores[n * kBest], &ids[n * kBest]);
    bytes.Add(scores).Add(ids);
  };
  for (Decoder decoder : {Decoder::kMean, Decoder::kMin, Decoder::kMedian}) {
    const Queries queries{tables.data(), kQueries, exclude.data(), 2, decoder};
    std::vector<Best> probed(kQueries, Best(kBest)), pruned(kQueries, Best(kBest)), all(kQueries, Best(kBest));
    threads.ForEach(kQueries, [&](int64_t first, int64_t last) {
      Prober prober(hashes, queries, kBest, 10);
      for (int64_t n = first; n < last; ++n) prober.Rank(n, &probed[n]);
    });
    threads.ForEach(kQueries, [&](int64_t first, int64_t last) {
      Pruner pruner(hashes, queries, kBest);
      for (int64_t n = first; n < last; ++n) {
        Best own(kBest);
        if (pruner.Rank(n, &own)) pruned[n] = own;
      }
    });
    const int64_t num_pieces = (kClasses + kPiece - 1) / kPiece;
    const std::vector<std::vector<int64_t>> groups = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {16}, {17}};
    for (const std::vector<int64_t>& tile : groups) {
      std::vector<TileRow> laid_out(kRepetitions * kBuckets);
      threads.ForEach(kRepetitions, [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) LayOutTile(hashes, queries, tile, r, &laid_out[r * kBuckets]);
      });
      std::mutex mutex;
      threads.ForEach(num_pieces, [&](int64_t first, int64_t last) {
        const int64_t stop = std::min(last * kPiece, kClasses);
        std::vector<Best> own(tile.size(), Best(kBest));
        if (tile.size() > 1) {
          RankClassesOfTile(hashes, queries, tile, laid_out.data(), first * kPiece, stop, own.data());
        } else {
          RankClasses(hashes, queries, tile[0], first * kPiece, stop, own.data());
        }
        const std::lock_guard<std::mutex> lock(mutex);
        for (size_t j = 0; j < tile.size(); ++j) all[tile[j]].Merge(own[j]);
      });
    }
    write(&probed);
    write(&pruned);
    write(&all);
  }
  return bytes;
}

// The best and the gradients of all classes, a shard a thread. Shards tell each other what they found.
Bytes DenseScan(const Threads& threads) {
  using namespace dense_scan;
  constexpr int64_t kClasses = 40 * kTileClasses - 5, kDim = 16, kQueries = 48, kShards = 8, kBest = 3;
  Random random(9);
  const auto rows = random.Floats(kClasses * kDim), query = random.Floats(kQueries * kDim);
  const auto upstream = random.Floats(kQueries);
  const std::vector<float> reduced(kQueries, 3.0f);
  Tiles privates(kShards * kQueries * kDim);
  const AlignedVector<float> padded(query.begin(), query.end());
  const std::vector<std::vector<int32_t>> excluded;
  Bounds bounds(kQueries);
  std::vector<dense_scan::Best> best(kShards, dense_scan::Best(kQueries, kBest, excluded, &bounds));
  std::vector<float> of_rows(kClasses * kDim), of_bias(kClasses);
  std::vector<float> maxima(kShards * kQueries, std::numeric_limits<float>::lowest());
  std::vector<double> sums(kShards * kQueries);
  std::fill(privates.data(), privates.data() + kShards * kQueries * kDim, 0.0f);
  const ScanQueries queries(query.data(), kQueries, kDim, /*looks_first=*/false);
  threads.ForEach(kShards, [&](int64_t begin, int64_t end) {
    for (int64_t shard = begin; shard < end; ++shard) {
      const Range range = Shard(kClasses, kShards, shard);
      ScanShard({Table(rows.data(), kDim), nullptr, kDim, true}, Reduction::kLogSumExp, queries, range,
                {&sums[shard * kQueries], &maxima[shard * kQueries], &best[shard], nullptr, 0});
      TileGradient tile(Reduction::kLogSumExp, true, kDim);
      for (int64_t start = range.first; start < range.last; start += kTileClasses) {
        tile.Start(&rows[start * kDim], nullptr, std::min<int64_t>(kTileClasses, range.last - start));
        tile.Add({kQueries, queries.blocks.data(), padded.data(), reduced.data(), upstream.data(),
                  privates.data() + shard * kQueries * kDim});
        tile.Finish(false, &of_rows[start * kDim], &of_bias[start]);
      }
    }
  });
  Bytes bytes;
  for (int64_t q = 0; q < kQueries; ++q) {  // what a shard keeps beyond these depends on what it knew of the others
    std::vector<Ranked> all;
    for (const auto& part : best) all.insert(all.end(), part.found(q).begin(), part.found(q).end());
    std::partial_sort(all.begin(), all.begin() + kBest, all.end());
    for (int64_t i = 0; i < kBest; ++i) bytes.Add(std::vector{all[i].score}).Add(std::vector{all[i].id});
  }
  const std::vector<float> of_query(privates.data(), privates.data() + kShards * kQueries * kDim);
  return bytes.Add(of_rows).Add(of_query).Add(maxima).Add(sums);
}

int Main() {
  const std::vector<std::pair<const char*, std::function<Bytes(const Threads&)>>> kernels = {
      {"sparse_head, all classes",
       SparseHead<1, 32, TileLogits, TileLogitsGradient, TileReduce, TileReduceGradient>},
      {"sparse_head, groups",
       SparseHead<16, kMaxTileWidth, GroupLogits, GroupLogitsGradient, GroupReduce, GroupReduceGradient>},
      {"sparse_head, candidates", SparseCandidates},
      {"candidate_scores", CandidateScores},
      {"candidate_log_sum_exp", CandidateLogSumExp},
      {"row_updates", RowUpdates},
      {"block_draw", DrawByBlocks},
      {"hash_tables, lsh_draw", HashTablesAndDraws},
      {"midx_draw", Midx},
      {"mach_decode", Mach},
      {"dense_scan", DenseScan}};
  int status = 0;
  for (const auto& [name, run] : kernels) {
    const Bytes alone = run(Threads(1));
    bool agree = true;
    for (int count : {2, 3, 8}) agree &= !(run(Threads(count)) != alone);
    std::printf("%s: %s\n", name, agree ? "the same on any number of threads" : "FAILED, threads change the result");
    if (!agree) status = 1;
  }
  return status;
}

}  // namespace
}  // namespace tfxc

int main() { return tfxc::Main(); }
