// The ops of the uniformly sparse head: over all classes or a block of them, and for a few chosen classes of each
// query.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "common/class_ids.h"
#include "common/kernel.h"
#include "sparse_head/candidates.h"
#include "sparse_head/groups.h"
#include "sparse_head/shards.h"

namespace tfxc {
namespace {

absl::Status BlockOf(OpKernelContext* context, const HeadInputs& inputs, Range* classes) {
  const Tensor &start = context->input(4), &stop = context->input(5);
  if (start.dims() != 0 || stop.dims() != 0) return InvalidArgument("start and stop must be scalars.");
  *classes = {*Data<int32_t>(start), *Data<int32_t>(stop)};
  if (classes->first < 0 || classes->first > classes->last || classes->last > inputs.num_classes) {
    return InvalidArgument("Classes ", classes->first, " to ", classes->last, " are not a block of the ",
                           inputs.num_classes, " classes.");
  }
  return absl::OkStatus();
}

class SparseHeadLogitsOp : public SparseHeadBase {
 public:
  using SparseHeadBase::SparseHeadBase;

  void Compute(OpKernelContext* context) override {
    HeadInputs inputs;
    Range classes;
    OP_REQUIRES_OK(context, ReadInputs(context, group_size_, &context->input(3), &inputs));
    OP_REQUIRES_OK(context, BlockOf(context, inputs, &classes));
    const int64_t size = classes.last - classes.first;
    Tensor* logits;
    OP_REQUIRES_OK(context, Allocate(context, 0, {inputs.num_queries, size}, &logits));
    float* out = Data<float>(logits);
    MoveToHugePages(out, logits->TotalBytes(), SmallPages::kLeave);
    FirstBad bad;
    const Shards shards = ForwardShards(inputs, classes);
    const auto logits_of = group_size_ == 1 ? TileLogits : GroupLogits;
    const auto work = [&](int64_t n, int64_t count, int width, const float* tile) {
      ForEachShard(context, inputs, shards, width, [&](int64_t shard) {
        const auto [first, last] = shards[shard];
        float* to = out + n * size + first - classes.first;
        bad.Report(logits_of(inputs.rows, tile, width, count, first, last, to, size));
      });
      return absl::OkStatus();
    };
    OP_REQUIRES_OK(context, ForEachTile(context, inputs, kForwardWidth, work));
    OP_REQUIRES_OK(context, CheckClass(inputs, bad.get()));
  }
};

class SparseHeadLogitsGradOp : public BackwardOp {
 public:
  using BackwardOp::BackwardOp;

  void Compute(OpKernelContext* context) override {
    HeadInputs inputs;
    Range classes;
    OP_REQUIRES_OK(context, ReadInputs(context, group_size_, &context->input(3), &inputs));
    OP_REQUIRES_OK(context, BlockOf(context, inputs, &classes));
    const Tensor& gradient = context->input(6);
    const int64_t size = classes.last - classes.first;
    OP_REQUIRES(context, HasShape(gradient.shape(), {inputs.num_queries, size}),
                InvalidArgument("The gradient must be [", inputs.num_queries, ", ", size, "], but is ",
                                gradient.shape().DebugString(), "."));
    const float* g = Data<float>(gradient);
    const auto gradient_of = group_size_ == 1 ? TileLogitsGradient : GroupLogitsGradient;
    const auto make_pass = [&](int64_t n, int64_t count, int width, const float* tile) {
      return [=, &inputs](Range part, const TileGradients& out) {
        return gradient_of(inputs.rows, tile, width, count, g + n * size + part.first - classes.first, size,
                           part.first, part.last, out);
      };
    };
    OP_REQUIRES_OK(context, Backward(context, inputs, classes, make_pass));
  }
};

Reduction ReductionOf(OpKernelConstruction* context) {
  std::string name;
  context->SetStatus(context->GetAttr("reduction", &name));
  return ReductionNamed(name);
}

class SparseHeadReduceOp : public SparseHeadBase {
 public:
  explicit SparseHeadReduceOp(OpKernelConstruction* context)
      : SparseHeadBase(context), reduction_(ReductionOf(context)) {}

  void Compute(OpKernelContext* context) override {
    HeadInputs inputs;
    OP_REQUIRES_OK(context, ReadInputs(context, group_size_, &context->input(3), &inputs));
    const Tensor& labels = context->input(4);
    OP_REQUIRES_OK(context, CheckClassIds("labels", labels, inputs.num_queries, inputs.num_classes));
    Tensor *reduced, *positives;
    OP_REQUIRES_OK(context, Allocate(context, 0, {inputs.num_queries}, &reduced));
    OP_REQUIRES_OK(context, context->allocate_output(1, labels.shape(), &positives));
    const Shards shards = ForwardShards(inputs, {0, inputs.num_classes});
    const auto reduce = group_size_ == 1 ? TileReduce : GroupReduce;
    FirstBad bad;
    const auto work = [&](int64_t n, int64_t count, int width, const float* tile) {
      std::vector<double> sums(shards.count * width);
      std::vector<float> maxima(shards.count * width);
      ForEachShard(context, inputs, shards, width, [&](int64_t shard) {
        const auto [first, last] = shards[shard];
        bad.Report(reduce(inputs.rows, reduction_, tile, width, first, last, &sums[shard * width],
                          &maxima[shard * width]));
      });
      for (int64_t lane = 0; lane < count; ++lane) {
        Data<float>(reduced)[n + lane] =
            TotalOfShards(reduction_, &sums[lane], &maxima[lane], shards.count, width);
      }
      return absl::OkStatus();
    };
    OP_REQUIRES_OK(context, ForEachTile(context, inputs, kForwardWidth, work));
    OP_REQUIRES_OK(context, CheckClass(inputs, bad.get()));
    LabelLogits(inputs, labels, Data<float>(positives));
  }

 private:
  static void LabelLogits(const HeadInputs& inputs, const Tensor& labels, float* positives) {
    const int64_t per_query = labels.dim_size(1), fan_in = inputs.rows.fan_in;
    const int32_t* ids = Data<int32_t>(labels);
    for (int64_t slot = 0; slot < labels.NumElements(); ++slot) {
      const int64_t l = ids[slot];
      positives[slot] = 0.0f;
      if (l < 0) continue;
      const float* query = inputs.query + slot / per_query * inputs.num_inputs;
      const int32_t* inputs_of_class = InputsOf(inputs.rows, l);
      const float* weights = inputs.rows.weights + l * fan_in;
      double logit = inputs.rows.bias == nullptr ? 0.0 : inputs.rows.bias[l];
      for (int64_t k = 0; k < fan_in; ++k) logit += weights[k] * query[inputs_of_class[k]];
      positives[slot] = logit;
    }
  }

  Reduction reduction_;
};

class SparseHeadReduceGradOp : public BackwardOp {
 public:
  explicit SparseHeadReduceGradOp(OpKernelConstruction* context)
      : BackwardOp(context), reduction_(ReductionOf(context)) {}

  void Compute(OpKernelContext* context) override {
    HeadInputs inputs;
    OP_REQUIRES_OK(context, ReadInputs(context, group_size_, &context->input(3), &inputs));
    const Tensor &labels = context->input(4), &reduced = context->input(5);
    const Tensor &reduced_gradient = context->input(6), &positives_gradient = context->input(7);
    OP_REQUIRES_OK(context, CheckClassIds("labels", labels, inputs.num_queries, inputs.num_classes));
    const TensorShape per_query({inputs.num_queries});
    OP_REQUIRES(context,
                reduced.shape() == per_query && reduced_gradient.shape() == per_query &&
                    positives_gradient.shape() == labels.shape(),
                InvalidArgument("reduced and reduced_gradient must be ", per_query.DebugString(),
                                " and positives_gradient ", labels.shape().DebugString(), ", but they are ",
                                reduced.shape().DebugString(), ", ", reduced_gradient.shape().DebugString(), " and ",
                                positives_gradient.shape().DebugString(), "."));
    const auto gradient_of = group_size_ == 1 ? TileReduceGradient : GroupReduceGradient;
    const auto make_pass = [&](int64_t n, int64_t count, int width, const float* tile) {
      return [this, gradient_of, &inputs, width, tile, log_sums = Lanes(reduced, n, count, kReducedOfPadding),
              upstream = Lanes(reduced_gradient, n, count, 0.0f),
              own = LabelsOf(labels, positives_gradient, n, count)](Range part, const TileGradients& out) {
        const auto begin = std::lower_bound(own.begin(), own.end(), part.first,
                                            [](const LabelGradient& label, int64_t l) { return label.class_id < l; });
        return gradient_of(inputs.rows, reduction_, tile, width, log_sums.data(), upstream.data(),
                           own.data() + (begin - own.begin()), own.data() + own.size(), part.first, part.last, out);
      };
    };
    OP_REQUIRES_OK(context, Backward(context, inputs, {0, inputs.num_classes}, make_pass));
  }

 private:
  // The numbers of a vector for one tile, followed by padding.
  static std::array<float, kMaxTileWidth> Lanes(const Tensor& vector, int64_t n, int64_t count, float padding) {
    std::array<float, kMaxTileWidth> lanes;
    lanes.fill(padding);
    std::copy_n(Data<float>(vector) + n, count, lanes.begin());
    return lanes;
  }

  static std::vector<LabelGradient> LabelsOf(const Tensor& labels, const Tensor& gradient, int64_t n, int64_t count) {
    std::vector<LabelGradient> own;
    const int64_t per_query = labels.dim_size(1);
    const int32_t* ids = Data<int32_t>(labels);
    const float* values = Data<float>(gradient);
    for (int64_t slot = n * per_query; slot < (n + count) * per_query; ++slot) {
      if (ids[slot] >= 0) own.push_back({ids[slot], static_cast<int>(slot / per_query - n), values[slot]});
    }
    std::stable_sort(own.begin(), own.end(),
                     [](const LabelGradient& a, const LabelGradient& b) { return a.class_id < b.class_id; });
    return own;
  }

  Reduction reduction_;
};

// Reads the slots of the ids [N, S], and checks them and their classes.
absl::Status ReadCandidates(OpKernelContext* context, const HeadInputs& inputs, CandidateSlots* slots) {
  const Tensor& ids = context->input(3);
  TF_RETURN_IF_ERROR(CheckClassIds("class_ids", ids, inputs.num_queries, inputs.num_classes));
  *slots = {Data<int32_t>(ids), ids.NumElements(), ids.dim_size(1), inputs.query};
  return CheckClass(inputs, FindBadCandidate(inputs.rows, *slots));
}

class SparseHeadCandidatesOp : public SparseHeadBase {
 public:
  using SparseHeadBase::SparseHeadBase;

  void Compute(OpKernelContext* context) override {
    HeadInputs inputs;
    CandidateSlots slots;
    OP_REQUIRES_OK(context, ReadInputs(context, group_size_, /*bias=*/nullptr, &inputs));
    OP_REQUIRES_OK(context, ReadCandidates(context, inputs, &slots));
    Tensor* scores;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(3).shape(), &scores));
    float* out = Data<float>(scores);
    const int64_t cost = slots.samples * (20 + 2 * inputs.rows.fan_in);
    ForEach(context, inputs.num_queries, cost,
            [&](int64_t first, int64_t last) { SparseScores(inputs.rows, slots, first, last, out); });
  }
};

class SparseHeadCandidatesGradOp : public SparseHeadBase {
 public:
  using SparseHeadBase::SparseHeadBase;

  void Compute(OpKernelContext* context) override {
    HeadInputs inputs;
    CandidateSlots slots;
    OP_REQUIRES_OK(context, ReadInputs(context, group_size_, /*bias=*/nullptr, &inputs));
    OP_REQUIRES_OK(context, ReadCandidates(context, inputs, &slots));
    const Tensor &ids = context->input(3), &gradient = context->input(4);
    OP_REQUIRES(context, gradient.shape() == ids.shape(),
                InvalidArgument("The gradient must have the shape of class_ids, ", ids.shape().DebugString(),
                                ", but has ", gradient.shape().DebugString(), "."));
    const int64_t fan_in = inputs.rows.fan_in;
    Tensor *query_gradient, *row_gradients, *class_ids;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &query_gradient));
    const float* g = Data<float>(gradient);
    float* of_query = Data<float>(query_gradient);
    std::vector<RowPosition> sorted;
    std::vector<int64_t> starts;
    const auto group = [&] {
      sorted = SortedByClass(slots, inputs.num_classes);
      starts = GroupStarts(sorted);
    };
    ForEachBeside(context, group, inputs.num_queries, inputs.num_inputs / 8 + slots.samples * (20 + 2 * fan_in),
                  [&](int64_t first, int64_t last) {
                    SparseQueryGradients(inputs.rows, slots, g, first, last, of_query);
                  });
    const int64_t touched = starts.size() - 1;
    OP_REQUIRES_OK(context, Allocate(context, 1, {touched, fan_in}, &row_gradients));
    OP_REQUIRES_OK(context, Allocate(context, 2, {touched}, &class_ids));
    float* of_rows = Data<float>(row_gradients);
    int32_t* rows = Data<int32_t>(class_ids);
    ForEach(context, touched, (20 + 2 * fan_in) * (1 + slots.count / std::max<int64_t>(touched, 1)),
            [&](int64_t first, int64_t last) {
              SparseRowGradients(inputs.rows, slots, g, sorted, starts, first, last, of_rows, rows);
            });
  }
};

#define TFXC_REGISTER(NAME, OP) REGISTER_KERNEL_BUILDER(Name(NAME).Device(tensorflow::DEVICE_CPU), OP)
TFXC_REGISTER("Tfxc>SparseHeadLogits", SparseHeadLogitsOp);
TFXC_REGISTER("Tfxc>SparseHeadLogitsGrad", SparseHeadLogitsGradOp);
TFXC_REGISTER("Tfxc>SparseHeadReduce", SparseHeadReduceOp);
TFXC_REGISTER("Tfxc>SparseHeadReduceGrad", SparseHeadReduceGradOp);
TFXC_REGISTER("Tfxc>SparseHeadCandidates", SparseHeadCandidatesOp);
TFXC_REGISTER("Tfxc>SparseHeadCandidatesGrad", SparseHeadCandidatesGradOp);

}  // namespace
}  // namespace tfxc
