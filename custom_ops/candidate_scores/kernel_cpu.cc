// TensorFlow kernels of the scores of chosen classes, parallel over queries and over classes.
#include <algorithm>

#include "candidate_scores/candidate_op.h"
#include "candidate_scores/scores.h"

namespace tfxc {
namespace {

class CandidateScoresOp : public CandidateOp {
 public:
  using CandidateOp::CandidateOp;

 protected:
  void Run(OpKernelContext* context, const CandidateProblem& p) override {
    Tensor* scores;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(2).shape(), &scores));
    float* out = Data<float>(scores);
    ForEach(context, NumQueries(p), QueryCost(p),
            [&](int64_t first, int64_t last) { ScoreCandidates(p, first, last, out); });
  }
};

class CandidateScoresGradOp : public CandidateOp {
 public:
  using CandidateOp::CandidateOp;

 protected:
  enum Outputs { kQueryGradient, kRowGradients, kRows, kSlots };

  void Run(OpKernelContext* context, const CandidateProblem& p) override {
    const Tensor& gradient = context->input(3);
    OP_REQUIRES(context, gradient.shape() == context->input(2).shape(),
                InvalidArgument("The gradient must have the shape of class_ids, ",
                                context->input(2).shape().DebugString(), ", but has ",
                                gradient.shape().DebugString(), "."));
    const float* g = Data<float>(gradient);
    Tensor* query_gradient;
    OP_REQUIRES_OK(context, context->allocate_output(kQueryGradient, context->input(1).shape(), &query_gradient));
    float* dq = Data<float>(query_gradient);
    if (p.num_slots == 0) std::fill_n(dq, query_gradient->NumElements(), 0.0f);
    ClassSlots groups;
    ForEachBeside(context, [&] { groups = GroupByClass(p); }, NumQueries(p), QueryCost(p),
                  [&](int64_t first, int64_t last) {
                    CandidateQueryGradients(p, NumQueries(p) - last, NumQueries(p) - first, g, dq);
                  });
    // An optimizer that takes the slots saves a write and a read of a row for each touched class.
    if (context->output_required(kRowGradients) || context->output_required(kRows)) {
      WriteRows(context, p, groups, g, kRowGradients, kRows);
    }
    if (context->output_required(kSlots)) OP_REQUIRES_OK(context, WriteSlots(context, groups.slots, kSlots));
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfxc>CandidateScores").Device(tensorflow::DEVICE_CPU), CandidateScoresOp);
REGISTER_KERNEL_BUILDER(Name("Tfxc>CandidateScoresGrad").Device(tensorflow::DEVICE_CPU),
                        CandidateScoresGradOp);

}  // namespace
}  // namespace tfxc
