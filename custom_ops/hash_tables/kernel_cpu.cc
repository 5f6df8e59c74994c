// Hash tables as sorted arrays, by a counting sort: codes [L, T] become the members of each bucket.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/huge_pages.h"
#include "common/kernel.h"
#include "common/limits.h"

namespace tfxc {
namespace {

// Tables sorted in one pass over the codes: few enough that the ends of all buckets stay in the cache.
constexpr int64_t kTablesAPass = 8;

struct Codes {
  const uint16_t* values;  // [L, T]
  int64_t num_classes;     // L
  int64_t num_tables;      // T
  int64_t num_buckets;
};

// Sorts tables first <= t < last; returns a class whose code is out of range, or -1.
int64_t SortTables(const Codes& codes, int64_t first, int64_t last, int32_t* offsets, int32_t* members) {
  const int64_t width = codes.num_buckets + 1, count = last - first;
  std::vector<int32_t> next(count * width, 0);  // counts first, then where the next member goes
  for (int64_t i = 0; i < codes.num_classes; ++i) {
    const uint16_t* row = codes.values + i * codes.num_tables + first;
    for (int64_t t = 0; t < count; ++t) {
      if (row[t] >= codes.num_buckets) return i;
      ++next[t * width + row[t] + 1];
    }
  }
  for (int64_t t = 0; t < count; ++t) {
    int32_t* ends = &next[t * width];
    for (int64_t bucket = 1; bucket < width; ++bucket) ends[bucket] += ends[bucket - 1];
  }
  std::copy(next.begin(), next.end(), offsets + first * width);
  for (int64_t i = 0; i < codes.num_classes; ++i) {
    const uint16_t* row = codes.values + i * codes.num_tables + first;
    for (int64_t t = 0; t < count; ++t) {
      members[(first + t) * codes.num_classes + next[t * width + row[t]]++] = static_cast<int32_t>(i);
    }
  }
  return -1;
}

class HashTablesOp : public tensorflow::OpKernel {
 public:
  explicit HashTablesOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_buckets", &num_buckets_));
    OP_REQUIRES(context, num_buckets_ <= kMostBuckets,
                InvalidArgument("num_buckets must be 1 to ", kMostBuckets, ", what codes of 16 bits tell apart, but is ",
                                num_buckets_, "."));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    OP_REQUIRES(context, input.dims() == 2 && input.dim_size(0) <= std::numeric_limits<int32_t>::max(),
                InvalidArgument("codes must be [L, T] with L < 2^31, but are ", input.shape().DebugString(),
                                "."));
    const Codes codes{Data<uint16_t>(input), input.dim_size(0), input.dim_size(1), num_buckets_};
    Tensor *offsets, *members;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({codes.num_tables, codes.num_buckets + 1}), &offsets));
    OP_REQUIRES_OK(
        context, context->allocate_output(1, TensorShape({codes.num_tables, codes.num_classes}), &members));
    // Draws will read both at random places; values stay as they are.
    MoveToHugePages(const_cast<uint16_t*>(codes.values), input.TotalBytes());
    MoveToHugePages(Data<int32_t>(members), members->TotalBytes());
    int32_t* ends = Data<int32_t>(offsets);
    int32_t* sorted = Data<int32_t>(members);
    const int64_t passes = (codes.num_tables + kTablesAPass - 1) / kTablesAPass;
    std::atomic<int64_t> bad{-1};
    const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(workers.num_threads, workers.workers, passes, 4 * kTablesAPass * codes.num_classes,
                      [&](int64_t first, int64_t last) {
                        for (int64_t pass = first; pass < last; ++pass) {
                          const int64_t begin = pass * kTablesAPass;
                          const int64_t end = std::min(begin + kTablesAPass, codes.num_tables);
                          const int64_t found = SortTables(codes, begin, end, ends, sorted);
                          if (found >= 0) bad = found;
                        }
                      });
    OP_REQUIRES(context, bad < 0,
                InvalidArgument("codes of class ", bad.load(), " are not all below num_buckets = ",
                                num_buckets_, ". Hash with as many bits as the tables have."));
  }

 private:
  int64_t num_buckets_;
};

REGISTER_KERNEL_BUILDER(Name("Tfxc>HashTables").Device(tensorflow::DEVICE_CPU), HashTablesOp);

}  // namespace
}  // namespace tfxc
