// SPDX-License-Identifier: Apache-2.0
// Steps of a call that kernels share, whether they get their arguments in IValues or not
// (kernel.cpp, direct/).
#pragma once

#include <trireme/tensor/dispatch/decision.h>

#include <c10/core/DispatchKeySet.h>

namespace trireme::tensor {

/// What a local call excludes: local tensors have no autograd of their own, and autocast has done
/// its part above.
inline constexpr c10::DispatchKeySet kAboveLocal =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

/// The tensors among the arguments of a call.
struct Scan {
  InputSlots inputs;
  const Held* first = nullptr;  ///< of those that are distributed
  bool is_replicated = true;    ///< all that are distributed, on one mesh
};

/// `element` is -1 outside lists. Undefined tensors are left out.
void add_input(Scan& scan, const at::Tensor& tensor, int argument, int element);

/// Of arguments as they lie on a stack, without those given as out=.
Scan scan_arguments(const OperatorFacts& facts, const c10::IValue* arguments);

/// Throws UsageError for a plain tensor that requires a gradient or is written to, and for a write
/// into a copy that should be a view.
void check_tensors(const OperatorFacts& facts, const Scan& scan);

/// The same for what was given as out=.
void check_outs(const OperatorFacts& facts, const c10::IValue* arguments);

/// Makes a local result distributed. The first of a decision is checked against it: InternalError
/// where the rule said otherwise.
at::Tensor wrap_output(const OperatorFacts& facts, at::Tensor local, const OutputDecision& decided);

/// Brings a written tensor after its part, whose shape may have changed (resize_, transpose_,
/// squeeze_). `decided` is null where all was replicated.
void follow_local(const at::Tensor& wrapper, const OutputDecision* decided);

/// Counts a write to a distributed tensor, as autograd's kernels do where they know of it.
inline void count_version(const at::Tensor& wrapper) {
  wrapper.unsafeGetTensorImpl()->bump_version();
}

}  // namespace trireme::tensor
