// Moves a large buffer to huge pages: rows scattered over gigabytes otherwise miss the processor's table of page
// addresses at almost every access, which costs more than the rows themselves.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace tfxc {

// What to do with the small pages that the buffer may have already. Fresh memory has none: the threads that first write
// it get its pages, in parallel.
enum class SmallPages { kMove, kLeave };

// Best effort: where the kernel cannot or may not, the buffer stays as it is. Its values never change.
inline void MoveToHugePages(void* data, size_t num_bytes, SmallPages small = SmallPages::kMove) {
#ifdef __linux__
#ifndef MADV_COLLAPSE
  constexpr int MADV_COLLAPSE = 25;  // since Linux 6.1; older headers lack the name
#endif
  constexpr uintptr_t kHugePage = uintptr_t{1} << 21;
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t end = (address + num_bytes) & ~(kHugePage - 1);
  if (begin >= end) return;
  void* const pages = reinterpret_cast<void*>(begin);
  if (madvise(pages, end - begin, MADV_HUGEPAGE) == 0 && small == SmallPages::kMove) {
    madvise(pages, end - begin, MADV_COLLAPSE);
  }
#endif
}

}  // namespace tfxc
