// SPDX-License-Identifier: Apache-2.0
// Runs or records one operator of a construction under deferred().
#pragma once

#include <trireme/parallel/init/construction.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <memory>

namespace trireme::detail {

/// Runs or records `op`; called by the fallback of kDeferredKey. Throws UsageError if the operator
/// cannot be recorded and needs values that depend on random numbers.
void call_deferred(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack& stack, const std::shared_ptr<Construction>& construction);

}  // namespace trireme::detail
