// SPDX-License-Identifier: Apache-2.0
// A call of an operator, shown to the observers of its thread (effects.h).
#pragma once

#include <trireme/parallel/recompute/effects.h>
#include <trireme/tensor/dry_run/interception.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>

namespace trireme::detail {

/// Of this thread; null where there is none.
Observer*& innermost_observer() noexcept;

/// What brings operators to observers, for a thread to include.
c10::DispatchKeySet observed_keys();

/// The tensor as it is, but over other memory, and without autograd.
at::Tensor over(const at::Tensor& tensor, const c10::Storage& memory);

}  // namespace trireme::detail
