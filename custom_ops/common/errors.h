// The error that ops return for input they cannot take: it says what came, what was expected and how to fix it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tfxc {

template <typename... Args>
absl::Status InvalidArgument(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// Reads an attribute of at least 1 for a kernel or a shape function; InvalidArgument above `most`.
template <typename Context, typename Integer>
absl::Status ReadBounded(Context* context, const char* name, int64_t most, Integer* value) {
  const absl::Status status = context->GetAttr(name, value);
  if (!status.ok() || *value <= most) return status;
  return InvalidArgument(name, " must be 1 to ", most, ", but is ", *value, ".");
}

}  // namespace tfxc
