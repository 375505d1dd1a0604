// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/exception_text.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>

#include <cxxabi.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <typeinfo>
#include <vector>

namespace trireme {
namespace {

// The text with which c10::Error::what() continues after the message. The class itself belongs to
// LibTorch, which this component does not include.
constexpr std::string_view kFirstFrame = "Exception raised from ";

std::exception_ptr nested_in(const std::exception& error) {
  const auto* const nested = dynamic_cast<const std::nested_exception*>(&error);
  return nested == nullptr ? nullptr : nested->nested_ptr();
}

// Returns the name of the type, such as `trireme::DataError`, without the wrapper that
// std::throw_with_nested adds.
std::string type_of(const std::exception& error) {
  int failure = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &failure), std::free);
  std::string name = text ? text.get() : typeid(error).name();
  constexpr std::string_view kNested = "std::_Nested_exception<";
  if (name.starts_with(kNested) && name.ends_with('>')) {
    name = name.substr(kNested.size(), name.size() - kNested.size() - 1);
    constexpr std::string_view kConst = " const";
    if (name.ends_with(kConst)) name.resize(name.size() - kConst.size());
  }
  return name;
}

// One exception of a chain of nested exceptions.
struct Link {
  std::string type;
  std::string message;
  bool has_hidden_frames = false;
};

// Returns the exception and those nested in it, outermost first. Leaves out exceptions whose
// message an outer one already contains.
std::vector<Link> chain_of(std::exception_ptr exception) {
  std::vector<Link> chain;
  while (exception) {
    Link link{.type = {},
              .message = "an exception that is no std::exception",
              .has_hidden_frames = false};
    std::exception_ptr inner;
    try {
      std::rethrow_exception(exception);
    } catch (const std::exception& error) {
      link = {.type = type_of(error), .message = message_of(error), .has_hidden_frames = false};
      link.has_hidden_frames = link.message != error.what();
      inner = nested_in(error);
    } catch (...) {  // NOLINT(bugprone-empty-catch): `link` already says what is known
    }
    bool is_known = false;
    for (const Link& outer : chain) {
      is_known = is_known || outer.message.find(link.message) != std::string::npos;
    }
    if (!is_known) chain.push_back(std::move(link));
    exception = std::move(inner);
  }
  return chain;
}

std::terminate_handler previous_handler = nullptr;

void write_to_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
}

pid_t process_of_handler = 0;

// Flushes what the program printed before it failed. Never waits: another thread may be printing at
// this moment, or the reader of a pipe may not read. If the reader has closed the pipe, no SIGPIPE
// is raised. In a forked child nothing is flushed, because the buffer belongs to the parent, which
// writes it itself.
void flush_standard_output() {
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  if (::getpid() != process_of_handler || ::poll(&output, 1, 0) != 1) return;
  if ((output.revents & (POLLERR | POLLNVAL)) != 0 || ::ftrylockfile(stdout) != 0) return;
  ::fflush_unlocked(stdout);
  ::funlockfile(stdout);
}

// Prints the chain of exceptions. Returns false if it could not.
bool show(const std::exception_ptr& exception) noexcept {
  try {
    std::string text;
    bool has_hidden_frames = false;
    for (const Link& link : chain_of(exception)) {
      if (link.type.empty()) return false;  // the handler of the C++ library names the type
      text += text.empty() ? std::string(program_invocation_short_name) + ": uncaught "
                           : std::string("  because of ");
      text += link.type + ": " + link.message + "\n";
      has_hidden_frames = has_hidden_frames || link.has_hidden_frames;
    }
    if (has_hidden_frames) text += "  hint: TRIREME_STACK=1 in the environment shows the stack\n";
    write_to_stderr(text);
    return true;
  } catch (...) {
    return false;
  }
}

[[noreturn]] void end_with_message() {
  // Only one thread prints and ends the process. Other threads that fail meanwhile wait for that.
  static std::atomic_flag is_ending = ATOMIC_FLAG_INIT;
  thread_local bool is_here = false;
  if (is_here) std::abort();
  is_here = true;
  while (is_ending.test_and_set()) ::pause();
  flush_standard_output();
  const std::exception_ptr exception = std::current_exception();
  const bool is_shown = exception && show(exception);
  const bool is_of_library = previous_handler == __gnu_cxx::__verbose_terminate_handler;
  // The default handler of the C++ library would print the message a second time.
  if (previous_handler != nullptr && !(is_shown && is_of_library)) previous_handler();
  std::abort();
}

}  // namespace

std::string message_of(const std::exception& error) {
  std::string message = error.what();
  const std::size_t frames = message.find(join_message("\n", kFirstFrame));
  if (frames == std::string::npos) return message;
  // Text after the frames was added by code that rethrew the whole message; it is kept.
  std::size_t end = frames;
  while (end != std::string::npos && is_hidden_frame(std::string_view(message).substr(end + 1))) {
    end = message.find('\n', end + 1);
  }
  const bool is_last = end == std::string::npos || end + 1 == message.size();
  message.erase(frames, is_last ? std::string::npos : end - frames);
  return message;
}

bool is_hidden_frame(std::string_view line) {
  return (line.starts_with(kFirstFrame) || line.starts_with("frame #")) &&
         Environment::of_process().find("TRIREME_STACK") != "1";
}

std::string message_of(const std::exception_ptr& exception) {
  std::string text;
  for (const Link& link : chain_of(exception)) {
    text += (text.empty() ? "" : "; because: ") + link.message;
  }
  return text;
}

void show_uncaught_exceptions() {
  static std::once_flag once;
  std::call_once(once, [] {
    process_of_handler = ::getpid();
    previous_handler = std::set_terminate(end_with_message);
  });
}

}  // namespace trireme
