// The ops that go over all classes of a dense head: tiles of logits are folded while they are in the cache, and
// computed again for the gradient, so that no tensor of all logits is ever written.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "common/huge_pages.h"
#include "common/kernel.h"
#include "common/limits.h"
#include "common/simd.h"
#include "dense_scan/best.h"
#include "dense_scan/first_look.h"
#include "dense_scan/folds.h"
#include "dense_scan/products.h"
#include "dense_scan/tile_gradient.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfxc {
namespace {

using namespace dense_scan;
using tensorflow::DT_FLOAT;

// Shards of classes are the same for any number of threads, so that sums over classes come out alike.
constexpr int64_t kMaxShards = 32;
// What all shards together may keep of their own: gradients of the queries, or candidates for the best.
constexpr int64_t kPrivateBytes = 32 << 20;
constexpr int64_t kTilesBetweenBounds = 16;
constexpr int64_t kMaxQueries = 4080;  // of one pass: a whole number of blocks

struct Problem {
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;
  // Keeps writers away while rows are read in place.
  std::unique_ptr<tensorflow::tf_shared_lock> lock;
  const float *query, *rows, *bias;  // bias may be null
  int64_t num_queries, dim, num_classes, num_rows;
};

struct Range {
  int64_t first, last;
};

int64_t NumTiles(int64_t num_classes) { return (num_classes + kTileClasses - 1) / kTileClasses; }

// Whole tiles, but for the last one.
Range Shard(int64_t num_classes, int64_t num_shards, int64_t shard) {
  const auto end = [&](int64_t shards) {
    return std::min(NumTiles(num_classes) * shards / num_shards * kTileClasses, num_classes);
  };
  return {end(shard), end(shard + 1)};
}

// Some queries as blocks [D, width], padded with 0.
std::vector<float> Blocks(const float* query, int64_t count, int64_t dim, int width) {
  const int64_t padded = (count + width - 1) / width * width;
  std::vector<float> blocks(padded * dim, 0.0f);
  for (int64_t q = 0; q < count; ++q) {
    float* block = blocks.data() + q / width * width * dim + q % width;
    for (int64_t d = 0; d < dim; ++d) block[d * width] = query[q * dim + d];
  }
  return blocks;
}

class DenseScanBase : public tensorflow::OpKernel {
 public:
  explicit DenseScanBase(OpKernelConstruction* context) : OpKernel(context) {
    std::string name;
    OP_REQUIRES_OK(context, context->GetAttr("reduction", &name));
    OP_REQUIRES_OK(context, context->GetAttr("num_classes", &num_classes_));
    OP_REQUIRES_OK(context, context->GetAttr("row_offset", &row_offset_));
    OP_REQUIRES_OK(context, context->GetAttr("normalize", &normalize_));
    reduction_ = name == "squared_hinge" ? DenseReduction::kSquaredHinge
                 : name == "softplus"    ? DenseReduction::kSoftplus
                 : name == "logsumexp"   ? DenseReduction::kLogSumExp
                                         : DenseReduction::kNone;
  }

 protected:
  absl::Status Read(OpKernelContext* context, Problem* p) const {
    TF_RETURN_IF_ERROR(LookupResource(context, tensorflow::HandleFromInput(context, 1), &p->variable));
    p->lock = std::make_unique<tensorflow::tf_shared_lock>(*p->variable->mu());
    const Tensor &query = context->input(0), &bias = context->input(2), &table = *p->variable->tensor();
    if (!p->variable->is_initialized || table.dtype() != DT_FLOAT || table.dims() != 2 || query.dims() != 2 ||
        table.dim_size(1) != query.dim_size(1) || bias.dims() != 1 ||
        (bias.dim_size(0) != 0 && bias.dim_size(0) != num_classes_)) {
      return InvalidArgument("A scan of ", num_classes_, " classes needs a float32 table [L, D], query [N, D] and bias ",
                             "[L] or [0], but got ", p->variable->DebugString(), ", ", query.shape().DebugString(),
                             " and ", bias.shape().DebugString(), ".");
    }
    if (num_classes_ > kMostClasses || row_offset_ > table.dim_size(0) - num_classes_) {
      return InvalidArgument("There are ", num_classes_, " classes from row ", row_offset_, " on, but the table has ",
                             table.dim_size(0), " rows, and a scan takes at most ", kMostClasses, " classes.");
    }
    p->dim = query.dim_size(1);
    p->num_queries = query.dim_size(0);
    p->num_classes = num_classes_;
    p->num_rows = table.dim_size(0);
    p->query = Data<float>(query);
    p->rows = Data<float>(table) + row_offset_ * p->dim;
    p->bias = bias.dim_size(0) == 0 ? nullptr : Data<float>(bias);
    return absl::OkStatus();
  }

  // Calls work(shard, its classes) on TensorFlow's threads.
  template <typename Work>
  void ForEachShard(OpKernelContext* context, const Problem& p, int64_t num_shards, int64_t num_queries,
                    const Work& work) const {
    const int64_t cost = p.num_classes / num_shards * p.dim * num_queries / 16;
    ForEach(context, num_shards, cost, [&](int64_t first, int64_t last) {
      for (int64_t shard = first; shard < last; ++shard) work(shard, Shard(p.num_classes, num_shards, shard));
    });
  }

  DenseReduction reduction_;
  int64_t num_classes_, row_offset_;
  bool normalize_;
};

class DenseScanOp : public DenseScanBase {
 public:
  explicit DenseScanOp(OpKernelConstruction* context) : DenseScanBase(context) {
    OP_REQUIRES_OK(context, context->GetAttr("with_tile_maxima", &with_tile_maxima_));
    // Without a reduction, logits may have been looked at in bfloat16 only.
    OP_REQUIRES(context, !with_tile_maxima_ || reduction_ != DenseReduction::kNone,
                InvalidArgument("with_tile_maxima needs a reduction, but it is 'none'."));
  }

  void Compute(OpKernelContext* context) override {
    Problem p;
    OP_REQUIRES_OK(context, Read(context, &p));
    const Tensor &given = context->input(3), &exclude = context->input(4);
    OP_REQUIRES(context, given.dims() == 0, InvalidArgument("k must be a scalar."));
    const int64_t k = *Data<int32_t>(given);
    OP_REQUIRES(context, k >= 0 && k <= p.num_classes,
                InvalidArgument("k must be in [0, ", p.num_classes, "], the number of classes, but is ", k, "."));
    OP_REQUIRES(context, exclude.dims() == 2 && (exclude.dim_size(0) == p.num_queries || exclude.dim_size(1) == 0),
                InvalidArgument("exclude must be [N, X] for ", p.num_queries, " queries, but is ",
                                exclude.shape().DebugString(), "."));
    Tensor *reduced, *scores, *ids, *tile_maxima;
    const TensorShape best({p.num_queries, k});
    const TensorShape of_tiles = with_tile_maxima_ ? TensorShape({NumTiles(p.num_classes), p.num_queries})
                                                   : TensorShape({0, 0});
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({p.num_queries}), &reduced));
    OP_REQUIRES_OK(context, context->allocate_output(1, best, &scores));
    OP_REQUIRES_OK(context, context->allocate_output(2, best, &ids));
    OP_REQUIRES_OK(context, context->allocate_output(3, of_tiles, &tile_maxima));
    const int64_t room = kPrivateBytes / (2 * std::max<int64_t>(k, 1) * sizeof(Ranked));
    const int64_t chunk = std::clamp<int64_t>(room / 4, kBlockWidths[1], kMaxQueries);
    for (int64_t n = 0; n < p.num_queries; n += chunk) {
      Pass(context, p, n, std::min(chunk, p.num_queries - n), k, room);
    }
  }

 private:
  void Pass(OpKernelContext* context, const Problem& p, int64_t n, int64_t count, int64_t k, int64_t room) const {
    const int width = BlockWidth(count);
    const std::vector<float> blocks = Blocks(p.query + n * p.dim, count, p.dim, width);
    const int64_t num_blocks = (count + width - 1) / width;
    const std::vector<std::vector<int32_t>> excluded = Excluded(context->input(4), n, count);
    // A sum over the classes needs all logits as they are.
    const bool looks_first = reduction_ == DenseReduction::kNone && width == kBlockWidths[1] && HasFirstLook();
    const RoughQueries rough = looks_first ? RoughQueries(p.query + n * p.dim, count, p.dim) : RoughQueries();
    const int64_t num_shards = std::clamp<int64_t>(room / count, 2, kMaxShards);
    std::vector<double> sums(num_shards * num_blocks * width, 0.0);
    std::vector<float> maxima(sums.size(), std::numeric_limits<float>::lowest());
    Bounds bounds(count);
    std::vector<Best> best(num_shards, Best(count, k, excluded, &bounds));
    float* tile_maxima = with_tile_maxima_ ? Data<float>(context->mutable_output(3)) + n : nullptr;
    ForEachShard(context, p, num_shards, count, [&](int64_t shard, Range classes) {
      alignas(64) float logits[kTileClasses * kBlockWidths[1]];
      float scales[kTileClasses];
      RoughTile tile(looks_first ? p.dim : 0);
      for (int64_t start = classes.first; start < classes.last; start += kTileClasses) {
        if (k > 0 && (start - classes.first) / kTileClasses % kTilesBetweenBounds == 0) best[shard].Update(0, count);
        const int64_t size = std::min<int64_t>(kTileClasses, classes.last - start);
        const float* rows = p.rows + start * p.dim;
        if (normalize_) InverseNorms(rows, size, p.dim, scales);
        const float* bias = p.bias == nullptr ? nullptr : p.bias + start;
        const float* own_scales = normalize_ ? scales : nullptr;
        if (looks_first) tile.Set(rows, own_scales, bias, size);
        for (int64_t block = 0; block < num_blocks; ++block) {
          const int64_t first = block * width, at = shard * num_blocks * width + first;
          // The logits of some classes of the tile, in float32.
          const auto compute = [&](int64_t row, int64_t num_rows) {
            Logits(rows + row * p.dim, p.dim, num_rows, &blocks[first * p.dim], width, p.dim, logits);
            Follow(own_scales, bias, row, num_rows, width, logits);
          };
          const auto rank = [&](int64_t row, int64_t num_rows) {
            compute(row, num_rows);
            const int32_t id = static_cast<int32_t>(start + row);
            AddToBest(logits, num_rows, width, count - first, first, id, &best[shard]);
          };
          float thresholds[kBlockWidths[1]];
          if (looks_first && tile.Lower(rough.norms(block), best[shard].thresholds() + first, thresholds)) {
            int32_t survivors[kTileClasses];
            tile.Logits(rough.block(block), logits);
            Follow(own_scales, bias, 0, size, width, logits);
            const int num_survivors = RowsAbove(logits, size, thresholds, survivors);
            for (int i = 0; i < num_survivors; ++i) rank(survivors[i], 1);
          } else if (k > 0) {
            rank(0, size);
          } else {
            compute(0, size);
          }
          if (reduction_ != DenseReduction::kNone) Fold(reduction_, logits, size, width, &sums[at], &maxima[at]);
          if (tile_maxima != nullptr) {
            float largest[kBlockWidths[1]];
            Largest(logits, size, width, largest);
            std::copy_n(largest, std::min<int64_t>(width, count - first),
                        tile_maxima + start / kTileClasses * p.num_queries + first);
          }
        }
      }
    });
    float* reduced = Data<float>(context->mutable_output(0)) + n;
    for (int64_t q = 0; q < count; ++q) reduced[q] = Total(&sums[q], &maxima[q], num_shards, num_blocks * width);
    if (k > 0) {
      float* scores = Data<float>(context->mutable_output(1)) + n * k;
      int32_t* ids = Data<int32_t>(context->mutable_output(2)) + n * k;
      ForEach(context, count, 200 * k, [&](int64_t first, int64_t last) {
        for (int64_t q = first; q < last; ++q) Merge(best, q, k, scores + q * k, ids + q * k);
      });
    }
  }

  // What follows the products of some rows of a tile.
  static void Follow(const float* scales, const float* bias, int64_t row, int64_t num_rows, int width, float* logits) {
    if (scales == nullptr && bias == nullptr) return;
    ScaleAndShift(scales == nullptr ? nullptr : scales + row, bias == nullptr ? nullptr : bias + row, num_rows, width,
                  logits);
  }

  static std::vector<std::vector<int32_t>> Excluded(const Tensor& exclude, int64_t n, int64_t count) {
    const int64_t size = exclude.dim_size(1);
    std::vector<std::vector<int32_t>> sorted(size == 0 ? 0 : count);
    for (size_t q = 0; q < sorted.size(); ++q) {
      const int32_t* own = Data<int32_t>(exclude) + (n + q) * size;
      sorted[q].assign(own, own + size);
      std::sort(sorted[q].begin(), sorted[q].end());
    }
    return sorted;
  }

  float Total(const double* sums, const float* maxima, int64_t num_shards, int64_t stride) const {
    double total = 0.0, largest = -INFINITY;
    if (reduction_ != DenseReduction::kLogSumExp) {
      for (int64_t shard = 0; shard < num_shards; ++shard) total += sums[shard * stride];
      return total;
    }
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      if (std::isnan(sums[shard * stride])) return sums[shard * stride];
      largest = std::max<double>(largest, maxima[shard * stride]);
    }
    if (largest <= std::numeric_limits<float>::lowest()) return -INFINITY;  // -inf all
    for (int64_t shard = 0; shard < num_shards; ++shard) {
      if (sums[shard * stride] != 0.0) total += sums[shard * stride] * std::exp(maxima[shard * stride] - largest);
    }
    return largest + std::log(total);
  }

  static void Merge(const std::vector<Best>& best, int64_t query, int64_t k, float* scores, int32_t* ids) {
    std::vector<Ranked> all;
    for (const Best& part : best) all.insert(all.end(), part.found(query).begin(), part.found(query).end());
    const int64_t num_found = std::min<int64_t>(k, all.size());
    std::partial_sort(all.begin(), all.begin() + num_found, all.end());
    for (int64_t i = 0; i < k; ++i) {
      scores[i] = i < num_found ? all[i].score : -INFINITY;
      ids[i] = i < num_found ? all[i].id : -1;
    }
  }

  bool with_tile_maxima_;
};

// The queries of a pass backward, and a place of its own for what each shard of the classes gives to them.
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
        reduced_(size_, 0.0f),
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

  // Adds up what the shards gave to each query, in their order, in [count, D].
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
  std::vector<float> rows_, reduced_, upstream_, gradients_;
};

// Backward, the inputs of both ops begin alike, and a query's gradient is their first output.
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

  // Calls work(first query, pass) for the passes over the queries, and writes their gradients.
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
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({p.num_rows, p.dim}), &table_gradient));
    OP_REQUIRES_OK(context, context->allocate_output(2, context->input(2).shape(), &bias_gradient));
    float *d_rows = Data<float>(table_gradient), *d_bias = Data<float>(bias_gradient);
    // Fresh memory in every step: small pages would take as long to get as to fill.
    MoveToHugePages(d_rows, table_gradient->TotalBytes());
    // Rows of a shared table that are no class; and all, where no query comes to write them.
    const int64_t begin = row_offset_ * p.dim, end = p.num_queries == 0 ? begin : begin + p.num_classes * p.dim;
    std::fill(d_rows, d_rows + begin, 0.0f);
    std::fill(d_rows + end, d_rows + p.num_rows * p.dim, 0.0f);
    if (p.num_queries == 0) std::fill(d_bias, d_bias + bias_gradient->NumElements(), 0.0f);
    ForEachPass(context, p, [&](int64_t n, PassBackward& pass) {
      const int width = BlockWidth(pass.count());
      const std::vector<float> blocks = Blocks(p.query + n * p.dim, pass.count(), p.dim, width);
      ForEachShard(context, p, pass.num_shards(), 3 * pass.count(), [&](int64_t shard, Range classes) {
        TileGradient tile(reduction_, normalize_, p.dim);
        for (int64_t start = classes.first; start < classes.last; start += kTileClasses) {
          const int64_t num_rows = std::min<int64_t>(kTileClasses, classes.last - start);
          tile.Start(p.rows + start * p.dim, BiasFrom(p, start), num_rows);
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

// Queries from here and there, put together into a block.
class GatheredBlock {
 public:
  explicit GatheredBlock(int64_t dim)
      : dim_(dim),
        padded_(PaddedDim(dim)),
        columns_(kWidest * dim),
        rows_(kWidest * padded_),
        gradients_(kWidest * padded_) {}

  // Lets a tile give to some queries of a pass, at most as many as the widest block has.
  void Add(const int32_t* queries, int64_t count, int64_t shard, PassBackward* pass, TileGradient* tile) {
    const int width = BlockWidth(count);
    std::fill(columns_.begin(), columns_.end(), 0.0f);
    std::fill(rows_.begin(), rows_.end(), 0.0f);
    std::fill(gradients_.begin(), gradients_.end(), 0.0f);
    std::fill_n(reduced_, kWidest, 0.0f);
    std::fill_n(upstream_, kWidest, 0.0f);
    for (int64_t i = 0; i < count; ++i) {
      const float* row = pass->row(queries[i]);
      std::copy_n(row, dim_, &rows_[i * padded_]);
      for (int64_t d = 0; d < dim_; ++d) columns_[d * width + i] = row[d];
      reduced_[i] = *pass->reduced(queries[i]);
      upstream_[i] = *pass->upstream(queries[i]);
    }
    tile->Add({width, columns_.data(), rows_.data(), reduced_, upstream_, gradients_.data()});
    for (int64_t i = 0; i < count; ++i) {
      AddScaled(1.0f, &gradients_[i * padded_], pass->gradient(shard, queries[i]), dim_);
    }
  }

 private:
  static constexpr int kWidest = kBlockWidths[1];
  const int64_t dim_, padded_;
  std::vector<float> columns_, rows_, gradients_;
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
    OP_REQUIRES(context, given.shape() == TensorShape({num_tiles, p.num_queries}),
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
    std::vector<float> least(p.num_queries);  // that a tile's largest logit must reach
    for (int64_t q = 0; q < p.num_queries; ++q) least[q] = reduced[q] + log_threshold_;
    const std::vector<int64_t> places = Places(context, p, maxima, least.data());
    const int64_t num_left = places.back(), num_rows = num_left + num_more;
    Tensor *query_gradient, *ids, *row_gradients, *bias_gradients;
    const TensorShape biases({p.bias == nullptr ? 0 : num_rows});
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &query_gradient));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({num_rows}), &ids));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({num_rows, p.dim}), &row_gradients));
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
        GatheredBlock block(p.dim);
        std::vector<int32_t> queries;
        for (int64_t start = classes.first; start < classes.last; start += kTileClasses) {
          const int64_t t = start / kTileClasses;
          if (places[t] == places[t + 1]) continue;
          queries.clear();
          for (int64_t q = 0; q < pass.count(); ++q) {
            if (IsLeft(maxima[t * p.num_queries + n + q], least[n + q])) queries.push_back(static_cast<int32_t>(q));
          }
          tile.Start(p.rows + start * p.dim, BiasFrom(p, start), places[t + 1] - places[t]);
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
  // NaN is.
  static bool IsLeft(float largest, float least) { return !(largest < least); }

  // Where the rows of each tile begin among those of tiles that are left for any query, and how many there are.
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

REGISTER_KERNEL_BUILDER(Name("Tfxc>DenseScan").Device(tensorflow::DEVICE_CPU), DenseScanOp);
REGISTER_KERNEL_BUILDER(Name("Tfxc>DenseScanGrad").Device(tensorflow::DEVICE_CPU), DenseScanGradOp);
REGISTER_KERNEL_BUILDER(Name("Tfxc>DenseScanFilteredGrad").Device(tensorflow::DEVICE_CPU), DenseScanFilteredGradOp);

}  // namespace
}  // namespace tfxc
