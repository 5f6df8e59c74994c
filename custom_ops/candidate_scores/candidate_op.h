// The base of the kernels of ops on candidates.
#pragma once

#include <algorithm>

#include "candidate_scores/scores.h"
#include "common/class_ids.h"
#include "common/kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfxc {

// The attributes, the lookup of the table, the checks of the first inputs, table [rows, D], query [N, D] and, unless an
// op reads them itself, class_ids [N, S], and the gradient of the table.
class CandidateOp : public tensorflow::OpKernel {
 public:
  explicit CandidateOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("normalize", &normalize_));
    OP_REQUIRES_OK(context, context->GetAttr("row_offset", &row_offset_));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> table;
    OP_REQUIRES_OK(context,
                   tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &table));
    // The lock keeps writers away while rows are read in place, so nothing is copied and the
    // variable need not enter copy-on-read mode.
    tensorflow::tf_shared_lock lock(*table->mu());
    CandidateProblem problem;
    OP_REQUIRES_OK(context, Check(context, *table, &problem));
    Run(context, problem);
  }

 protected:
  virtual void Run(OpKernelContext* context, const CandidateProblem& problem) = 0;

  // Sets ids, samples and num_slots of a problem, whose other fields are set.
  virtual absl::Status ReadIds(OpKernelContext* context, CandidateProblem* p) const {
    TF_RETURN_IF_ERROR(CheckIds(context, 2, "class_ids", *p));
    p->samples = context->input(2).dim_size(1);
    p->num_slots = context->input(2).NumElements();
    p->ids = Data<int32_t>(context->input(2));
    return absl::OkStatus();
  }

  // Checks that an input holds class ids for each query.
  static absl::Status CheckIds(OpKernelContext* context, int input, const char* name, const CandidateProblem& p) {
    return CheckClassIds(name, context->input(input), context->input(1).dim_size(0), p.num_classes);
  }

  static int64_t NumQueries(const CandidateProblem& p) { return p.samples == 0 ? 0 : p.num_slots / p.samples; }
  static int64_t QueryCost(const CandidateProblem& p) { return p.samples * (100 + p.width); }

  // The table's gradient from score gradients g [N, S]: one row for each touched class, and the class.
  void WriteRows(OpKernelContext* context, const CandidateProblem& p, const ClassSlots& groups, const float* g,
                 int row_gradients_output, int rows_output) const {
    Tensor *row_gradients, *rows;
    const int64_t touched = groups.NumClasses();
    OP_REQUIRES_OK(context, Allocate(context, row_gradients_output, {touched, p.width}, &row_gradients));
    OP_REQUIRES_OK(context, Allocate(context, rows_output, {touched}, &rows));
    float* dw = Data<float>(row_gradients);
    int32_t* out_rows = Data<int32_t>(rows);
    const int64_t cost = (100 + p.width) * (1 + p.num_slots / std::max<int64_t>(touched, 1));
    ForEach(context, touched, cost, [&](int64_t first, int64_t last) {
      for (int64_t u = first; u < last; ++u) {
        out_rows[u] = static_cast<int32_t>(Row(groups.slots[groups.starts[u]]) + row_offset_);
      }
      CandidateRowGradients(p, groups, first, last, g, dw);
    });
  }

  // Sorted slots, as row of the table << 32 | slot.
  absl::Status WriteSlots(OpKernelContext* context, const std::vector<RowPosition>& sorted, int output) const {
    Tensor* slots;
    const int64_t count = sorted.size();
    TF_RETURN_IF_ERROR(Allocate(context, output, {count}, &slots));
    const RowPosition offset = Pack(row_offset_, 0);
    std::transform(sorted.begin(), sorted.end(), Data<RowPosition>(slots),
                   [&](RowPosition slot) { return slot + offset; });
    return absl::OkStatus();
  }

  int64_t row_offset_;

 private:
  absl::Status Check(OpKernelContext* context, tensorflow::Var& variable, CandidateProblem* p) const {
    const Tensor& table = *variable.tensor();
    const Tensor& query = context->input(1);
    if (!variable.is_initialized || !IsTableType(table) || table.dims() != 2) {
      return InvalidArgument("candidates need an initialised table [L, D] of float32 or bfloat16, but the ",
                             "table is ", variable.DebugString(), ".");
    }
    if (query.dims() != 2 || query.dim_size(1) != table.dim_size(1)) {
      return InvalidArgument("candidates need table [L, D] and query [N, D], but got ", table.shape().DebugString(),
                             " and ", query.shape().DebugString(), ".");
    }
    p->num_classes = table.dim_size(0) - row_offset_;
    if (p->num_classes < 0) {
      return InvalidArgument("row_offset is ", row_offset_, ", but the table has ", table.dim_size(0),
                             " rows.");
    }
    p->width = query.dim_size(1);
    p->query = Data<float>(query);
    p->table = TableOf(table, row_offset_);
    p->normalize = normalize_;
    return ReadIds(context, p);
  }

  bool normalize_;
};

}  // namespace tfxc
