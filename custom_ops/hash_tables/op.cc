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

}  // namespace tfxc
