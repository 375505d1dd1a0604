// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/loop/callback_calls.h>

#include <trireme/base/error.h>

namespace trireme::detail {

std::string CallbackCalls::name_of(std::string_view doing) const {
  return join_message("rank ", rank_, ", ", doing, place());
}

std::string CallbackCalls::name_of(const Callback& callback, std::string_view hook) const {
  return join_message("callback ", callback.name(), " on rank ", rank_, ", in ", hook, place());
}

std::string CallbackCalls::place() const {
  if (global_step_ == 0) return " before the first step";
  return join_message(" in epoch ", epoch_, ", step ", global_step_, " of all");
}

}  // namespace trireme::detail
