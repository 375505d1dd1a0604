// SPDX-License-Identifier: Apache-2.0
// Error handling for libjpeg and libpng. These libraries report an error by calling a function that
// must not return. An exception must not pass through their C frames, so that function leaves by
// longjmp.
#pragma once

#include <csetjmp>

namespace trireme::data::detail {

/// Calls `action(object)` and returns true, or returns false if the action left by longjmp(jump).
///
/// Neither `action` nor the functions it calls may have objects with destructors on the stack,
/// because longjmp destroys none. Never inlined, so that the registers of the caller are restored
/// as after any other call.
[[gnu::noinline]] inline bool returns(std::jmp_buf& jump, void (*action)(void*), void* object) {
  if (setjmp(jump) != 0) return false;
  action(object);
  return true;
}

}  // namespace trireme::data::detail
