// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/interruption.h>

#include <atomic>

namespace trireme {
namespace {

std::atomic<InterruptionCheck> current_check = nullptr;

}  // namespace

void set_interruption_check(InterruptionCheck check) noexcept { current_check = check; }

std::string interruption_reason() {
  const InterruptionCheck check = current_check;
  return check == nullptr ? std::string() : check();
}

}  // namespace trireme
