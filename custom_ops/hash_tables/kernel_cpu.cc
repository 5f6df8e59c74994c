// The TensorFlow kernel that builds hash tables: it checks the sizes, then sorts a few tables at a time.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "common/huge_pages.h"
#include "common/kernel.h"
#include "common/limits.h"
#include "hash_tables/tables.h"

namespace tfxc {
namespace {

class HashTablesOp : public tensorflow::OpKernel {
 public:
  explicit HashTablesOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadBounded(context, "num_buckets", kMostBuckets, &num_buckets_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    OP_REQUIRES(context, input.dims() == 2 && input.dim_size(0) <= std::numeric_limits<int32_t>::max(),
                InvalidArgument("codes must be [L, T] with L < 2^31, but are ", input.shape().DebugString(),
                                "."));
    const Codes codes{Data<uint16_t>(input), input.dim_size(0), input.dim_size(1), num_buckets_};
    Tensor *offsets, *members;
    OP_REQUIRES_OK(context, Allocate(context, 0, {codes.num_tables, codes.num_buckets + 1}, &offsets));
    OP_REQUIRES_OK(
        context, Allocate(context, 1, {codes.num_tables, codes.num_classes}, &members));
    // Draws read both at random places; huge pages do not change the values.
    MoveToHugePages(const_cast<uint16_t*>(codes.values), input.TotalBytes());
    MoveToHugePages(Data<int32_t>(members), members->TotalBytes());
    int32_t* ends = Data<int32_t>(offsets);
    int32_t* sorted = Data<int32_t>(members);
    const int64_t passes = (codes.num_tables + kTablesAPass - 1) / kTablesAPass;
    std::atomic<int64_t> bad{-1};
    ForEach(context, passes, 4 * kTablesAPass * codes.num_classes, [&](int64_t first, int64_t last) {
      for (int64_t pass = first; pass < last; ++pass) {
        const int64_t begin = pass * kTablesAPass, end = std::min(begin + kTablesAPass, codes.num_tables);
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
