// SPDX-License-Identifier: Apache-2.0
// Shows each call of an operator to the observers of its thread (effects.h).
#pragma once

#include <trireme/parallel/recompute/effects.h>
#include <trireme/tensor/dry_run/interception.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>

namespace trireme::detail {

/// Returns the innermost observer of this thread; null if there is none.
Observer*& innermost_observer() noexcept;

/// Returns the dispatch keys that a thread must include so that its operators are observed.
c10::DispatchKeySet observed_keys();

/// Returns a tensor like `tensor` over other memory, without autograd.
at::Tensor over(const at::Tensor& tensor, const c10::Storage& memory);

}  // namespace trireme::detail
