// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/init/deferred_scope.h>

#include <trireme/base/error.h>
#include <trireme/parallel/init/construction.h>
#include <trireme/parallel/init/deferred_call.h>
#include <trireme/tensor/dry_run/dry_run.h>
#include <trireme/tensor/dry_run/interception.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace trireme::detail {
namespace {

std::shared_ptr<Construction>& current() {
  thread_local std::shared_ptr<Construction> construction;
  return construction;
}

bool on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const std::shared_ptr<Construction> construction = current();
  if (construction == nullptr) return false;  // a thread of autograd that inherited the key
  // A step that is recorded decides first about the tensors of its module.
  tensor::DryRun* const dry_run = tensor::DryRun::of_thread();
  if (dry_run != nullptr && dry_run->take(op, keys, *stack)) return true;
  call_deferred(op, keys, *stack, construction);
  return true;
}

// Returns the constructions of those tensors that are deferred, each once, in order of appearance.
std::vector<std::shared_ptr<Construction>> constructions_of(
    const std::vector<at::Tensor>& tensors) {
  std::vector<std::shared_ptr<Construction>> constructions;
  for (const at::Tensor& tensor : tensors) {
    const Construction::Place* place = Construction::find(tensor);
    if (place == nullptr) continue;
    const bool is_known = std::find(constructions.begin(), constructions.end(),
                                    place->construction) != constructions.end();
    if (!is_known) constructions.push_back(place->construction);
  }
  return constructions;
}

void replay(Construction& construction, const std::vector<at::Tensor>& tensors,
            const std::function<void(const at::Tensor& whole)>& on_ready) {
  std::map<std::size_t, std::vector<at::Tensor>> by_block;
  std::vector<bool> wanted(construction.num_blocks(), false);
  for (const at::Tensor& tensor : tensors) {
    const Construction::Place* place = Construction::find(tensor);
    if (place == nullptr || place->construction.get() != &construction) continue;
    by_block[place->block].push_back(tensor);
    wanted[place->block] = true;
  }
  construction.run(wanted, true, [&](std::size_t block, c10::DataPtr memory) {
    const std::vector<at::Tensor>& ready = by_block[block];
    c10::StorageImpl& storage = *ready.front().storage().unsafeGetStorageImpl();
    const void* const values = memory.get();
    set_memory(storage, std::move(memory));
    if (!on_ready) return;
    for (const at::Tensor& tensor : ready) on_ready(tensor);
    // If on_ready gave the storage other memory, that memory stays.
    if (storage.data() != values) return;
    storage.set_data_ptr_noswap({nullptr, storage.device()});
    storage.set_nbytes(0);
  });
  construction.advance_generators();
}

}  // namespace

bool is_deferred(const at::Tensor& tensor) { return Construction::find(tensor) != nullptr; }

void replay(const std::vector<at::Tensor>& tensors,
            const std::function<void(const at::Tensor& whole)>& on_ready) {
  for (const auto& construction : constructions_of(tensors)) {
    replay(*construction, tensors, on_ready);
  }
}

at::Tensor random_states(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> states;
  for (const auto& construction : constructions_of(tensors)) {
    for (const at::Tensor& state : construction->states()) states.push_back(state);
  }
  return states.empty() ? at::empty({0}, at::kByte) : at::cat(states);
}

void set_random_states(const std::vector<at::Tensor>& tensors, const at::Tensor& states) {
  const at::Tensor own = random_states(tensors);
  if (states.sizes() != own.sizes()) {
    throw UsageError(join_message("got ", states.numel(),
                                  " bytes of random states for the initial values of a module "
                                  "that has ",
                                  own.numel()),
                     "construct the same module under deferred() on every rank");
  }
  std::int64_t begin = 0;
  for (const auto& construction : constructions_of(tensors)) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& state : construction->states()) {
      parts.push_back(states.narrow(0, begin, state.numel()).clone());
      begin += state.numel();
    }
    construction->set_states(parts);
  }
}

struct DeferredScope::State {
  std::shared_ptr<Construction> construction;
  c10::impl::IncludeDispatchKeyGuard recorded{kDeferredKey};
  bool is_finished = false;
};

DeferredScope::DeferredScope() : DeferredScope(Deferral::kValues) {}

DeferredScope::DeferredScope(Deferral deferral) {
  // Within another scope, whose construction records this module as well.
  if (current() != nullptr) return;
  tensor::intercept_below_autograd(on_operator);
  state_ = std::make_unique<State>(std::make_shared<Construction>(deferral));
  current() = state_->construction;
}

DeferredScope::~DeferredScope() {
  if (state_ == nullptr) return;
  current().reset();
  // Not finished means that the constructor threw.
  if (!state_->is_finished) state_->construction->abandon();
}

void DeferredScope::finish() {
  if (state_ == nullptr) return;
  state_->construction->finish();
  state_->is_finished = true;
}

}  // namespace trireme::detail

namespace trireme {

void materialize(ConstModuleRef given) {
  const torch::nn::Module& module = *given;
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  materialize(tensors);
}

void materialize(const std::vector<at::Tensor>& tensors) { detail::replay(tensors, nullptr); }

}  // namespace trireme
