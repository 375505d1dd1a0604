// SPDX-License-Identifier: Apache-2.0
// Threads that complete futures. Callbacks of a future may wait for other operations of the same
// group, as those of PyTorch's PowerSGD hook do, so that no thread of an engine can run them.
#pragma once

#include <functional>

namespace trireme::comm {

/// Runs a task on another thread, at once: if all threads are busy, a new one starts. Tasks must
/// not throw. Thread-safety: safe, also in a forked child.
void run_on_completion_thread(std::function<void()> task);

}  // namespace trireme::comm
