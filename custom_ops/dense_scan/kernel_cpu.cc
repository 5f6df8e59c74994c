// The ops that go over all classes of a dense head: tiles of logits are folded while they are in the cache, and
// computed again for the gradient, so that no tensor of all logits is ever written.
#include <algorithm>
#include <cmath>
#include <limits>
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
constexpr int64_t kMaxQueries = 4080;   // of one pass: a whole number of blocks
constexpr float kNormEpsilon = 1e-12f;  // as tf.math.l2_normalize with its square

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

Range Shard(int64_t num_classes, int64_t num_shards, int64_t shard) {
  return {num_classes * shard / num_shards, num_classes * (shard + 1) / num_shards};
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
  using DenseScanBase::DenseScanBase;

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
    Tensor *reduced, *scores, *ids;
    const TensorShape best({p.num_queries, k});
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({p.num_queries}), &reduced));
    OP_REQUIRES_OK(context, context->allocate_output(1, best, &scores));
    OP_REQUIRES_OK(context, context->allocate_output(2, best, &ids));
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
    ForEachShard(context, p, num_shards, count, [&](int64_t shard, Range classes) {
      alignas(64) float logits[kTileClasses * kBlockWidths[1]];
      float scales[kTileClasses];
      RoughTile tile(looks_first ? p.dim : 0);
      for (int64_t start = classes.first; start < classes.last; start += kTileClasses) {
        if (k > 0 && (start - classes.first) / kTileClasses % kTilesBetweenBounds == 0) best[shard].Update(0, count);
        const int64_t size = std::min<int64_t>(kTileClasses, classes.last - start);
        const float* rows = p.rows + start * p.dim;
        if (normalize_) InverseNorms(rows, size, p.dim, kNormEpsilon, scales);
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
};

class DenseScanGradOp : public DenseScanBase {
 public:
  using DenseScanBase::DenseScanBase;

  void Compute(OpKernelContext* context) override {
    Problem p;
    OP_REQUIRES_OK(context, Read(context, &p));
    const TensorShape per_query({p.num_queries});
    OP_REQUIRES(context, context->input(3).shape() == per_query && context->input(4).shape() == per_query,
                InvalidArgument("reduced and its gradient must be ", per_query.DebugString(), ", but are ",
                                context->input(3).shape().DebugString(), " and ",
                                context->input(4).shape().DebugString(), "."));
    Tensor *query_gradient, *table_gradient, *bias_gradient;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &query_gradient));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({p.num_rows, p.dim}), &table_gradient));
    OP_REQUIRES_OK(context, context->allocate_output(2, context->input(2).shape(), &bias_gradient));
    float* d_rows = Data<float>(table_gradient);
    // Fresh memory in every step: small pages would take as long to get as to fill.
    MoveToHugePages(d_rows, table_gradient->TotalBytes());
    // Rows of a shared table that are no class; and all, where no query comes to write them.
    const int64_t begin = row_offset_ * p.dim, end = p.num_queries == 0 ? begin : begin + p.num_classes * p.dim;
    std::fill(d_rows, d_rows + begin, 0.0f);
    std::fill(d_rows + end, d_rows + p.num_rows * p.dim, 0.0f);
    if (p.num_queries == 0) {
      float* d_bias = Data<float>(bias_gradient);
      std::fill(d_bias, d_bias + bias_gradient->NumElements(), 0.0f);
    }
    for (int64_t n = 0; n < p.num_queries; n += kMaxQueries) {
      Pass(context, p, n, std::min(kMaxQueries, p.num_queries - n), d_rows + begin);
    }
  }

 private:
  void Pass(OpKernelContext* context, const Problem& p, int64_t n, int64_t count, float* d_rows) const {
    const int width = BlockWidth(count);
    const int64_t num_blocks = (count + width - 1) / width, padded = num_blocks * width;
    const int64_t dim = (p.dim + kLanes - 1) / kLanes * kLanes;  // of rows that are padded with 0
    const std::vector<float> blocks = Blocks(p.query + n * p.dim, count, p.dim, width);
    std::vector<float> queries(padded * dim, 0.0f), reduced(padded, 0.0f), upstream(padded, 0.0f);
    for (int64_t q = 0; q < count; ++q) std::copy_n(p.query + (n + q) * p.dim, p.dim, &queries[q * dim]);
    std::copy_n(Data<float>(context->input(3)) + n, count, reduced.begin());
    std::copy_n(Data<float>(context->input(4)) + n, count, upstream.begin());
    const int64_t size = padded * dim;
    const int64_t num_shards =
        std::clamp<int64_t>(kPrivateBytes / std::max<int64_t>(size * sizeof(float), 1), 2, kMaxShards);
    std::vector<float> d_queries(num_shards * size, 0.0f);
    float* d_bias = p.bias == nullptr ? nullptr : Data<float>(context->mutable_output(2));
    ForEachShard(context, p, num_shards, 3 * count, [&](int64_t shard, Range classes) {
      alignas(64) float gradient[kTileClasses * kBlockWidths[1]];
      float scales[kTileClasses], row_sums[kTileClasses];
      std::vector<float> rows(kTileClasses * dim), own(kTileClasses * dim);
      float* d_query = &d_queries[shard * size];
      for (int64_t start = classes.first; start < classes.last; start += kTileClasses) {
        const int64_t num_rows = std::min<int64_t>(kTileClasses, classes.last - start);
        const int64_t whole = (num_rows + 3) / 4 * 4;  // of which the products take a multiple
        std::fill(rows.begin(), rows.end(), 0.0f);
        std::fill(own.begin(), own.end(), 0.0f);
        std::fill_n(row_sums, kTileClasses, 0.0f);
        if (normalize_) InverseNorms(p.rows + start * p.dim, num_rows, p.dim, kNormEpsilon, scales);
        for (int64_t r = 0; r < num_rows; ++r) {
          ScaleInto(normalize_ ? scales[r] : 1.0f, p.rows + (start + r) * p.dim, &rows[r * dim], p.dim);
        }
        for (int64_t block = 0; block < num_blocks; ++block) {
          const int64_t at = block * width;
          // From the rows themselves, scaled afterwards: the same bits as in the scan.
          Logits(p.rows + start * p.dim, p.dim, num_rows, blocks.data() + at * p.dim, width, p.dim, gradient);
          if (normalize_ || p.bias != nullptr) {
            const float* bias = p.bias == nullptr ? nullptr : p.bias + start;
            ScaleAndShift(normalize_ ? scales : nullptr, bias, num_rows, width, gradient);
          }
          ToGradient(reduction_, &reduced[at], &upstream[at], num_rows, width, gradient,
                     d_bias == nullptr ? nullptr : row_sums);
          std::fill(gradient + num_rows * width, gradient + whole * width, 0.0f);
          AddRowGradients(gradient, width, whole, &queries[at * dim], dim, own.data());
          AddQueryGradients(gradient, width, whole, rows.data(), dim, d_query + at * dim);
        }
        for (int64_t r = 0; r < num_rows; ++r) {
          if (normalize_) ThroughNorm(&rows[r * dim], scales[r], p.dim, &own[r * dim]);
          Write(&own[r * dim], p.dim, n > 0, d_rows + (start + r) * p.dim);
        }
        if (d_bias != nullptr) Write(row_sums, num_rows, n > 0, d_bias + start);
      }
    });
    float* out = Data<float>(context->mutable_output(0)) + n * p.dim;
    ForEach(context, count, num_shards * dim, [&](int64_t first, int64_t last) {
      for (int64_t q = first; q < last; ++q) {
        std::copy_n(&d_queries[q * dim], p.dim, out + q * p.dim);
        for (int64_t shard = 1; shard < num_shards; ++shard) {
          AddScaled(1.0f, &d_queries[shard * size + q * dim], out + q * p.dim, p.dim);
        }
      }
    });
  }

  // The gradient of a row from that of the row by its norm, where the norm is not below the epsilon.
  static void ThroughNorm(const float* normalized, float scale, int64_t dim, float* gradient) {
    const float along = scale >= 1.0f / kNormEpsilon ? 0.0f : Dot(normalized, gradient, dim);
    for (int64_t d = 0; d < dim; ++d) gradient[d] = scale * (gradient[d] - along * normalized[d]);
  }

  static void Write(const float* from, int64_t size, bool add, float* to) {
    if (add) {
      AddScaled(1.0f, from, to, size);
    } else {
      std::copy_n(from, size, to);
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfxc>DenseScan").Device(tensorflow::DEVICE_CPU), DenseScanOp);
REGISTER_KERNEL_BUILDER(Name("Tfxc>DenseScanGrad").Device(tensorflow::DEVICE_CPU), DenseScanGradOp);

}  // namespace
}  // namespace tfxc
