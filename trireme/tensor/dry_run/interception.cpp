// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dry_run/interception.h>

#include <trireme/base/error.h>
#include <trireme/tensor/fallback.h>

#include <array>
#include <atomic>
#include <mutex>

namespace trireme::tensor {
namespace {

// Each place is written at most once, from the front. Every call reads them without a lock: release
// on the store and acquire on the load make the handler's own state visible.
std::array<std::atomic<Interception>, 4> interceptions = {};

void ask(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  for (const std::atomic<Interception>& interception : interceptions) {
    const Interception handler = interception.load(std::memory_order_acquire);
    if (handler == nullptr) break;
    if (handler(op, keys, stack)) return;
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kBelowAutograd),
                     stack);
}

}  // namespace

void intercept_below_autograd(Interception interception) {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  install_fallback<&ask>(kBelowAutograd);
  for (std::atomic<Interception>& place : interceptions) {
    if (place == interception) return;
    if (place != nullptr) continue;
    place.store(interception, std::memory_order_release);
    return;
  }
  throw InternalError("more interceptions below autograd than there are places for",
                      "this is a defect in Trireme; please report it");
}

}  // namespace trireme::tensor
