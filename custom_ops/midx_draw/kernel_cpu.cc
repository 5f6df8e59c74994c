// The TensorFlow kernel of the MIDX draw: it checks everything, then draws for the queries in parallel.
#include <atomic>
#include <cmath>

#include "common/checks.h"
#include "common/huge_pages.h"
#include "common/kernel.h"
#include "common/limits.h"
#include "midx_draw/draw.h"

namespace tfxc {
namespace {

// A row of the tensor of slots is a Slot.
constexpr int64_t kSlotNumbers = sizeof(Slot) / sizeof(int32_t);

absl::Status CheckShapes(OpKernelContext* context) {
  const TensorShape& logits = context->input(0).shape();
  const TensorShape& columns = context->input(1).shape();
  const TensorShape& mass = context->input(2).shape();
  const int64_t codewords = logits.dims() == 2 ? logits.dim_size(1) : 0;
  if (codewords == 0 || columns != logits || !HasShape(mass, {codewords, codewords})) {
    return InvalidArgument(
        "midx_draw needs row_logits [N, C], column_logits [N, C] and cell_mass [C, C], C >= 1, ", "but got ",
        logits.DebugString(), ", ", columns.DebugString(), " and ", mass.DebugString(), ".");
  }
  const TensorShape& offsets = context->input(3).shape();
  const TensorShape& slots = context->input(4).shape();
  if (!HasShape(offsets, {codewords * codewords + 1}) || slots.dims() != 2 || slots.dim_size(1) != kSlotNumbers) {
    return InvalidArgument("midx_draw needs cell_offsets [C * C + 1] and slots [L, ", kSlotNumbers, "], but for C = ",
                           codewords, " got ", offsets.DebugString(), " and ", slots.DebugString(), ".");
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const char* name, const Tensor& logits) {
  const float* values = Data<float>(logits);
  const int64_t width = logits.dim_size(1);
  if (AllFinite(values, logits.NumElements())) return absl::OkStatus();
  int64_t i = 0;
  while (std::isfinite(values[i])) ++i;
  return InvalidArgument(name, " must be finite, but row ", i / width, " (a query) holds ", values[i],
                         " at codeword ", i % width,
                         ". Check the query and the codebooks for NaN and overflow.");
}

absl::Status CheckOffsets(const int32_t* offsets, int64_t num_cells, int64_t num_classes) {
  bool monotone = offsets[0] == 0;
  for (int64_t cell = 0; cell < num_cells; ++cell) monotone &= offsets[cell] <= offsets[cell + 1];
  if (!monotone || offsets[num_cells] != num_classes) {
    return InvalidArgument("cell_offsets must start at 0, never decrease and end at L = ", num_classes,
                           ", but they start at ", offsets[0], ", end at ", offsets[num_cells],
                           monotone ? "." : " and are not monotone.", " Rebuild the index.");
  }
  return absl::OkStatus();
}

absl::Status CheckMass(const Cells& cells) {
  const int64_t num_cells = cells.num_codewords * cells.num_codewords;
  bool any_mass = false;
  for (int64_t cell = 0; cell < num_cells; ++cell) {
    const float mass = cells.mass[cell];
    const bool is_empty = cells.offsets[cell + 1] == cells.offsets[cell];
    if (!(mass >= 0.0f && std::isfinite(mass)) || (mass > 0.0f && is_empty)) {
      return InvalidArgument("cell_mass[", cell / cells.num_codewords, ", ", cell % cells.num_codewords, "] is ", mass,
                             is_empty ? ", but its cell holds no class." : ", but it is the summed weight of classes.",
                             " Rebuild the index.");
    }
    any_mass |= mass > 0.0f;
  }
  if (!any_mass) {
    return InvalidArgument(
        "All of cell_mass is 0: there is no class to draw. Build the index from at least one ",
        "class of positive weight.");
  }
  return absl::OkStatus();
}

// This check follows the draw, so that its cost does not depend on the number of classes.
absl::Status CheckDrawn(const Tensor& class_ids, const Tensor& log_prob, int64_t num_classes) {
  const int32_t* ids = Data<int32_t>(class_ids);
  const float* log_q = Data<float>(log_prob);
  const int64_t size = class_ids.NumElements();
  if (AllWithin(ids, size, 0, static_cast<int32_t>(num_classes - 1)) && AllFinite(log_q, size)) return absl::OkStatus();
  const auto is_class = [&](int64_t i) { return 0 <= ids[i] && ids[i] < num_classes; };
  int64_t i = 0;
  while (is_class(i) && std::isfinite(log_q[i])) ++i;
  if (!is_class(i)) {
    return InvalidArgument("slots lead to class ", ids[i], ", but ids are 0 to ", num_classes - 1,
                           ". Rebuild the index.");
  }
  return InvalidArgument("slots lead to class ", ids[i], ", whose weight is not a positive number. Rebuild the index.");
}

class MidxDrawOp : public tensorflow::OpKernel {
 public:
  explicit MidxDrawOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadBounded(context, "num_samples", kMostPerQuery, &num_samples_));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckShapes(context));
    const Tensor& row_logits = context->input(0);
    const Tensor& column_logits = context->input(1);
    OP_REQUIRES_OK(context, CheckFinite("row_logits", row_logits));
    OP_REQUIRES_OK(context, CheckFinite("column_logits", column_logits));
    const Tensor& slots = context->input(4);
    const int64_t num_codewords = row_logits.dim_size(1), num_classes = slots.dim_size(0);
    const int32_t* offsets = Data<int32_t>(context->input(3));
    OP_REQUIRES_OK(context, CheckOffsets(offsets, num_codewords * num_codewords, num_classes));
    const void* data = slots.data();
    if (in_huge_pages_.exchange(data) != data) MoveToHugePages(const_cast<void*>(data), slots.TotalBytes());
    const Cells cells(num_codewords, num_classes, Data<float>(context->input(2)), offsets,
                      reinterpret_cast<const Slot*>(Data<int32_t>(slots)));
    OP_REQUIRES_OK(context, CheckMass(cells));

    const int64_t num_queries = row_logits.dim_size(0);
    Tensor *class_ids, *log_prob, *log_partition;
    OP_REQUIRES_OK(context,
                   Allocate(context, 0, {num_queries, num_samples_}, &class_ids));
    OP_REQUIRES_OK(context, Allocate(context, 1, {num_queries, num_samples_}, &log_prob));
    OP_REQUIRES_OK(context, Allocate(context, 2, {num_queries}, &log_partition));
    Seed seed;
    OP_REQUIRES_OK(context, ReadSeed(context, 5, &seed));
    const CellQueries queries{Data<float>(row_logits), Data<float>(column_logits), seed, num_samples_};
    int32_t* ids = Data<int32_t>(class_ids);
    float *log_q = Data<float>(log_prob), *log_z = Data<float>(log_partition);
    const int64_t cost = num_codewords * num_codewords + 100 * num_samples_;
    ForEach(context, num_queries, cost,
            [&](int64_t first, int64_t last) { DrawClasses(cells, queries, first, last, ids, log_q, log_z); });
    OP_REQUIRES_OK(context, CheckDrawn(*class_ids, *log_prob, cells.num_classes));
  }

 private:
  int32_t num_samples_;
  std::atomic<const void*> in_huge_pages_{nullptr};  // the slots that were moved last
};

REGISTER_KERNEL_BUILDER(Name("Tfxc>MidxDraw").Device(tensorflow::DEVICE_CPU), MidxDrawOp);

}  // namespace
}  // namespace tfxc
