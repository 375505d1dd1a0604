// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/direct/direct_call.h>

#include <trireme/tensor/dispatch/plain_inputs.h>

#include <c10/util/MaybeOwned.h>

#include <utility>

namespace trireme::tensor {
namespace {

using Borrowed = c10::MaybeOwnedTraits<at::Tensor>;

// Returns true if a view of the tensor is more than a view of its local tensor.
bool needs_mark(const DistributedMeta* meta) {
  return meta == nullptr || meta->is_copy_of_view || meta->as_weight != nullptr;
}

// Returns true if the operator itself runs on the local tensors as they are.
bool is_plain(const Decision& decision) {
  return !decision.has_paths && decision.kernel == nullptr && decision.local_arguments.empty() &&
         !decision.gathers_view && !decision.has_plan;
}

}  // namespace

DirectCall::~DirectCall() {
  for (at::Tensor& local : locals_) Borrowed::destroyBorrow(local);
}

void DirectCall::add(at::TensorList list) {
  scan_.inputs.reserve(scan_.inputs.size() + 2 * list.size());  // another list may follow
  int element = 0;
  for (const at::Tensor& tensor : list) {
    has_gaps_ = has_gaps_ || !tensor.defined();
    add_input(scan_, tensor, position_, element++);
  }
  ++position_;
}

bool DirectCall::is_ready() {
  // A kernel of the rule, an undefined list element or a value in the decision's key needs the
  // boxed path, which has the arguments as IValues.
  const bool has_kernel = facts_.rule != nullptr && facts_.rule->kernel != nullptr;
  if (scan_.first == nullptr || has_gaps_ || facts_.has_key_values || has_kernel) return false;
  if (facts_.hands_on_weight && needs_mark(scan_.inputs[0].meta)) return false;
  check_tensors(facts_, scan_);
  note_view(facts_, scan_);
  if (scan_.is_replicated && !needs_decision(facts_.rule, scan_.first->layout)) {
    replicated_ = scan_.first->layout;
  } else {
    decision_ = find_decision(DecisionKey(facts_, scan_.inputs, {}));
    if (decision_ == nullptr || !is_plain(*decision_)) return false;
  }
  locals_.reserve(scan_.inputs.size());
  for (const InputSlot& slot : scan_.inputs) {
    const at::Tensor& local = slot.meta == nullptr ? *slot.tensor : slot.meta->local;
    locals_.push_back(Borrowed::createBorrow(local));
  }
  if (notes_plain_inputs()) note_plain_inputs(facts_, scan_);
  return true;
}

at::TensorList DirectCall::local(at::TensorList list) {
  const at::TensorList locals = at::TensorList(locals_).slice(next_, list.size());
  next_ += list.size();
  return locals;
}

std::vector<at::Tensor> DirectCall::give(std::vector<at::Tensor> results) const {
  std::size_t output = 0;
  for (at::Tensor& result : results) result = wrapped(std::move(result), output++);
  return results;
}

void DirectCall::give_written(const at::Tensor& wrapper) const {
  follow_local(wrapper, decision_ == nullptr ? nullptr : &decision_->outputs.front());
}

void DirectCall::give_nothing() const {
  if (!facts_.counts_versions) return;
  for (const InputSlot& slot : scan_.inputs) {
    if (slot.argument == facts_.written.front()) count_version(*slot.tensor);
  }
}

at::Tensor DirectCall::wrapped(at::Tensor local, std::size_t output) const {
  if (decision_ == nullptr) return wrap_replicated(std::move(local), replicated_);
  return wrap_output(facts_, std::move(local), decision_->outputs[output]);
}

}  // namespace trireme::tensor
