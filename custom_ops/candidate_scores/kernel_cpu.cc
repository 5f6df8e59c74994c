// Scores of chosen classes, and their gradients, read straight from the rows of the table: there is no
// [N, S, D] tensor on the way forward, and on the way back one gradient row for each class touched.
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/kernel.h"
#include "common/limits.h"
#include "common/row_sort.h"
#include "common/simd.h"
#include "common/vectorize.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfxc {
namespace {

using tensorflow::Var;

// Rows asked for ahead of their use: enough to cover a read from memory at D = 64.
constexpr int64_t kPrefetchDistance = 16;
// A class row shorter than this is not scaled up to length one, and gets no gradient.
constexpr float kMinNorm = 1e-12f;
constexpr float kMinSquaredNorm = 1e-24f;

struct Problem {
  const float* table;  // from the first class on
  const float* query;
  const int32_t* ids;
  int64_t num_slots;  // N * S
  int64_t samples;    // S
  int64_t width;      // D
  int64_t num_classes;  // L
  bool normalize;

  const float* Row(int64_t slot) const { return table + static_cast<int64_t>(ids[slot]) * width; }
  TFXC_INLINE void Prefetch(int64_t slot) const {
    if (slot < num_slots && ids[slot] >= 0) PrefetchRow(Row(slot), width);
  }
};

// 1 / max(|row|, kMinNorm); is_short tells that the maximum chose the constant.
TFXC_INLINE float InverseNorm(const float* row, int64_t width, bool* is_short) {
  const float squared_norm = Dot(row, row, width);
  *is_short = squared_norm <= kMinSquaredNorm;
  return 1.0f / (*is_short ? kMinNorm : std::sqrt(squared_norm));
}

TFXC_VECTORIZE void Score(const Problem& p, int64_t first, int64_t last, float* scores) {
  for (int64_t n = first; n < last; ++n) {
    const float* query = p.query + n * p.width;
    for (int64_t slot = n * p.samples; slot < (n + 1) * p.samples; ++slot) {
      p.Prefetch(slot + kPrefetchDistance);
      if (p.ids[slot] < 0) {
        scores[slot] = 0.0f;
        continue;
      }
      const float* row = p.Row(slot);
      bool is_short;
      const float scale = p.normalize ? InverseNorm(row, p.width, &is_short) : 1.0f;
      scores[slot] = scale * Dot(query, row, p.width);
    }
  }
}

TFXC_INLINE void ZeroRow(float* out, int64_t width) { std::fill(out, out + width, 0.0f); }

// query_gradient[n] = sum over its slots of gradient * class vector.
TFXC_VECTORIZE void QueryGradients(const Problem& p, int64_t first, int64_t last, const float* gradients,
                                   float* query_gradients) {
  for (int64_t n = first; n < last; ++n) {
    float* out = query_gradients + n * p.width;
    ZeroRow(out, p.width);
    for (int64_t slot = n * p.samples; slot < (n + 1) * p.samples; ++slot) {
      p.Prefetch(slot + kPrefetchDistance);
      if (p.ids[slot] < 0 || gradients[slot] == 0.0f) continue;
      const float* row = p.Row(slot);
      bool is_short;
      const float scale = p.normalize ? InverseNorm(row, p.width, &is_short) : 1.0f;
      AddScaled(gradients[slot] * scale, row, out, p.width);
    }
  }
}

// The slots of one class are neighbours in `slots`; class u owns those from starts[u] to starts[u + 1].
struct ClassSlots {
  std::vector<RowPosition> slots;
  std::vector<int64_t> starts;
  int64_t NumClasses() const { return starts.size() - 1; }
};

ClassSlots GroupByClass(const Problem& p) {
  ClassSlots groups;
  groups.slots.reserve(p.num_slots);
  for (int64_t slot = 0; slot < p.num_slots; ++slot) {
    if (p.ids[slot] >= 0) groups.slots.push_back(Pack(p.ids[slot], slot));
  }
  SortByRow(p.num_classes, &groups.slots);
  groups.starts = GroupStarts(groups.slots);
  return groups;
}

// row_gradient[u] = sum over the slots of class u of gradient * query. Normalised scores: of that sum what is
// perpendicular to the class vector, over the vector's length; the projection is linear, so once a class is enough.
TFXC_VECTORIZE void RowGradients(const Problem& p, const ClassSlots& groups, int64_t first, int64_t last,
                                 const float* gradients, float* row_gradients) {
  for (int64_t u = first; u < last; ++u) {
    float* out = row_gradients + u * p.width;
    ZeroRow(out, p.width);
    for (int64_t i = groups.starts[u]; i < groups.starts[u + 1]; ++i) {
      const int64_t slot = Position(groups.slots[i]);
      AddScaled(gradients[slot], p.query + slot / p.samples * p.width, out, p.width);
    }
    if (!p.normalize) continue;
    const float* row = p.table + Row(groups.slots[groups.starts[u]]) * p.width;
    bool is_short;
    const float scale = InverseNorm(row, p.width, &is_short);
    const float along = is_short ? 0.0f : Dot(out, row, p.width) * scale * scale;
    for (int64_t d = 0; d < p.width; ++d) out[d] = is_short ? 0.0f : scale * (out[d] - along * row[d]);
  }
}

// What forward and backward share: the attributes, the lookup of the table and all checks.
class CandidateScoresBase : public tensorflow::OpKernel {
 public:
  explicit CandidateScoresBase(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("normalize", &normalize_));
    OP_REQUIRES_OK(context, context->GetAttr("row_offset", &row_offset_));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<Var> table;
    OP_REQUIRES_OK(context,
                   tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &table));
    // The lock keeps writers away while rows are read in place, so nothing is copied and the
    // variable need not enter copy-on-read mode.
    tensorflow::tf_shared_lock lock(*table->mu());
    Problem problem;
    OP_REQUIRES_OK(context, Check(context, *table, &problem));
    Run(context, problem);
  }

 protected:
  virtual void Run(OpKernelContext* context, const Problem& problem) = 0;

  template <typename Work>
  static void ShardOverQueries(OpKernelContext* context, const Problem& p, int64_t cost_per_float,
                               Work work) {
    const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
    const int64_t queries = p.samples == 0 ? 0 : p.num_slots / p.samples;
    const int64_t cost = p.samples * (100 + cost_per_float * p.width);
    tensorflow::Shard(workers.num_threads, workers.workers, queries, cost, work);
  }

  int64_t row_offset_;

 private:
  absl::Status Check(OpKernelContext* context, Var& variable, Problem* p) const {
    const Tensor& table = *variable.tensor();
    const Tensor& query = context->input(1);
    const Tensor& ids = context->input(2);
    if (!variable.is_initialized || table.dtype() != tensorflow::DT_FLOAT || table.dims() != 2) {
      return InvalidArgument("candidate_scores needs an initialised float32 table [L, D], but the table is ",
                             variable.DebugString(), ".");
    }
    if (query.dims() != 2 || ids.dims() != 2 || query.dim_size(0) != ids.dim_size(0) ||
        query.dim_size(1) != table.dim_size(1)) {
      return InvalidArgument(
          "candidate_scores needs table [L, D], query [N, D] and class_ids [N, S], but got ",
          table.shape().DebugString(), ", ", query.shape().DebugString(), " and ", ids.shape().DebugString(),
          ".");
    }
    if (ids.NumElements() > kMostSlots) {
      return InvalidArgument("candidate_scores takes at most ", kMostSlots, " class_ids at once, but got ",
                             ids.shape().DebugString(), ".");
    }
    p->num_classes = table.dim_size(0) - row_offset_;
    if (p->num_classes < 0) {
      return InvalidArgument("row_offset is ", row_offset_, ", but the table has ", table.dim_size(0),
                             " rows.");
    }
    p->width = query.dim_size(1);
    p->samples = ids.dim_size(1);
    p->num_slots = ids.NumElements();
    p->ids = Data<int32_t>(ids);
    p->query = Data<float>(query);
    p->table = Data<float>(table) + row_offset_ * p->width;
    p->normalize = normalize_;
    return CheckIds(*p);
  }

  static absl::Status CheckIds(const Problem& p) {
    const int64_t num_classes = p.num_classes;
    const auto is_bad = [num_classes](int32_t id) { return id < -1 || id >= num_classes; };
    bool any_bad = false;
    for (int64_t slot = 0; slot < p.num_slots; ++slot) any_bad |= is_bad(p.ids[slot]);
    if (!any_bad) return absl::OkStatus();
    const int64_t slot = std::find_if(p.ids, p.ids + p.num_slots, is_bad) - p.ids;
    return InvalidArgument("class_ids[", slot / p.samples, ", ", slot % p.samples, "] is ", p.ids[slot],
                           ", but there are ", num_classes, " classes: ids are 0 to ", num_classes - 1,
                           ", or -1 for an empty slot.");
  }

  bool normalize_;
};

class CandidateScoresOp : public CandidateScoresBase {
 public:
  using CandidateScoresBase::CandidateScoresBase;

 protected:
  void Run(OpKernelContext* context, const Problem& p) override {
    Tensor* scores;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(2).shape(), &scores));
    float* out = Data<float>(scores);
    ShardOverQueries(context, p, 1, [&](int64_t first, int64_t last) { Score(p, first, last, out); });
  }
};

class CandidateScoresGradOp : public CandidateScoresBase {
 public:
  using CandidateScoresBase::CandidateScoresBase;

 protected:
  void Run(OpKernelContext* context, const Problem& p) override {
    const Tensor& gradient = context->input(3);
    OP_REQUIRES(context, gradient.shape() == context->input(2).shape(),
                InvalidArgument("The gradient must have the shape of class_ids, ",
                                context->input(2).shape().DebugString(), ", but has ",
                                gradient.shape().DebugString(), "."));
    const ClassSlots groups = GroupByClass(p);
    const int64_t touched = groups.NumClasses();
    Tensor *query_gradient, *row_gradients, *rows;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(1).shape(), &query_gradient));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({touched, p.width}), &row_gradients));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({touched}), &rows));
    const float* g = Data<float>(gradient);
    float* dq = Data<float>(query_gradient);
    float* dw = Data<float>(row_gradients);
    int32_t* out_rows = Data<int32_t>(rows);
    for (int64_t u = 0; u < touched; ++u) {
      out_rows[u] = static_cast<int32_t>(Row(groups.slots[groups.starts[u]]) + row_offset_);
    }
    if (p.num_slots == 0) std::fill(dq, dq + query_gradient->NumElements(), 0.0f);
    ShardOverQueries(context, p, 1,
                     [&](int64_t first, int64_t last) { QueryGradients(p, first, last, g, dq); });
    const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
    const int64_t cost = (100 + p.width) * (1 + p.num_slots / std::max<int64_t>(touched, 1));
    tensorflow::Shard(workers.num_threads, workers.workers, touched, cost, [&](int64_t first, int64_t last) {
      RowGradients(p, groups, first, last, g, dw);
    });
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfxc>CandidateScores").Device(tensorflow::DEVICE_CPU), CandidateScoresOp);
REGISTER_KERNEL_BUILDER(Name("Tfxc>CandidateScoresGrad").Device(tensorflow::DEVICE_CPU),
                        CandidateScoresGradOp);

}  // namespace
}  // namespace tfxc
