// Top-k over the classes of a MACH head from the scores of its buckets. The kernel computes the buckets of a class when
// it needs them: there is neither a table of them nor a [B, L] tensor.
#include <algorithm>
#include <mutex>
#include <vector>

#include "common/kernel.h"
#include "common/limits.h"
#include "mach_decode/best.h"
#include "mach_decode/exhaustive.h"
#include "mach_decode/probed.h"
#include "mach_decode/pruned.h"
#include "mach_decode/tables.h"

namespace tfxc {
namespace {

// Threads take classes in pieces of this size.
constexpr int64_t kPiece = 1 << 16;
constexpr int64_t kCostOfLookUp = 2;  // cycles

class MachTopKOp : public tensorflow::OpKernel {
 public:
  explicit MachTopKOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string decoder;
    OP_REQUIRES_OK(context, context->GetAttr("num_classes", &num_classes_));
    OP_REQUIRES_OK(context, context->GetAttr("prime", &prime_));
    OP_REQUIRES_OK(context, context->GetAttr("prune", &prune_));
    OP_REQUIRES_OK(context, context->GetAttr("num_probes", &num_probes_));
    OP_REQUIRES_OK(context, context->GetAttr("decoder", &decoder));
    decoder_ = decoder == "mean" ? Decoder::kMean : decoder == "min" ? Decoder::kMin : Decoder::kMedian;
    // Between a number and its double there is a prime. The time of a bucket grows with the prime.
    OP_REQUIRES(context, num_classes_ <= prime_ && prime_ < int64_t{1} << 31 && prime_ <= 2 * num_classes_,
                InvalidArgument("The prime must be in [num_classes, 2 num_classes] and below 2^31, but is ", prime_,
                                " for ", num_classes_, " classes."));
  }

  void Compute(OpKernelContext* context) override {
    Hashes hashes;
    OP_REQUIRES_OK(context, ReadHashes(context, &hashes));
    OP_REQUIRES_OK(context, CheckExclude(context));
    const Tensor &tables = context->input(0), &exclude = context->input(3);
    const Queries queries{Data<float>(tables), tables.dim_size(0), Data<int32_t>(exclude),
                          exclude.dim_size(1), decoder_};
    const int64_t k = *Data<int32_t>(context->input(2));
    const int64_t most = std::min(num_classes_, kMostPerQuery);
    OP_REQUIRES(context, k >= 0 && k <= most,
                InvalidArgument("k must be in [0, ", most, "] for ", num_classes_, " classes, but is ", k, "."));
    Tensor *scores, *ids;
    OP_REQUIRES_OK(context, Allocate(context, 0, {queries.count, k}, &scores));
    OP_REQUIRES_OK(context, Allocate(context, 1, {queries.count, k}, &ids));
    if (scores->NumElements() == 0) return;
    std::vector<Best> best(queries.count, Best(k));
    const int64_t num_probes = std::min(num_probes_, hashes.num_buckets);
    if (num_probes > 0 && !Prober::IsFutile(hashes, num_probes)) {
      RankProbed(context, hashes, queries, k, num_probes, &best);
    } else {
      RankAll(context, hashes, queries, RankPruned(context, hashes, queries, k, &best), k, &best);
    }
    for (int64_t n = 0; n < queries.count; ++n) {
      best[n].Write(Data<float>(scores) + n * k, Data<int32_t>(ids) + n * k);
    }
  }

 private:
  absl::Status ReadHashes(OpKernelContext* context, Hashes* hashes) const {
    const TensorShape &tables = context->input(0).shape(), &coefficients = context->input(1).shape();
    if (tables.dims() != 3 || tables.dim_size(1) < 1 || tables.dim_size(2) < 1 ||
        !HasShape(coefficients, {tables.dim_size(1), 3})) {
      return InvalidArgument("mach_top_k needs tables [B, R, M] and coefficients [R, 3], R and M at least 1, but got ",
                             tables.DebugString(), " and ", coefficients.DebugString(), ".");
    }
    if (tables.dim_size(2) >= int64_t{1} << 31) return InvalidArgument("There must be fewer than 2^31 buckets.");
    hashes->prime = prime_;
    hashes->num_buckets = tables.dim_size(2);
    hashes->num_classes = num_classes_;
    const int64_t* row = Data<int64_t>(context->input(1));
    for (int64_t r = 0; r < tables.dim_size(1); ++r, row += 3) {
      const int64_t a = row[0], b = row[1], inverse = row[2];
      const auto in_range = [this](int64_t x) { return x >= 0 && x < prime_; };
      if (!(in_range(a) && in_range(b) && in_range(inverse) && a * inverse % prime_ == 1)) {
        return InvalidArgument("coefficients[", r, "] are ", a, ", ", b, ", ", inverse, ": they must be in [0, ",
                               prime_, ") and the last the inverse of the first modulo ", prime_, ".");
      }
      hashes->functions.push_back({static_cast<uint64_t>(a), static_cast<uint64_t>(b), static_cast<uint64_t>(inverse)});
    }
    return absl::OkStatus();
  }

  absl::Status CheckExclude(OpKernelContext* context) const {
    const Tensor &exclude = context->input(3), &k = context->input(2);
    if (k.dims() != 0 || exclude.dims() != 2 || exclude.dim_size(0) != context->input(0).dim_size(0)) {
      return InvalidArgument("mach_top_k needs a scalar k and exclude [B, X], but got ", k.shape().DebugString(),
                             " and ", exclude.shape().DebugString(), " for tables ",
                             context->input(0).shape().DebugString(), ".");
    }
    const int32_t* ids = Data<int32_t>(exclude);
    for (int64_t i = 0; i < exclude.NumElements(); ++i) {
      if (ids[i] < -1 || ids[i] >= num_classes_) {
        return InvalidArgument("exclude[", i / exclude.dim_size(1), ", ", i % exclude.dim_size(1), "] is ", ids[i],
                               ", but there are ", num_classes_, " classes: ids are 0 to ", num_classes_ - 1,
                               ", or -1 for none.");
      }
    }
    return absl::OkStatus();
  }

  void RankProbed(OpKernelContext* context, const Hashes& hashes, const Queries& queries, int64_t k, int64_t num_probes,
                  std::vector<Best>* best) const {
    const int64_t cost = hashes.Count() * hashes.num_buckets;
    ForEach(context, queries.count, cost, [&](int64_t first, int64_t last) {
      Prober prober(hashes, queries, k, num_probes);
      for (int64_t n = first; n < last; ++n) prober.Rank(n, &(*best)[n]);
    });
  }

  // Ranks the queries for which the best buckets are enough; returns the other queries.
  std::vector<int64_t> RankPruned(OpKernelContext* context, const Hashes& hashes, const Queries& queries, int64_t k,
                                  std::vector<Best>* best) const {
    std::vector<char> done(queries.count, 0);
    if (prune_ && !Pruner(hashes, queries, k).IsFutile()) {
      const int64_t cost = hashes.Count() * hashes.num_buckets;
      ForEach(context, queries.count, cost, [&](int64_t first, int64_t last) {
        Pruner pruner(hashes, queries, k);
        for (int64_t n = first; n < last; ++n) {
          Best own(k);
          done[n] = pruner.Rank(n, &own);
          if (done[n]) (*best)[n] = own;
        }
      });
    }
    std::vector<int64_t> left;
    for (int64_t n = 0; n < queries.count; ++n) {
      if (!done[n]) left.push_back(n);
    }
    return left;
  }

  // Scores all classes for some queries: in tiles, and the last few queries one after the other.
  void RankAll(OpKernelContext* context, const Hashes& hashes, const Queries& queries,
               const std::vector<int64_t>& which, int64_t k, std::vector<Best>* best) const {
    std::vector<TileRow> laid_out;
    for (size_t start = 0; start < which.size();) {
      const size_t left = which.size() - start;
      const size_t count = left < kMinTile ? 1 : std::min<size_t>(left, kTileWidth);
      const std::vector<int64_t> tile(which.begin() + start, which.begin() + start + count);
      if (count > 1) LayOut(context, hashes, queries, tile, &laid_out);
      std::mutex mutex;
      const int64_t num_pieces = (num_classes_ + kPiece - 1) / kPiece;
      const int64_t cost = kPiece * hashes.Count() * kCostOfLookUp * (count > 1 ? 8 : 1);
      ForEach(context, num_pieces, cost, [&](int64_t first, int64_t last) {
        const int64_t stop = std::min(last * kPiece, num_classes_);
        std::vector<Best> own(count, Best(k));
        if (count > 1) {
          RankClassesOfTile(hashes, queries, tile, laid_out.data(), first * kPiece, stop, own.data());
        } else {
          RankClasses(hashes, queries, tile[0], first * kPiece, stop, own.data());
        }
        const std::lock_guard<std::mutex> lock(mutex);
        for (size_t j = 0; j < count; ++j) (*best)[tile[j]].Merge(own[j]);
      });
      start += count;
    }
  }

  void LayOut(OpKernelContext* context, const Hashes& hashes, const Queries& queries, const std::vector<int64_t>& tile,
              std::vector<TileRow>* laid_out) const {
    laid_out->resize(hashes.Count() * hashes.num_buckets);
    ForEach(context, hashes.Count(), hashes.num_buckets * kTileWidth * 2, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        LayOutTile(hashes, queries, tile, r, laid_out->data() + r * hashes.num_buckets);
      }
    });
  }

  int64_t num_classes_, prime_, num_probes_;
  Decoder decoder_;
  bool prune_;
};

REGISTER_KERNEL_BUILDER(Name("Tfxc>MachTopK").Device(tensorflow::DEVICE_CPU), MachTopKOp);

}  // namespace
}  // namespace tfxc
