// The op over all classes of a dense head: a thread takes a shard of the classes.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dense_scan/best.h"
#include "dense_scan/scan.h"
#include "dense_scan/tile_scan.h"

namespace tfxc {
namespace {

using namespace dense_scan;

class DenseScanOp : public DenseScanBase {
 public:
  explicit DenseScanOp(OpKernelConstruction* context) : DenseScanBase(context) {
    OP_REQUIRES_OK(context, context->GetAttr("with_tile_maxima", &with_tile_maxima_));
    // Without a reduction, the logits may be those of a rough first look.
    OP_REQUIRES(context, !with_tile_maxima_ || reduction_ != Reduction::kNone,
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
    const int64_t num_tiles = with_tile_maxima_ ? NumTiles(p.num_classes) : 0;
    // First the outputs whose sizes may be beyond 64 bits: TensorFlow waits ten seconds for memory that does not exist.
    OP_REQUIRES_OK(context, Allocate(context, 1, {p.num_queries, k}, &scores));
    OP_REQUIRES_OK(context, Allocate(context, 2, {p.num_queries, k}, &ids));
    OP_REQUIRES_OK(context, Allocate(context, 0, {p.num_queries}, &reduced));
    OP_REQUIRES_OK(context, Allocate(context, 3, {num_tiles, num_tiles == 0 ? 0 : p.num_queries}, &tile_maxima));
    const int64_t room = kPrivateBytes / (2 * std::max<int64_t>(k, 1) * sizeof(Scored));
    const int64_t chunk = std::clamp<int64_t>(room / 4, kBlockWidths[1], kMaxQueries);
    for (int64_t n = 0; n < p.num_queries; n += chunk) {
      Pass(context, p, n, std::min(chunk, p.num_queries - n), k, room);
    }
  }

 private:
  void Pass(OpKernelContext* context, const Problem& p, int64_t n, int64_t count, int64_t k, int64_t room) const {
    const bool looks_first = k > 0 && CanLookFirst(reduction_, count, p.dim);
    const ScanQueries queries(p.query + n * p.dim, count, p.dim, looks_first);
    const int64_t padded = queries.num_blocks * queries.width;
    const std::vector<std::vector<int32_t>> excluded = Excluded(context->input(4), n, count);
    const int64_t num_shards = std::clamp<int64_t>(room / count, 2, kMaxShards);
    std::vector<double> sums(num_shards * padded, 0.0);
    std::vector<float> maxima(sums.size(), std::numeric_limits<float>::lowest());
    Bounds bounds(count);
    std::vector<Best> best(num_shards, Best(count, k, excluded, &bounds));
    float* tile_maxima = with_tile_maxima_ ? Data<float>(context->mutable_output(3)) + n : nullptr;
    ForEachShard(context, p, num_shards, count, [&](int64_t shard, Range range) {
      ScanShard({p.table, p.bias, p.dim, normalize_}, reduction_, queries, range,
                {&sums[shard * padded], &maxima[shard * padded], k > 0 ? &best[shard] : nullptr, tile_maxima,
                 p.num_queries});
    });
    float* reduced = Data<float>(context->mutable_output(0)) + n;
    for (int64_t q = 0; q < count; ++q) {
      reduced[q] = TotalOfShards(reduction_, &sums[q], &maxima[q], num_shards, padded);
    }
    if (k > 0) {
      float* scores = Data<float>(context->mutable_output(1)) + n * k;
      int32_t* ids = Data<int32_t>(context->mutable_output(2)) + n * k;
      ForEach(context, count, 200 * k, [&](int64_t first, int64_t last) {
        for (int64_t q = first; q < last; ++q) Merge(best, q, k, scores + q * k, ids + q * k);
      });
    }
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

  static void Merge(const std::vector<Best>& best, int64_t query, int64_t k, float* scores, int32_t* ids) {
    std::vector<Scored> all;
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

REGISTER_KERNEL_BUILDER(Name("Tfxc>DenseScan").Device(tensorflow::DEVICE_CPU), DenseScanOp);

}  // namespace
}  // namespace tfxc
