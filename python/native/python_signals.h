// SPDX-License-Identifier: Apache-2.0
// Runs Python's signal handlers while the main thread waits for other ranks, so that Ctrl-C ends
// the wait.
#pragma once

namespace trireme::python {

/// Lets waits of the calling thread end when a signal handler of Python raises an exception. Call
/// it on the main thread, with the GIL.
void watch_signals_of_this_thread();

/// Restores the exception that a signal handler has raised in a wait of this thread, as Python's
/// current exception. Returns false if there is none. Needs the GIL.
bool restore_exception_of_signal();

}  // namespace trireme::python
