// TensorFlow kernels of candidates from hash tables: they check everything, then run parallel over queries.
#include <algorithm>
#include <cmath>

#include "common/kernel.h"
#include "common/limits.h"
#include "lsh_draw/draw.h"

namespace tfxc {
namespace {

absl::Status CheckShapes(OpKernelContext* context) {
  const TensorShape& query = context->input(0).shape();
  const TensorShape& codes = context->input(1).shape();
  const TensorShape& offsets = context->input(2).shape();
  const TensorShape& members = context->input(3).shape();
  const bool ranks = query.dims() == 3 && codes.dims() == 2 && offsets.dims() == 2 && members.dims() == 2;
  if (!ranks || codes.dim_size(0) == 0 || codes.dim_size(1) == 0 || query.dim_size(2) != codes.dim_size(1) ||
      offsets.dim_size(0) != codes.dim_size(1) || offsets.dim_size(1) < 2 ||
      !HasShape(members, {codes.dim_size(1), codes.dim_size(0)})) {
    return InvalidArgument("LSH needs query_codes [N, M, T], codes [L, T], offsets [T, buckets + 1] and ",
                           "members [T, L] with L >= 1 and T >= 1, but got ", query.DebugString(), ", ",
                           codes.DebugString(), ", ", offsets.DebugString(), " and ",
                           members.DebugString(), ".");
  }
  return absl::OkStatus();
}

HashTables TablesOf(OpKernelContext* context) {
  const Tensor& codes = context->input(1);
  return {codes.dim_size(0),
          codes.dim_size(1),
          context->input(2).dim_size(1) - 1,
          Data<uint16_t>(codes),
          Data<int32_t>(context->input(2)),
          Data<int32_t>(context->input(3))};
}

// Checks only what these queries will read, so that the cost depends on neither classes nor buckets.
absl::Status CheckBuckets(const Tensor& query_codes, const HashTables& tables) {
  const int32_t* codes = Data<int32_t>(query_codes);
  for (int64_t n = 0; n < query_codes.dim_size(0); ++n) {
    for (int64_t m = 0; m < query_codes.dim_size(1); ++m, codes += tables.num_tables) {
      const bool absent = codes[0] == -1;
      for (int64_t t = 0; t < tables.num_tables; ++t) {
        const int32_t code = codes[t];
        if (absent ? code != -1 : code < 0 || code >= tables.num_buckets) {
          return InvalidArgument("query_codes[", n, ", ", m, ", ", t, "] is ", code, ", but codes are 0 to ",
                                 tables.num_buckets - 1, ", or -1 in all tables where there is no code.");
        }
        if (absent) continue;
        const int32_t* offset = tables.offsets + t * (tables.num_buckets + 1) + code;
        if (offset[0] < 0 || offset[1] < offset[0] || offset[1] > tables.num_classes) {
          return InvalidArgument("offsets must ascend from 0 to L = ", tables.num_classes, ", but bucket ",
                                 code, " of table ", t, " is from ", offset[0], " to ", offset[1],
                                 ". Rebuild the tables.");
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDrawn(const Tensor& class_ids, const Tensor& log_expected_count) {
  const int32_t* ids = Data<int32_t>(class_ids);
  const float* counts = Data<float>(log_expected_count);
  for (int64_t i = 0; i < class_ids.NumElements(); ++i) {
    if (std::isnan(counts[i])) {
      return InvalidArgument("members of a bucket hold class ", ids[i],
                             ", whose code is not that of the bucket. Rebuild the tables.");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckIds(const Tensor& class_ids, int64_t num_classes) {
  const int32_t* ids = Data<int32_t>(class_ids);
  for (int64_t i = 0; i < class_ids.NumElements(); ++i) {
    if (ids[i] < 0 || ids[i] >= num_classes) {
      return InvalidArgument("class_ids[", i / class_ids.dim_size(1), ", ", i % class_ids.dim_size(1),
                             "] is ", ids[i], ", but ids are 0 to ", num_classes - 1, ".");
    }
  }
  return absl::OkStatus();
}

class LshOp : public tensorflow::OpKernel {
 public:
  explicit LshOp(OpKernelConstruction* context) : OpKernel(context) {
    float uniform_fraction;
    OP_REQUIRES_OK(context, ReadBounded(context, "num_candidates", kMostPerQuery, &scheme_.num_candidates));
    OP_REQUIRES_OK(context, context->GetAttr("uniform_fraction", &uniform_fraction));
    OP_REQUIRES_OK(context, context->GetAttr("bucket_slots", &scheme_.bucket_slots));
    OP_REQUIRES(context, uniform_fraction > 0 && uniform_fraction <= 1,
                InvalidArgument("uniform_fraction must be in (0, 1], but is ", uniform_fraction,
                                ": without uniform draws, classes outside the buckets could never be drawn."));
    scheme_.uniform_fraction = uniform_fraction;
  }

 protected:
  absl::Status Check(OpKernelContext* context) const {
    TF_RETURN_IF_ERROR(CheckShapes(context));
    const int64_t num_queries = context->input(0).dim_size(0);
    if (num_queries > kMostSlots / scheme_.num_candidates) {
      return InvalidArgument("LSH draws at most ", kMostSlots, " candidates at once, but got ", num_queries,
                             " queries of ", scheme_.num_candidates, ".");
    }
    const HashTables tables = TablesOf(context);
    // Their product may be beyond 64 bits.
    if (scheme_.bucket_slots > (scheme_.num_candidates - 1) / tables.num_tables) {
      return InvalidArgument("A union of ", scheme_.bucket_slots, " classes from each of ", tables.num_tables,
                             " tables leaves no uniform draw among ", scheme_.num_candidates, " candidates.");
    }
    return CheckBuckets(context->input(0), tables);
  }

  // Calls work(buckets, n) for each query n, after its buckets are set.
  template <typename Work>
  void ForEachQuery(OpKernelContext* context, int64_t num_asked, const Work& work) const {
    const Tensor& query_codes = context->input(0);
    const HashTables tables = TablesOf(context);
    const int64_t num_parts = query_codes.dim_size(1), stride = num_parts * tables.num_tables;
    const int32_t* codes = Data<int32_t>(query_codes);
    const int64_t cost = 5 * stride + num_asked * (50 + stride);
    ForEach(context, query_codes.dim_size(0), cost, [&](int64_t first, int64_t last) {
      QueryBuckets buckets(tables, scheme_);
      for (int64_t n = first; n < last; ++n) {
        buckets.SetQuery(codes + n * stride, num_parts);
        work(&buckets, n);
      }
    });
  }

  Scheme scheme_;
};

class LshDrawOp : public LshOp {
 public:
  using LshOp::LshOp;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Check(context));
    Seed seed;
    OP_REQUIRES_OK(context, ReadSeed(context, 4, &seed));
    const int64_t size = scheme_.num_candidates;
    const int64_t num_queries = context->input(0).dim_size(0);
    Tensor *class_ids, *log_expected_count;
    OP_REQUIRES_OK(context, Allocate(context, 0, {num_queries, size}, &class_ids));
    OP_REQUIRES_OK(context, Allocate(context, 1, {num_queries, size}, &log_expected_count));
    int32_t* ids = Data<int32_t>(class_ids);
    float* counts = Data<float>(log_expected_count);
    ForEachQuery(context, size, [&](QueryBuckets* buckets, int64_t n) {
      buckets->Draw(seed, static_cast<uint32_t>(n), ids + n * size, counts + n * size);
    });
    OP_REQUIRES_OK(context, CheckDrawn(*class_ids, *log_expected_count));
  }
};

class LshLogExpectedCountOp : public LshOp {
 public:
  using LshOp::LshOp;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Check(context));
    const Tensor& class_ids = context->input(4);
    OP_REQUIRES(context, class_ids.dims() == 2 && class_ids.dim_size(0) == context->input(0).dim_size(0),
                InvalidArgument("class_ids must be [N, S], N the number of queries, but are ",
                                class_ids.shape().DebugString(), "."));
    OP_REQUIRES_OK(context, CheckIds(class_ids, context->input(1).dim_size(0)));
    Tensor* log_expected_count;
    OP_REQUIRES_OK(context, context->allocate_output(0, class_ids.shape(), &log_expected_count));
    const int32_t* ids = Data<int32_t>(class_ids);
    float* counts = Data<float>(log_expected_count);
    const int64_t size = class_ids.dim_size(1);
    ForEachQuery(context, size, [&](QueryBuckets* buckets, int64_t n) {
      buckets->LogExpectedCounts(ids + n * size, size, counts + n * size);
    });
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfxc>LshDraw").Device(tensorflow::DEVICE_CPU), LshDrawOp);
REGISTER_KERNEL_BUILDER(Name("Tfxc>LshLogExpectedCount").Device(tensorflow::DEVICE_CPU), LshLogExpectedCountOp);

}  // namespace
}  // namespace tfxc
