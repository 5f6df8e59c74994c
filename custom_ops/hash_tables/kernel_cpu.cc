// The TensorFlow kernels that build hash tables and move classes in them: they check sizes, then go table by table.
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

class MoveInHashTablesOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &values = context->input(0), &old_offsets = context->input(1), &old_members = context->input(2),
                 &moved = context->input(3), &before = context->input(4);
    OP_REQUIRES(context, values.dims() == 2 && values.dim_size(0) <= std::numeric_limits<int32_t>::max(),
                InvalidArgument("codes must be [L, T] with L < 2^31, but are ", values.shape().DebugString(), "."));
    const int64_t num_classes = values.dim_size(0), num_tables = values.dim_size(1);
    const int64_t width = old_offsets.dims() == 2 ? old_offsets.dim_size(1) : 0;
    OP_REQUIRES(context,
                width >= 2 && width - 1 <= kMostBuckets && HasShape(old_offsets.shape(), {num_tables, width}) &&
                    HasShape(old_members.shape(), {num_tables, num_classes}),
                InvalidArgument("offsets must be [", num_tables, ", num_buckets + 1] and members [", num_tables, ", ",
                                num_classes, "], but are ", old_offsets.shape().DebugString(), " and ",
                                old_members.shape().DebugString(), "."));
    OP_REQUIRES(context, moved.dims() == 1 && HasShape(before.shape(), {moved.dim_size(0), num_tables}),
                InvalidArgument("moved must be [n] and before [n, ", num_tables, "], but are ",
                                moved.shape().DebugString(), " and ", before.shape().DebugString(), "."));
    const Codes codes{Data<uint16_t>(values), num_classes, num_tables, width - 1};
    const Moves moves{Data<int32_t>(moved), Data<uint16_t>(before), moved.dim_size(0)};
    for (int64_t i = 0; i < moves.count; ++i) {
      const int32_t least = i > 0 ? moves.ids[i - 1] + 1 : 0;
      OP_REQUIRES(context, moves.ids[i] >= least && moves.ids[i] < num_classes,
                  InvalidArgument("moved must be ascending ids in [0, ", num_classes, "), but holds ", moves.ids[i],
                                  " at ", i, "."));
      for (int64_t t = 0; t < num_tables; ++t) {
        const int64_t most = std::max(codes.values[moves.ids[i] * num_tables + t], moves.before[i * num_tables + t]);
        OP_REQUIRES(context, most < codes.num_buckets,
                    InvalidArgument("codes of class ", moves.ids[i], " are not all below num_buckets = ",
                                    codes.num_buckets, ". Hash with as many bits as the tables have."));
      }
    }
    const int32_t* ends = Data<int32_t>(old_offsets);
    for (int64_t t = 0; t < num_tables; ++t) {
      const int32_t* own = ends + t * width;
      OP_REQUIRES(context, own[0] == 0 && own[width - 1] == num_classes && std::is_sorted(own, own + width),
                  InvalidArgument("offsets of table ", t, " do not ascend from 0 to ", num_classes, "."));
    }
    Tensor *offsets, *members;
    OP_REQUIRES_OK(context, Allocate(context, 0, {num_tables, width}, &offsets));
    OP_REQUIRES_OK(context, Allocate(context, 1, {num_tables, num_classes}, &members));
    MoveToHugePages(Data<int32_t>(members), members->TotalBytes());
    std::atomic<int64_t> bad{-1};
    ForEach(context, num_tables, 4 * num_classes, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        const int64_t row = t * num_classes;
        if (!MoveInTable(codes, moves, t, ends + t * width, Data<int32_t>(old_members) + row,
                         Data<int32_t>(offsets) + t * width, Data<int32_t>(members) + row)) {
          bad = t;
        }
      }
    });
    OP_REQUIRES(context, bad < 0,
                InvalidArgument("table ", bad.load(), " does not hold the classes in the buckets that before names. "
                                "Build the tables anew."));
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfxc>HashTables").Device(tensorflow::DEVICE_CPU), HashTablesOp);
REGISTER_KERNEL_BUILDER(Name("Tfxc>MoveInHashTables").Device(tensorflow::DEVICE_CPU), MoveInHashTablesOp);

}  // namespace
}  // namespace tfxc
