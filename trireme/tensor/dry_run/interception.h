// SPDX-License-Identifier: Apache-2.0
// A place between autograd and kernels at which a thread can intercept its operators. It uses a
// dispatch key for which LibTorch has no kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

namespace trireme::tensor {

/// The dispatch key that a thread includes to have its operators intercepted
/// (c10::impl::IncludeDispatchKeyGuard). Other threads pay nothing.
inline constexpr auto kBelowAutograd = c10::DispatchKey::Fake;

/// Handles a call and leaves its results on the stack, or returns false, having done nothing.
/// `keys` are the dispatch keys of the call.
using Interception = bool (*)(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                              torch::jit::Stack* stack);

/// Adds a handler for the operators of threads that include the key. A call is offered to the
/// handlers in the order in which they were added, until one takes it. A call that no handler takes
/// runs as usual. Adding a handler again has no effect. Thread-safe.
void intercept_below_autograd(Interception interception);

}  // namespace trireme::tensor
