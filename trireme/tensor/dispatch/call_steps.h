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
  const DistributedMeta* first = nullptr;  ///< of those that are distributed
  bool is_replicated = true;               ///< all that are distributed, on one mesh
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

/// Where the call takes a view, what it is taken of has its memory no longer for itself.
inline void note_view(const OperatorFacts& facts, const Scan& scan) {
  if (facts.returns_view && scan.inputs[0].meta != nullptr) scan.inputs[0].meta->is_own = false;
}

/// Whether an input that is a sum over ranks (or a maximum …) and that the call has completed is to
/// stay complete, so that the next operator need not complete it again. The same on all ranks.
bool stays_complete(const OperatorFacts& facts, const Decision& decision, const Scan& scan,
                    std::size_t input);

/// Gives a tensor the same values in another layout: `part` is what this rank has of them.
void keep_complete(const at::Tensor& wrapper, const at::Tensor& part, const Layout& layout);

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
