// The base of the ops over all classes: it reads their inputs, and cuts the classes into shards.
#pragma once

#include <memory>
#include <string>

#include "common/kernel.h"
#include "common/limits.h"
#include "common/reduction.h"
#include "dense_scan/blocks.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfxc::dense_scan {

struct Problem {
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;
  // Keeps writers away while rows are read in place.
  std::unique_ptr<tensorflow::tf_shared_lock> lock;
  const float *query, *bias;  // bias may be null
  Table table;  // from the first class on
  int64_t num_queries, dim, num_classes, num_rows;
};

class DenseScanBase : public tensorflow::OpKernel {
 public:
  explicit DenseScanBase(OpKernelConstruction* context) : OpKernel(context) {
    std::string name;
    OP_REQUIRES_OK(context, context->GetAttr("reduction", &name));
    OP_REQUIRES_OK(context, context->GetAttr("num_classes", &num_classes_));
    OP_REQUIRES_OK(context, context->GetAttr("row_offset", &row_offset_));
    OP_REQUIRES_OK(context, context->GetAttr("normalize", &normalize_));
    reduction_ = ReductionNamed(name);
  }

 protected:
  absl::Status Read(OpKernelContext* context, Problem* p) const {
    TF_RETURN_IF_ERROR(LookupResource(context, tensorflow::HandleFromInput(context, 1), &p->variable));
    p->lock = std::make_unique<tensorflow::tf_shared_lock>(*p->variable->mu());
    const Tensor &query = context->input(0), &bias = context->input(2), &table = *p->variable->tensor();
    if (!p->variable->is_initialized || !IsTableType(table) || table.dims() != 2 || query.dims() != 2 ||
        table.dim_size(1) != query.dim_size(1) || bias.dims() != 1 ||
        (bias.dim_size(0) != 0 && bias.dim_size(0) != num_classes_)) {
      return InvalidArgument("A scan of ", num_classes_, " classes needs a table [L, D] of float32 or bfloat16, query ",
                             "[N, D] and bias [L] or [0], but got ", p->variable->DebugString(), ", ", query.shape().DebugString(),
                             " and ", bias.shape().DebugString(), ".");
    }
    if (num_classes_ > kMostClasses || row_offset_ > table.dim_size(0) - num_classes_) {
      return InvalidArgument("There are ", num_classes_, " classes from row ", row_offset_, " on, but the table has ",
                             table.dim_size(0), " rows, and a scan takes at most ", kMostClasses, " classes.");
    }
    p->dim = query.dim_size(1);
    p->num_queries = query.dim_size(0);
    p->num_classes = num_classes_;
    p->num_rows = table.dim_size(0);
    p->query = Data<float>(query);
    p->table = TableOf(table, row_offset_);
    p->bias = bias.dim_size(0) == 0 ? nullptr : Data<float>(bias);
    return absl::OkStatus();
  }

  // Calls work(shard, classes of the shard) on TensorFlow's threads.
  template <typename Work>
  void ForEachShard(OpKernelContext* context, const Problem& p, int64_t num_shards, int64_t num_queries,
                    const Work& work) const {
    const int64_t cost = p.num_classes / num_shards * p.dim * num_queries / 16;
    ForEach(context, num_shards, cost, [&](int64_t first, int64_t last) {
      for (int64_t shard = first; shard < last; ++shard) work(shard, Shard(p.num_classes, num_shards, shard));
    });
  }

  Reduction reduction_;
  int64_t num_classes_, row_offset_;
  bool normalize_;
};

}  // namespace tfxc::dense_scan
