// SPDX-License-Identifier: Apache-2.0
// Formats exceptions for people: removes LibTorch's stack frames, lists nested causes without
// repetition, and prints exceptions that nothing catches in the same form.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace trireme {

/// Returns `what()` without the stack frames that LibTorch's exceptions contain. TRIREME_STACK=1 in
/// the environment keeps the frames.
std::string message_of(const std::exception& error);

/// Returns true if a line of output belongs to such a stack frame and must be left out.
bool is_hidden_frame(std::string_view line);

/// Returns the message of any exception, followed by `; because: ` and the message of each
/// exception nested in it. A nested message that an outer one already contains is left out.
std::string message_of(const std::exception_ptr& exception);

/// Installs a terminate handler that prints uncaught exceptions and then aborts, so that a launcher
/// sees a failed rank. The output is `program: uncaught trireme::UsageError: message`, with one
/// further line for each nested exception. A terminate handler that was installed before runs after
/// this one, except the C++ library's default, which would repeat the message. A later
/// std::set_terminate replaces this handler. Calls after the first have no effect. Thread-safe.
void show_uncaught_exceptions();

}  // namespace trireme
