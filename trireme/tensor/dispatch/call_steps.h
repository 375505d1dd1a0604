// SPDX-License-Identifier: Apache-2.0
// Steps of a call that the boxed kernel (kernel.cpp) and the direct kernels (direct/) share.
#pragma once

#include <trireme/tensor/dispatch/decision.h>

#include <c10/core/DispatchKeySet.h>

namespace trireme::tensor {

/// The dispatch keys that a call on local tensors excludes. Autograd is recorded for the
/// distributed tensors, and autocast has already cast the inputs.
inline constexpr c10::DispatchKeySet kAboveLocal =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

/// The tensors among the arguments of a call.
struct Scan {
  InputSlots inputs;
  const DistributedMeta* first = nullptr;  ///< the first distributed tensor; null if there is none
  bool is_replicated = true;               ///< all distributed tensors are replicated on one mesh
};

/// Adds a tensor to the scan; an undefined tensor is skipped. `element` is the position in a list,
/// and -1 for a tensor that is an argument by itself.
void add_input(Scan& scan, const at::Tensor& tensor, int argument, int element);

/// Returns the tensors among the arguments on a stack, except those given as out=.
Scan scan_arguments(const OperatorFacts& facts, const c10::IValue* arguments);

/// Throws UsageError for a plain tensor that requires a gradient or is written to, and for a write
/// to a gathered copy that stands for a view.
void check_tensors(const OperatorFacts& facts, const Scan& scan);

/// Throws UsageError for an out= argument that is plain or is a gathered copy of a view.
void check_outs(const OperatorFacts& facts, const c10::IValue* arguments);

/// Marks the base of a view as shared, so that its local tensor is not replaced any more.
inline void note_view(const OperatorFacts& facts, const Scan& scan) {
  if (facts.returns_view && scan.inputs[0].meta != nullptr) scan.inputs[0].meta->is_own = false;
}

/// Returns true if an input should keep the local tensor and the layout that it was given for this
/// call: it was Partial and has been reduced, or was sharded along another dim for a preferred
/// strategy. The next operator need not communicate again then. The answer is the same on all
/// ranks.
bool stays_complete(const OperatorFacts& facts, const Decision& decision, const Scan& scan,
                    std::size_t input);

/// Replaces the local tensor and the layout of `wrapper`. `part` holds the same values in `layout`.
void keep_complete(const at::Tensor& wrapper, const at::Tensor& part, const Layout& layout);

/// Makes a distributed tensor of a local result. The first result of a decision is checked against
/// it: throws InternalError where its dtype or sizes are not those that the rule gives.
at::Tensor wrap_output(const OperatorFacts& facts, at::Tensor local, const OutputDecision& decided);

/// Updates the geometry and layout of a written tensor from its local tensor, whose shape may have
/// changed (resize_, transpose_, squeeze_). `decided` is null where all inputs were replicated.
void follow_local(const at::Tensor& wrapper, const OutputDecision* decided);

/// Counts a write to a distributed tensor, as autograd kernels do for the writes that they know of.
inline void count_version(const at::Tensor& wrapper) {
  wrapper.unsafeGetTensorImpl()->bump_version();
}

}  // namespace trireme::tensor
