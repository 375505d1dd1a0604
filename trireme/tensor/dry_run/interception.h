// SPDX-License-Identifier: Apache-2.0
// A place between autograd and kernels that operators of a thread pass while it asks for it: a
// dispatch key that LibTorch has no kernels on.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

namespace trireme::tensor {

/// To be included by a thread (c10::impl::IncludeDispatchKeyGuard). Threads that do not pay
/// nothing.
inline constexpr auto kBelowAutograd = c10::DispatchKey::Fake;

/// Takes a call, and leaves its results on the stack; or returns false, having done nothing. `keys`
/// are those of the call.
using Interception = bool (*)(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                              torch::jit::Stack* stack);

/// Has every operator of threads that include the key come to `interception`, after those that were
/// added before and did not take it. What none takes goes its way. The same one twice counts once.
/// Thread-safe.
void intercept_below_autograd(Interception interception);

}  // namespace trireme::tensor
