// SPDX-License-Identifier: Apache-2.0
// libjpeg and libpng end a call that failed by a function that must not return. An exception must
// not pass through their C, so that function goes back here by longjmp.
#pragma once

#include <csetjmp>

namespace trireme::data::detail {

/// Calls `action(object)`; false where it ended by longjmp(jump). It may have no object with a
/// destructor on its stack, nor may what it calls: longjmp destroys none. Never inlined: what the
/// caller keeps in registers is then restored as after any other call.
[[gnu::noinline]] inline bool returns(std::jmp_buf& jump, void (*action)(void*), void* object) {
  if (setjmp(jump) != 0) return false;
  action(object);
  return true;
}

}  // namespace trireme::data::detail
