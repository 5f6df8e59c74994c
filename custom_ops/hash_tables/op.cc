// Registers the construction of hash tables: its interface and its shapes.
#include "common/limits.h"
#include "common/registration.h"

namespace tfxc {

REGISTER_OP("Tfxc>HashTables")
    .Input("codes: uint16")
    .Output("offsets: int32")
    .Output("members: int32")
    .Attr("num_buckets: int >= 1")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      ShapeHandle codes;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &codes));
      int64_t num_buckets;
      TF_RETURN_IF_ERROR(ReadBounded(c, "num_buckets", kMostBuckets, &num_buckets));
      c->set_output(0, c->Matrix(c->Dim(codes, 1), num_buckets + 1));
      c->set_output(1, c->Matrix(c->Dim(codes, 1), c->Dim(codes, 0)));
      return absl::OkStatus();
    })
    .Doc("Sorts the classes into the buckets of every hash table, by their codes.");

REGISTER_OP("Tfxc>MoveInHashTables")
    .Input("codes: uint16")
    .Input("offsets: int32")
    .Input("members: int32")
    .Input("moved: int32")
    .Input("before: uint16")
    .Output("new_offsets: int32")
    .Output("new_members: int32")
    .SetShapeFn([](InferenceContext* c) -> absl::Status {
      c->set_output(0, c->input(1));
      c->set_output(1, c->input(2));
      return absl::OkStatus();
    })
    .Doc("Moves classes whose codes changed to their new buckets of every hash table.");

}  // namespace tfxc
