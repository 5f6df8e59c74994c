// The division of the work on all classes into tiles of queries and shards of classes: the same for any number of
// threads, so that sums over classes have the same bits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/huge_pages.h"
#include "common/kernel.h"
#include "sparse_head/inputs.h"

namespace tfxc {

using tensorflow::DT_FLOAT;

constexpr int kMaxShards = 32;
// The bytes of all private query gradients: every shard has one, [E, width].
constexpr int64_t kPrivateBytes = 8 << 20;
// The widths of tiles of groups: so many queries share a pass of the weights through the cache. In the backward pass,
// each shard also has a tile of gradients.
constexpr int kForwardWidth = kMaxTileWidth;
constexpr int kBackwardWidth = 96;

struct Range {
  int64_t first, last;
};

struct Shards {
  Range classes;
  int64_t count;
  int64_t group_size;
  Range operator[](int64_t shard) const { return {Bound(shard), Bound(shard + 1)}; }

 private:
  // Whole groups, except for the last shard.
  int64_t Bound(int64_t shard) const {
    if (shard == count) return classes.last;
    const int64_t size = classes.last - classes.first;
    return classes.first + size * shard / count / group_size * group_size;
  }
};

inline Shards ForwardShards(const HeadInputs& inputs, Range classes) {
  return {classes, kMaxShards, inputs.rows.group_size};
}

inline Shards BackwardShards(const HeadInputs& inputs, Range classes, int width) {
  const int64_t bytes = std::max<int64_t>(inputs.num_inputs, 1) * width * sizeof(float);
  return {classes, std::clamp<int64_t>(kPrivateBytes / bytes, 2, kMaxShards), inputs.rows.group_size};
}

// Calls work(shard) for each shard on TensorFlow's threads.
template <typename Work>
void ForEachShard(OpKernelContext* context, const HeadInputs& inputs, const Shards& shards, int width, Work work) {
  const int64_t cost = (shards.classes.last - shards.classes.first) * inputs.rows.fan_in * width / 8 / shards.count;
  ForEach(context, shards.count, cost, [&](int64_t first, int64_t last) {
    for (int64_t shard = first; shard < last; ++shard) work(shard);
  });
}

// The smallest bad class of all shards.
class FirstBad {
 public:
  void Report(int64_t bad) {
    int64_t known = first_.load();
    while (bad < known && !first_.compare_exchange_weak(known, bad)) {
    }
  }
  int64_t get() const { return first_.load(); }

 private:
  std::atomic<int64_t> first_{kNoClass};
};

// Calls work(first query, count, width, tile) for the queries, a tile at a time; groups take up to `widest` at once.
template <typename Work>
absl::Status ForEachTile(OpKernelContext* context, const HeadInputs& inputs, int widest, Work work) {
  if (inputs.num_queries == 0) return absl::OkStatus();
  Tensor tile;
  TF_RETURN_IF_ERROR(context->allocate_temp(
      DT_FLOAT, TensorShape({inputs.num_inputs, TileWidth(inputs.rows, inputs.num_queries, widest)}), &tile));
  // Every weight reads a random row of the tile.
  MoveToHugePages(Data<float>(&tile), tile.TotalBytes());
  const int most = WidestTile(inputs.rows, widest);
  for (int64_t n = 0; n < inputs.num_queries; n += most) {
    const int64_t count = std::min<int64_t>(most, inputs.num_queries - n);
    const int width = TileWidth(inputs.rows, count, widest);
    const float* query = inputs.query + n * inputs.num_inputs;
    // Threads take whole vectors of inputs.
    ForEach(context, (inputs.num_inputs + 15) / 16, 16 * width, [&](int64_t first, int64_t last) {
      FillTile(query, count, inputs.num_inputs, width, 16 * first, std::min(16 * last, inputs.num_inputs),
               Data<float>(&tile));
    });
    TF_RETURN_IF_ERROR(work(n, count, width, static_cast<const float*>(Data<float>(&tile))));
  }
  return absl::OkStatus();
}

// The base of all ops, with the number of classes that share their inputs.
class SparseHeadBase : public tensorflow::OpKernel {
 public:
  explicit SparseHeadBase(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadBounded(context, "group_size", kMostClasses, &group_size_));
  }

 protected:
  int64_t group_size_;
};

// Query, weight and bias gradients; a subclass provides the pass over one shard of classes.
class BackwardOp : public SparseHeadBase {
 public:
  using SparseHeadBase::SparseHeadBase;

 protected:
  // make_pass(first query, count, width, tile) returns the pass of a tile, a function of some classes and of the
  // gradients that it writes.
  template <typename MakePass>
  absl::Status Backward(OpKernelContext* context, const HeadInputs& inputs, Range classes, MakePass make_pass) {
    Tensor *query_gradient, *weight_gradient, *bias_gradient, privates;
    const int64_t fan_in = inputs.rows.fan_in;
    const int width = TileWidth(inputs.rows, inputs.num_queries, kBackwardWidth);
    TF_RETURN_IF_ERROR(context->allocate_output(0, context->input(0).shape(), &query_gradient));
    TF_RETURN_IF_ERROR(Allocate(context, 1, {inputs.num_classes, fan_in}, &weight_gradient));
    TF_RETURN_IF_ERROR(context->allocate_output(2, context->input(3).shape(), &bias_gradient));
    float* d_weights = Data<float>(weight_gradient);
    MoveToHugePages(d_weights, weight_gradient->TotalBytes(), SmallPages::kLeave);
    float* d_bias = inputs.num_biases == 0 ? nullptr : Data<float>(bias_gradient);
    const auto clear = [&](int64_t first, int64_t last) {
      std::fill(d_weights + first * fan_in, d_weights + last * fan_in, 0.0f);
      if (d_bias != nullptr) std::fill(d_bias + first, d_bias + last, 0.0f);
    };
    clear(0, classes.first);
    clear(classes.last, inputs.num_classes);
    if (inputs.num_queries == 0) {
      clear(classes.first, classes.last);
      return absl::OkStatus();
    }
    const Shards shards = BackwardShards(inputs, classes, width);
    TF_RETURN_IF_ERROR(
        context->allocate_temp(DT_FLOAT, TensorShape({shards.count, inputs.num_inputs, width}), &privates));
    MoveToHugePages(Data<float>(&privates), privates.TotalBytes());
    FirstBad bad;
    const auto work = [&](int64_t n, int64_t count, int tile_width, const float* tile) {
      const int64_t size = inputs.num_inputs * tile_width;
      float* own = Data<float>(&privates);
      const auto pass = make_pass(n, count, tile_width, tile);
      ForEachShard(context, inputs, shards, 3 * tile_width, [&](int64_t shard) {
        const Range part = shards[shard];
        float* tile_gradient = own + shard * size;
        std::fill(tile_gradient, tile_gradient + size, 0.0f);
        bad.Report(pass(part, {d_weights + part.first * fan_in, d_bias == nullptr ? nullptr : d_bias + part.first,
                               tile_gradient, n > 0}));
      });
      float* of_query = Data<float>(query_gradient) + n * inputs.num_inputs;
      ForEach(context, (inputs.num_inputs + 15) / 16, 16 * shards.count * tile_width, [&](int64_t first, int64_t last) {
        SumTiles(own, shards.count, inputs.num_inputs, tile_width, count, 16 * first,
                 std::min(16 * last, inputs.num_inputs), of_query);
      });
      return absl::OkStatus();
    };
    TF_RETURN_IF_ERROR(ForEachTile(context, inputs, kBackwardWidth, work));
    return CheckClass(inputs, bad.get());
  }
};

}  // namespace tfxc
