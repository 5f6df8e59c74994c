// The gradients of the op over all classes: it computes every tile of logits again, or skips the tile.
#include <algorithm>
#include <numeric>
#include <vector>

#include "common/huge_pages.h"
#include "common/simd.h"
#include "dense_scan/scan.h"
#include "dense_scan/tile_gradient.h"

namespace tfxc {
namespace {

using namespace dense_scan;

// The queries of a backward pass, and for each shard of the classes a private gradient of them.
class PassBackward {
 public:
  PassBackward(const Problem& p, const float* reduced, const float* upstream, int64_t n, int64_t count)
      : count_(count),
        dim_(p.dim),
        padded_(PaddedDim(p.dim)),
        size_((count + kBlockWidths[1] - 1) / kBlockWidths[1] * kBlockWidths[1]),
        num_shards_(std::clamp<int64_t>(kPrivateBytes / std::max<int64_t>(size_ * padded_ * sizeof(float), 1), 2,
                                        kMaxShards)),
        rows_(size_ * padded_, 0.0f),
        reduced_(size_, kReducedOfPadding),
        upstream_(size_, 0.0f),
        gradients_(num_shards_ * size_ * padded_, 0.0f) {
    for (int64_t q = 0; q < count; ++q) std::copy_n(p.query + (n + q) * dim_, dim_, rows_.data() + q * padded_);
    std::copy_n(reduced + n, count, reduced_.begin());
    std::copy_n(upstream + n, count, upstream_.begin());
  }

  int64_t count() const { return count_; }
  int64_t num_shards() const { return num_shards_; }
  const float* row(int64_t query) const { return rows_.data() + query * padded_; }
  const float* reduced(int64_t query) const { return reduced_.data() + query; }
  const float* upstream(int64_t query) const { return upstream_.data() + query; }
  float* gradient(int64_t shard, int64_t query) { return gradients_.data() + (shard * size_ + query) * padded_; }

  // Adds up the shards' gradients of each query, in the order of the shards, in [count, D].
  void Sum(OpKernelContext* context, float* out) {
    ForEach(context, count_, num_shards_ * padded_, [&](int64_t first, int64_t last) {
      for (int64_t q = first; q < last; ++q) {
        std::copy_n(gradient(0, q), dim_, out + q * dim_);
        for (int64_t shard = 1; shard < num_shards_; ++shard) {
          AddScaled(1.0f, gradient(shard, q), out + q * dim_, dim_);
        }
      }
    });
  }

 private:
  const int64_t count_, dim_, padded_, size_, num_shards_;
  AlignedVector<float> rows_, reduced_, upstream_, gradients_;
};

// The base of both gradient ops: their first inputs are the same, and the queries' gradient is their first output.
class DenseScanBackward : public DenseScanBase {
 public:
  using DenseScanBase::DenseScanBase;

 protected:
  absl::Status ReadAll(OpKernelContext* context, Problem* p) const {
    TF_RETURN_IF_ERROR(Read(context, p));
    const TensorShape per_query({p->num_queries});
    if (context->input(3).shape() != per_query || context->input(4).shape() != per_query) {
      return InvalidArgument("reduced and its gradient must be ", per_query.DebugString(), ", but are ",
                             context->input(3).shape().DebugString(), " and ", context->input(4).shape().DebugString(),
                             ".");
    }
    return absl::OkStatus();
  }

  // Calls work(first query, pass) for each pass over queries, and writes the gradients of the queries.
  template <typename Work>
  static void ForEachPass(OpKernelContext* context, const Problem& p, const Work& work) {
    const float *reduced = Data<float>(context->input(3)), *upstream = Data<float>(context->input(4));
    for (int64_t n = 0; n < p.num_queries; n += kMaxQueries) {
      PassBackward pass(p, reduced, upstream, n, std::min(kMaxQueries, p.num_queries - n));
      work(n, pass);
      pass.Sum(context, Data<float>(context->mutable_output(0)) + n * p.dim);
    }
  }

  static const float* BiasFrom(const Problem& p, int64_t start) { return p.bias == nullptr ? nullptr : p.bias + start; }
};

class DenseScanGradOp : public DenseScanBackward {
 public:
  using DenseScanBackward::DenseScanBackward;

  void Compute(OpKernelContext* context) override {
    Problem p;
    OP_REQUIRES_OK(context, ReadAll(context, &p));
    Tensor *query_gradient, *table_gradient, *bias_gradient;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &query_gradient));
    OP_REQUIRES_OK(context, Allocate(context, 1, {p.num_rows, p.dim}, &table_gradient));
    OP_REQUIRES_OK(context, context->allocate_output(2, context->input(2).shape(), &bias_gradient));
    float *d_rows = Data<float>(table_gradient), *d_bias = Data<float>(bias_gradient);
    // The memory is fresh in every step: to get small pages would take as long as to fill them.
    MoveToHugePages(d_rows, table_gradient->TotalBytes());
    // Rows of a shared table that are no class; and all rows where there is no query to write them.
    const int64_t begin = row_offset_ * p.dim, end = p.num_queries == 0 ? begin : begin + p.num_classes * p.dim;
    std::fill(d_rows, d_rows + begin, 0.0f);
    std::fill(d_rows + end, d_rows + p.num_rows * p.dim, 0.0f);
    if (p.num_queries == 0) std::fill(d_bias, d_bias + bias_gradient->NumElements(), 0.0f);
    ForEachPass(context, p, [&](int64_t n, PassBackward& pass) {
      const int width = BlockWidth(pass.count());
      const AlignedVector<float> blocks = Blocks(p.query + n * p.dim, pass.count(), p.dim, width);
      ForEachShard(context, p, pass.num_shards(), 3 * pass.count(), [&](int64_t shard, Range classes) {
        TileGradient tile(reduction_, normalize_, p.dim);
        std::vector<float> buffer = p.table.Buffer(kTileClasses);
        for (int64_t start = classes.first; start < classes.last; start += kTileClasses) {
          const int64_t num_rows = std::min<int64_t>(kTileClasses, classes.last - start);
          tile.Start(p.table.Read(start, num_rows, &buffer), BiasFrom(p, start), num_rows);
          for (int64_t at = 0; at < pass.count(); at += width) {
            tile.Add({width, blocks.data() + at * p.dim, pass.row(at), pass.reduced(at), pass.upstream(at),
                      pass.gradient(shard, at)});
          }
          tile.Finish(n > 0, d_rows + begin + start * p.dim, d_bias + start);
        }
      });
    });
  }
};

// Scattered queries, gathered into a block.
class GatheredBlock {
 public:
  explicit GatheredBlock(int64_t dim)
      : dim_(dim),
        padded_(PaddedDim(dim)),
        columns_(kWidest * dim),
        rows_(kWidest * padded_),
        gradients_(kWidest * padded_) {}

  // Computes the gradients of a tile with some queries of a pass, at most as many as the widest block has.
  void Add(const int32_t* queries, int64_t count, int64_t shard, PassBackward* pass, TileGradient* tile) {
    const int width = BlockWidth(count);
    std::fill(columns_.begin(), columns_.end(), 0.0f);
    std::fill(rows_.begin(), rows_.end(), 0.0f);
    std::fill(gradients_.begin(), gradients_.end(), 0.0f);
    std::fill_n(reduced_, kWidest, kReducedOfPadding);
    std::fill_n(upstream_, kWidest, 0.0f);
    for (int64_t i = 0; i < count; ++i) {
      const float* row = pass->row(queries[i]);
      std::copy_n(row, dim_, rows_.data() + i * padded_);
      for (int64_t d = 0; d < dim_; ++d) columns_[d * width + i] = row[d];
      reduced_[i] = *pass->reduced(queries[i]);
      upstream_[i] = *pass->upstream(queries[i]);
    }
    tile->Add({width, columns_.data(), rows_.data(), reduced_, upstream_, gradients_.data()});
    for (int64_t i = 0; i < count; ++i) {
      AddScaled(1.0f, gradients_.data() + i * padded_, pass->gradient(shard, queries[i]), dim_);
    }
  }

 private:
  static constexpr int kWidest = kBlockWidths[1];
  const int64_t dim_, padded_;
  AlignedVector<float> columns_, rows_, gradients_;
  float reduced_[kWidest], upstream_[kWidest];
};

class DenseScanFilteredGradOp : public DenseScanBackward {
 public:
  explicit DenseScanFilteredGradOp(OpKernelConstruction* context) : DenseScanBackward(context) {
    OP_REQUIRES_OK(context, context->GetAttr("log_threshold", &log_threshold_));
    OP_REQUIRES(context, log_threshold_ < 0.0f,
                InvalidArgument("log_threshold must be that of a probability below 1, negative, but is ",
                                log_threshold_, "."));
  }

  void Compute(OpKernelContext* context) override {
    Problem p;
    OP_REQUIRES_OK(context, ReadAll(context, &p));
    const Tensor& given = context->input(5);
    const int64_t num_tiles = NumTiles(p.num_classes);
    OP_REQUIRES(context, HasShape(given.shape(), {num_tiles, p.num_queries}),
                InvalidArgument("tile_maxima must be [", num_tiles, ", ", p.num_queries, "], as the scan gives them, ",
                                "but are ", given.shape().DebugString(), "."));
    const Tensor &more_ids = context->input(6), &more_rows = context->input(7), &more_biases = context->input(8);
    const int64_t num_more = more_ids.NumElements();
    const TensorShape of_more({num_more, p.dim}), biases_of_more({p.bias == nullptr ? 0 : num_more});
    OP_REQUIRES(context, more_ids.dims() == 1 && more_rows.shape() == of_more && more_biases.shape() == biases_of_more,
                InvalidArgument("The gradients of ", num_more, " more classes must be ", of_more.DebugString(), " and ",
                                biases_of_more.DebugString(), ", but are ", more_rows.shape().DebugString(), " and ",
                                more_biases.shape().DebugString(), "."));
    const float *maxima = Data<float>(given), *reduced = Data<float>(context->input(3));
    std::vector<float> least(p.num_queries);  // the bound that a tile's largest logit must reach
    for (int64_t q = 0; q < p.num_queries; ++q) least[q] = reduced[q] + log_threshold_;
    const std::vector<int64_t> places = Places(context, p, maxima, least.data());
    const int64_t num_left = places.back(), num_rows = num_left + num_more;
    Tensor *query_gradient, *ids, *row_gradients, *bias_gradients;
    const TensorShape biases({p.bias == nullptr ? 0 : num_rows});
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &query_gradient));
    OP_REQUIRES_OK(context, Allocate(context, 1, {num_rows}, &ids));
    OP_REQUIRES_OK(context, Allocate(context, 2, {num_rows, p.dim}, &row_gradients));
    OP_REQUIRES_OK(context, context->allocate_output(3, biases, &bias_gradients));
    float *d_rows = Data<float>(row_gradients), *d_bias = Data<float>(bias_gradients);
    MoveToHugePages(d_rows, row_gradients->TotalBytes());
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      int32_t* own = Data<int32_t>(ids) + places[tile];
      std::iota(own, own + places[tile + 1] - places[tile], static_cast<int32_t>(tile * kTileClasses));
    }
    std::copy_n(Data<int32_t>(more_ids), num_more, Data<int32_t>(ids) + num_left);
    std::copy_n(Data<float>(more_rows), more_rows.NumElements(), d_rows + num_left * p.dim);
    std::copy_n(Data<float>(more_biases), more_biases.NumElements(), d_bias + num_left);
    ForEachPass(context, p, [&](int64_t n, PassBackward& pass) {
      ForEachShard(context, p, pass.num_shards(), pass.count(), [&](int64_t shard, Range classes) {
        TileGradient tile(reduction_, normalize_, p.dim);
        std::vector<float> buffer = p.table.Buffer(kTileClasses);
        GatheredBlock block(p.dim);
        std::vector<int32_t> queries;
        for (int64_t start = classes.first; start < classes.last; start += kTileClasses) {
          const int64_t t = start / kTileClasses;
          if (places[t] == places[t + 1]) continue;
          queries.clear();
          for (int64_t q = 0; q < pass.count(); ++q) {
            if (IsLeft(maxima[t * p.num_queries + n + q], least[n + q])) queries.push_back(static_cast<int32_t>(q));
          }
          const int64_t num_classes = places[t + 1] - places[t];
          tile.Start(p.table.Read(start, num_classes, &buffer), BiasFrom(p, start), num_classes);
          const int64_t count = queries.size();
          for (int64_t at = 0; at < count; at += kBlockWidths[1]) {
            block.Add(&queries[at], std::min<int64_t>(kBlockWidths[1], count - at), shard, &pass, &tile);
          }
          tile.Finish(n > 0, d_rows + places[t] * p.dim, d_bias + places[t]);
        }
      });
    });
  }

 private:
  // NaN is left.
  static bool IsLeft(float largest, float least) { return !(largest < least); }

  // The first row of each tile among the rows of tiles that are left for any query, and at the end their number.
  static std::vector<int64_t> Places(OpKernelContext* context, const Problem& p, const float* maxima,
                                     const float* least) {
    const int64_t num_tiles = NumTiles(p.num_classes);
    std::vector<int64_t> places(num_tiles + 1, 0);
    ForEach(context, num_tiles, p.num_queries, [&](int64_t first, int64_t last) {
      for (int64_t tile = first; tile < last; ++tile) {
        const float* own = maxima + tile * p.num_queries;
        bool is_left = false;
        for (int64_t q = 0; q < p.num_queries; ++q) is_left |= IsLeft(own[q], least[q]);
        const int64_t start = tile * kTileClasses;
        places[tile + 1] = is_left ? std::min<int64_t>(kTileClasses, p.num_classes - start) : 0;
      }
    });
    std::partial_sum(places.begin(), places.end(), places.begin());
    return places;
  }

  float log_threshold_;
};

REGISTER_KERNEL_BUILDER(Name("Tfxc>DenseScanGrad").Device(tensorflow::DEVICE_CPU), DenseScanGradOp);
REGISTER_KERNEL_BUILDER(Name("Tfxc>DenseScanFilteredGrad").Device(tensorflow::DEVICE_CPU), DenseScanFilteredGradOp);

}  // namespace
}  // namespace tfxc
