// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/detail/callback_calls.h>

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

void CallbackCalls::keep(Callback& callback, std::string_view hook) {
  if (group_.size() == 1) throw;
  const std::exception_ptr thrown = std::current_exception();
  try {
    throw;
  } catch (const CommError&) {
    throw;
  } catch (...) {
    failed_.insert(&callback);
    if (exception_) return;
    exception_ = thrown;
    message_ = join_message(
        callback.name(), " on rank ", group_.rank(), ", in ", hook,
        global_step_ == 0 ? std::string(" before the first step")
                          : join_message(" in epoch ", epoch_, ", step ", global_step_, " of all"),
        ": ", describe(thrown));
  }
}

void CallbackCalls::throw_on_all() const {
  std::string messages;
  for (const std::string& message : comm::all_gather_text(message_, group_)) {
    if (message.empty()) continue;
    messages += (messages.empty() ? "" : "; ") + message;
  }
  const auto error = [&] {
    return TrainingError("a callback failed: " + messages,
                         "every rank has stopped at the same step; mend what the callback says, "
                         "and resume from a checkpoint");
  };
  if (!exception_) throw error();
  try {
    std::rethrow_exception(exception_);
  } catch (...) {
    std::throw_with_nested(error());
  }
}

}  // namespace trireme::detail
