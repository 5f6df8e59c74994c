// TensorFlow kernels of the log-sum-exp of candidates, parallel over queries and over classes.
#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_join.h"
#include "candidate_log_sum_exp/log_sum_exp.h"
#include "candidate_scores/candidate_op.h"
#include "common/limits.h"

namespace tfxc {
namespace {

// Refuses an input of another shape.
absl::Status CheckShape(OpKernelContext* context, int input, const char* name,
                        std::initializer_list<int64_t> expected) {
  const TensorShape& shape = context->input(input).shape();
  if (HasShape(shape, expected)) return absl::OkStatus();
  return InvalidArgument(name, " must have shape [", absl::StrJoin(expected, ","), "], but has ", shape.DebugString(),
                         ".");
}

class CandidateLogSumExpOp : public CandidateOp {
 public:
  using CandidateOp::CandidateOp;

 protected:
  enum Inputs { kLabelIds = 2, kClassIds, kOffsets };
  enum Outputs { kLabelScores, kLogSum, kLabelVectors, kShares, kMean, kSlots, kIds };

  absl::Status ReadIds(OpKernelContext* context, CandidateProblem* p) const override {
    TF_RETURN_IF_ERROR(CheckIds(context, kLabelIds, "label_ids", *p));
    TF_RETURN_IF_ERROR(CheckIds(context, kClassIds, "class_ids", *p));
    const Tensor &labels = context->input(kLabelIds), &candidates = context->input(kClassIds);
    TF_RETURN_IF_ERROR(CheckShape(context, kOffsets, "offsets", {candidates.dim_size(0), candidates.dim_size(1)}));
    const int64_t num_queries = labels.dim_size(0);
    // Each number is checked by itself first: sum and product may be beyond 64 bits.
    const bool are_few = labels.dim_size(1) <= kMostSlots && candidates.dim_size(1) <= kMostSlots;
    const int64_t samples = are_few ? labels.dim_size(1) + candidates.dim_size(1) : 0;
    if (!are_few || (samples > 0 && num_queries > kMostSlots / samples)) {
      return InvalidArgument("At most ", kMostSlots, " label_ids and class_ids are taken at once, but got ",
                             labels.shape().DebugString(), " and ", candidates.shape().DebugString(), ".");
    }
    Tensor* ids;
    TF_RETURN_IF_ERROR(Allocate(context, kIds, {num_queries, samples}, &ids));
    JoinIds(Data<int32_t>(labels), Data<int32_t>(candidates), Data<float>(context->input(kOffsets)), num_queries,
            labels.dim_size(1), candidates.dim_size(1), Data<int32_t>(ids));
    p->samples = samples;
    p->num_slots = ids->NumElements();
    p->ids = Data<int32_t>(ids);
    return absl::OkStatus();
  }

  void Run(OpKernelContext* context, const CandidateProblem& p) override {
    const int64_t num_queries = context->input(1).dim_size(0);
    const int64_t num_labels = context->input(kLabelIds).dim_size(1);
    const int64_t num_candidates = p.samples - num_labels;
    const float* offsets = Data<float>(context->input(kOffsets));
    Tensor *label_scores, *log_sum, *label_vectors, *shares, *mean;
    OP_REQUIRES_OK(context, Allocate(context, kLabelScores, {num_queries, num_labels}, &label_scores));
    OP_REQUIRES_OK(context, Allocate(context, kLogSum, {num_queries, 1}, &log_sum));
    OP_REQUIRES_OK(context, Allocate(context, kLabelVectors, {num_queries, num_labels, p.width}, &label_vectors));
    OP_REQUIRES_OK(context, Allocate(context, kShares, {num_queries, num_candidates}, &shares));
    OP_REQUIRES_OK(context, context->allocate_output(kMean, context->input(1).shape(), &mean));
    const LogSumExp out{num_labels,           offsets,
                        Data<float>(label_scores), Data<float>(label_vectors),
                        Data<float>(log_sum),      Data<float>(shares),
                        Data<float>(mean)};
    // The gradient needs the slots sorted; the sort runs here, while queries wait for their rows.
    const bool is_for_gradient = context->output_required(kSlots);
    absl::Status written;
    ForEachBeside(context, [&] { if (is_for_gradient) written = WriteSlots(context, SortSlots(p), kSlots); },
                  num_queries, 2 * QueryCost(p),
                  [&](int64_t first, int64_t last) { FoldCandidates(p, out, first, last); });
    OP_REQUIRES_OK(context, written);
  }
};

class CandidateLogSumExpGradOp : public CandidateOp {
 public:
  using CandidateOp::CandidateOp;

 protected:
  enum Inputs { kLabelVectors = 3, kShares, kMean, kSlots, kLabelGradient, kSumGradient };
  enum Outputs { kQueryGradient, kScoreGradients, kOffsetGradient, kRowGradients, kRows };

  void Run(OpKernelContext* context, const CandidateProblem& p) override {
    const Tensor& shares = context->input(kShares);
    const int64_t num_queries = context->input(1).dim_size(0);
    OP_REQUIRES(context, shares.dims() == 2 && shares.dim_size(0) == num_queries && shares.dim_size(1) <= p.samples,
                InvalidArgument("shares must have a row for each of ", num_queries, " queries and at most ", p.samples,
                                " columns, one for each candidate, but has shape ", shares.shape().DebugString(), "."));
    const int64_t num_candidates = shares.dim_size(1), num_labels = p.samples - num_candidates;
    OP_REQUIRES_OK(context, CheckShape(context, kLabelVectors, "label_vectors",
                                       {num_queries, num_labels, p.width}));
    OP_REQUIRES_OK(context, CheckShape(context, kMean, "mean", {num_queries, p.width}));
    OP_REQUIRES_OK(context, CheckShape(context, kLabelGradient, "label_gradient", {num_queries, num_labels}));
    OP_REQUIRES_OK(context, CheckShape(context, kSumGradient, "sum_gradient", {num_queries, 1}));
    const LogSumExpGradients given{num_labels,
                                   Data<float>(context->input(kLabelVectors)),
                                   Data<float>(shares),
                                   Data<float>(context->input(kMean)),
                                   Data<float>(context->input(kLabelGradient)),
                                   Data<float>(context->input(kSumGradient))};
    Tensor *query_gradient, *score_gradients;
    OP_REQUIRES_OK(context, context->allocate_output(kQueryGradient, context->input(1).shape(), &query_gradient));
    OP_REQUIRES_OK(context, context->allocate_output(kScoreGradients, context->input(2).shape(), &score_gradients));
    float *of_query = Data<float>(query_gradient), *of_scores = Data<float>(score_gradients);
    // A few hundred cycles a query: a usual batch takes less time than waking another thread.
    ForEach(context, num_queries, num_candidates + p.width + num_labels * (50 + p.width),
            [&](int64_t first, int64_t last) { UnfoldCandidates(p, given, first, last, of_query, of_scores); });
    if (context->output_required(kOffsetGradient)) WriteOffsetGradient(context, p, num_candidates, of_scores);
    if (!context->output_required(kRowGradients) && !context->output_required(kRows)) return;
    ClassSlots groups;
    OP_REQUIRES_OK(context, ReadSlots(context->input(kSlots), p, &groups));
    WriteRows(context, p, groups, of_scores, kRowGradients, kRows);
  }

 private:
  void WriteOffsetGradient(OpKernelContext* context, const CandidateProblem& p, int64_t num_candidates,
                           const float* of_scores) const {
    Tensor* offset_gradient;
    OP_REQUIRES_OK(context,
                   context->allocate_output(kOffsetGradient, context->input(kShares).shape(), &offset_gradient));
    float* of_offsets = Data<float>(offset_gradient);
    const int64_t num_queries = context->input(1).dim_size(0), num_labels = p.samples - num_candidates;
    for (int64_t n = 0; n < num_queries; ++n) {
      std::copy_n(of_scores + n * p.samples + num_labels, num_candidates, of_offsets + n * num_candidates);
    }
  }

  // The slots that WriteSlots wrote, with classes instead of rows.
  absl::Status ReadSlots(const Tensor& slots, const CandidateProblem& p, ClassSlots* groups) const {
    const RowPosition* given = Data<RowPosition>(slots);
    for (int64_t i = 0; i < slots.NumElements(); ++i) {
      const int64_t row = Row(given[i]), slot = Position(given[i]);
      const bool fits = slot < p.num_slots && p.ids[slot] >= 0 && row - row_offset_ == p.ids[slot] &&
                        (i == 0 || given[i - 1] < given[i]);
      if (!fits) {
        return InvalidArgument("slots[", i, "] is slot ", slot, " of row ", row,
                               "; expected those of class_ids, in ascending order of row and slot.");
      }
      groups->slots.push_back(given[i] - Pack(row_offset_, 0));
    }
    groups->starts = GroupStarts(groups->slots);
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfxc>CandidateLogSumExp").Device(tensorflow::DEVICE_CPU), CandidateLogSumExpOp);
REGISTER_KERNEL_BUILDER(Name("Tfxc>CandidateLogSumExpGrad").Device(tensorflow::DEVICE_CPU), CandidateLogSumExpGradOp);

}  // namespace
}  // namespace tfxc
