// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/detail/failures.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>

namespace trireme::detail {

std::string describe(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    std::string text = error.what();
    try {
      std::rethrow_if_nested(error);
    } catch (...) {
      text += "; because: " + describe(std::current_exception());
    }
    return text;
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

// Called while one is handled.
void Failures::keep_or_throw(const std::string& who) {
  if (group_.size() == 1) throw;
  const std::exception_ptr thrown = std::current_exception();
  try {
    throw;
  } catch (const CommError&) {
    throw;
  } catch (...) {
    if (exception_) return;
    exception_ = thrown;
    message_ = join_message(who, ": ", describe(thrown));
  }
}

void Failures::throw_on_all(std::string_view what) const {
  std::string messages;
  for (const std::string& message : comm::all_gather_text(message_, group_)) {
    if (message.empty()) continue;
    messages += (messages.empty() ? "" : "; ") + message;
  }
  const auto error = [&] {
    return TrainingError(join_message(what, " failed: ", messages),
                         "all ranks have stopped together; mend what is said here, and go on from "
                         "a checkpoint");
  };
  if (!exception_) throw error();
  try {
    std::rethrow_exception(exception_);
  } catch (...) {
    std::throw_with_nested(error());
  }
}

}  // namespace trireme::detail
