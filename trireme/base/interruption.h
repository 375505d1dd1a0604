// SPDX-License-Identifier: Apache-2.0
// Lets a program end the waits of its own threads. A language binding needs it: while a thread
// waits for other ranks, nobody else runs the handler of a signal such as that of Ctrl-C.
#pragma once

#include <chrono>
#include <string>

namespace trireme {

/// The longest time between two checks of a waiting thread.
inline constexpr std::chrono::milliseconds kInterruptionInterval{100};

/// Returns why the calling thread is to stop waiting, or an empty text. Must not throw.
using InterruptionCheck = std::string (*)();

/// Sets the check of this process; null for none. Threads that wait for other ranks call it a few
/// times a second, without holding a lock.
void set_interruption_check(InterruptionCheck check) noexcept;

/// Returns what the check returns, or an empty text if there is none.
std::string interruption_reason();

}  // namespace trireme
