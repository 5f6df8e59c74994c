// TensorFlow kernels that draw by blocks: they check everything, choose the blocks query by query, then visit each
// block once for all the queries that chose it.
#include <cmath>
#include <vector>

#include "block_draw/blocks.h"
#include "common/kernel.h"
#include "common/limits.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfxc {
namespace {

using tensorflow::Var;

// Every thread keeps the running sums of a block for 16 queries: 128 bytes a class.
constexpr int64_t kMostInBlock = int64_t{1} << 20;

// The base of drawing and looking up: the attributes, the lookup of the rows, all checks and both passes.
class BlockOpBase : public tensorflow::OpKernel {
 public:
  explicit BlockOpBase(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<float> kernel;
    OP_REQUIRES_OK(context, context->GetAttr("kernel", &kernel));
    OP_REQUIRES(context, kernel.size() == 4 && kernel[3] > 0.0f,
                InvalidArgument("kernel must hold quadratic, linear, constant and a floor above 0."));
    kernel_ = {kernel[0], kernel[1], kernel[2], kernel[3]};
    OP_REQUIRES_OK(context, context->GetAttr("block_size", &block_size_));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<Var> rows;
    OP_REQUIRES_OK(context,
                   tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &rows));
    // The lock keeps writers away while rows are read in place: nothing is copied.
    tensorflow::tf_shared_lock lock(*rows->mu());
    OP_REQUIRES_OK(context, CheckShapes(context, *rows));
    const Tensor& table = *rows->tensor();
    // A block of more classes than there are is one of all classes.
    const int64_t block_size = std::min(block_size_, table.dim_size(0));
    const Blocks blocks{Data<float>(table), table.dim_size(0), table.dim_size(1), block_size, kernel_};
    Run(context, blocks);
  }

 protected:
  virtual void Run(OpKernelContext* context, const Blocks& blocks) = 0;

  // Fills `slots`, which has its inputs and outputs. choose(distribution, n, chosen) writes the blocks of the slots of
  // query n, given the distribution over the blocks.
  template <typename Choose>
  static void Visit(OpKernelContext* context, const Blocks& blocks, Slots* slots, Choose choose) {
    const int64_t num_queries = context->input(1).dim_size(0), samples = slots->num_samples;
    const float* mass = Data<float>(context->input(2));
    slots->sorted.resize(num_queries * samples);
    std::vector<char> is_finite(num_queries);
    const int64_t query_cost = 5 * blocks.Count() + 200 * samples;
    const auto choose_blocks = [&](int64_t first, int64_t last) {
      BlockDistribution distribution(blocks);
      std::vector<int64_t> chosen(samples);
      for (int64_t n = first; n < last; ++n) {
        is_finite[n] = distribution.SetMass(mass + n * blocks.Count());
        choose(distribution, n, chosen.data());
        for (int64_t s = 0; s < samples; ++s) {
          slots->sorted[n * samples + s] = Pack(chosen[s], n * samples + s);
          slots->log_prob[n * samples + s] = distribution.LogProb(chosen[s]);
        }
      }
    };
    ForEach(context, num_queries, query_cost, choose_blocks);
    const auto bad = std::find(is_finite.begin(), is_finite.end(), 0);
    OP_REQUIRES(context, bad == is_finite.end(),
                InvalidArgument("block_mass must be finite, but row ", bad - is_finite.begin(),
                                " (a query) is not. Check the query for NaN and overflow."));

    SortByRow(blocks.Count(), &slots->sorted);
    const std::vector<Tile> tiles = MakeTiles(slots->sorted, samples);
    const int64_t tile_cost = blocks.block_size * (20 + blocks.width / 2);
    ForEach(context, tiles.size(), tile_cost,
            [&](int64_t first, int64_t last) { VisitTiles(blocks, tiles.data() + first, last - first, slots); });
    CheckDrawn(context, *slots);
  }

  // Checked before anything of this size is allocated.
  static absl::Status CheckSlots(int64_t num_queries, int64_t samples) {
    if (samples == 0 || num_queries <= kMostSlots / samples) return absl::OkStatus();
    return InvalidArgument("Drawing by blocks takes at most ", kMostSlots, " slots at once, but got ", num_queries,
                           " queries of ", samples, ".");
  }

 private:
  absl::Status CheckShapes(OpKernelContext* context, Var& rows) const {
    const Tensor &table = *rows.tensor(), &query = context->input(1), &mass = context->input(2);
    if (!rows.is_initialized || table.dtype() != tensorflow::DT_FLOAT || table.dims() != 2) {
      return InvalidArgument("Drawing by blocks needs initialised float32 rows [L, F], but they are ",
                             rows.DebugString(), ".");
    }
    const int64_t num_classes = table.dim_size(0);
    if (num_classes > kMostClasses || std::min(block_size_, num_classes) > kMostInBlock) {
      return InvalidArgument("Drawing by blocks takes at most ", kMostClasses, " classes in blocks of at most ",
                             kMostInBlock, ", but there are ", num_classes, " in blocks of ", block_size_, ".");
    }
    const int64_t num_blocks = num_classes == 0 ? 0 : (num_classes - 1) / block_size_ + 1;
    if (num_blocks == 0 || query.dims() != 2 || query.dim_size(1) != table.dim_size(1) ||
        !HasShape(mass.shape(), {query.dim_size(0), num_blocks})) {
      return InvalidArgument("Drawing by blocks of ", block_size_, " classes needs rows [L, F], query [N, F] and ",
                             "block_mass [N, ceil(L / ", block_size_, ")], L >= 1, but got ",
                             table.shape().DebugString(), ", ", query.shape().DebugString(), " and ",
                             mass.shape().DebugString(), ".");
    }
    return absl::OkStatus();
  }

  static void CheckDrawn(OpKernelContext* context, const Slots& slots) {
    const int64_t size = slots.sorted.size();
    int64_t slot = 0;
    while (slot < size && std::isfinite(slots.log_prob[slot])) ++slot;
    OP_REQUIRES(context, slot == size,
                InvalidArgument("The weights of query ", slot / slots.num_samples, " are not finite in the block of ",
                                "class ", slots.class_ids[slot],
                                ". Check the query and the rows for NaN and overflow."));
  }

  Kernel kernel_;
  int64_t block_size_;
};

class BlockDrawOp : public BlockOpBase {
 public:
  explicit BlockDrawOp(OpKernelConstruction* context) : BlockOpBase(context) {
    OP_REQUIRES_OK(context, ReadBounded(context, "num_samples", kMostPerQuery, &num_samples_));
  }

 protected:
  void Run(OpKernelContext* context, const Blocks& blocks) override {
    Seed seed;
    OP_REQUIRES_OK(context, ReadSeed(context, 3, &seed));
    const int64_t num_queries = context->input(1).dim_size(0);
    OP_REQUIRES_OK(context, CheckSlots(num_queries, num_samples_));
    Tensor *class_ids, *log_prob;
    OP_REQUIRES_OK(context, Allocate(context, 0, {num_queries, num_samples_}, &class_ids));
    OP_REQUIRES_OK(context, Allocate(context, 1, {num_queries, num_samples_}, &log_prob));
    std::vector<uint64_t> block_bits(class_ids->NumElements()), class_bits(class_ids->NumElements());
    Slots slots{Data<float>(context->input(1)), num_samples_, {}, class_bits.data(),
                Data<int32_t>(class_ids), Data<float>(log_prob)};
    Visit(context, blocks, &slots, [&](const BlockDistribution& distribution, int64_t n, int64_t* chosen) {
      uint64_t* bits = block_bits.data() + n * num_samples_;
      FillBits(seed, n, num_samples_, bits, class_bits.data() + n * num_samples_);
      for (int64_t s = 0; s < num_samples_; ++s) chosen[s] = distribution.Draw(bits[s]);
    });
  }

 private:
  int32_t num_samples_;
};

class BlockLogProbOp : public BlockOpBase {
 public:
  using BlockOpBase::BlockOpBase;

 protected:
  void Run(OpKernelContext* context, const Blocks& blocks) override {
    const Tensor& ids = context->input(3);
    OP_REQUIRES(context, ids.dims() == 2 && ids.dim_size(0) == context->input(1).dim_size(0),
                InvalidArgument("class_ids must be [N, P] for ", context->input(1).dim_size(0),
                                " queries, but are ", ids.shape().DebugString(), "."));
    Tensor* log_prob;
    OP_REQUIRES_OK(context, CheckSlots(ids.dim_size(0), ids.dim_size(1)));
    OP_REQUIRES_OK(context, context->allocate_output(0, ids.shape(), &log_prob));
    std::vector<int32_t> class_ids(Data<int32_t>(ids), Data<int32_t>(ids) + ids.NumElements());
    const int64_t num_samples = ids.dim_size(1);
    for (int64_t slot = 0; slot < ids.NumElements(); ++slot) {
      OP_REQUIRES(context, class_ids[slot] >= 0 && class_ids[slot] < blocks.num_classes,
                  InvalidArgument("class_ids[", slot / num_samples, ", ", slot % num_samples, "] is ",
                                  class_ids[slot], ", but ids are 0 to ", blocks.num_classes - 1, "."));
    }
    Slots slots{Data<float>(context->input(1)), num_samples, {}, nullptr, class_ids.data(),
                Data<float>(log_prob)};
    Visit(context, blocks, &slots, [&](const BlockDistribution&, int64_t n, int64_t* chosen) {
      for (int64_t s = 0; s < num_samples; ++s) chosen[s] = class_ids[n * num_samples + s] / blocks.block_size;
    });
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfxc>BlockDraw").Device(tensorflow::DEVICE_CPU), BlockDrawOp);
REGISTER_KERNEL_BUILDER(Name("Tfxc>BlockLogProb").Device(tensorflow::DEVICE_CPU), BlockLogProbOp);

}  // namespace
}  // namespace tfxc
