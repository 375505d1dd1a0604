// SPDX-License-Identifier: Apache-2.0
// Exceptions as text for people: without LibTorch's stack frames, each cause told once, and shown
// like that too where nothing catches them.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace trireme {

/// Returns `what()` without the stack frames that LibTorch's exceptions carry. TRIREME_STACK=1 in
/// the environment keeps them.
std::string message_of(const std::exception& error);

/// Whether a line of output is of such stack frames, and to be left out.
bool is_hidden_frame(std::string_view line);

/// Returns the same for any exception, followed by `; because: ` and those nested in it, where they
/// say something that it does not.
std::string message_of(const std::exception_ptr& exception);

/// Shows exceptions that nothing catches as `program: uncaught trireme::UsageError: message`, each
/// nested one on a line of its own, and then aborts: a launcher sees a rank that failed. A handler
/// that the program has set before runs afterwards; std::set_terminate after this call replaces it.
/// Calls after the first change nothing. Thread-safe.
void show_uncaught_exceptions();

}  // namespace trireme
