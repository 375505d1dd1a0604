// SPDX-License-Identifier: Apache-2.0
// A malloc that is not the C library's: to be preloaded.
#include <cstddef>

// NOLINTBEGIN: names of the C library
extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" [[gnu::visibility("default")]] void* malloc(std::size_t bytes) {
  return __libc_malloc(bytes);
}
// NOLINTEND
