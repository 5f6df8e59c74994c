// The one error that ops give for what they cannot take: it says what came, what was expected and how to mend it.
#ifndef TFXC_COMMON_ERRORS_H_
#define TFXC_COMMON_ERRORS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tfxc {

template <typename... Args>
absl::Status InvalidArgument(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

}  // namespace tfxc

#endif  // TFXC_COMMON_ERRORS_H_
