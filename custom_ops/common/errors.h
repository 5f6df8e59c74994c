// The error that ops return for input they cannot take: it says what came, what was expected and how to fix it.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tfxc {

template <typename... Args>
absl::Status InvalidArgument(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

}  // namespace tfxc
