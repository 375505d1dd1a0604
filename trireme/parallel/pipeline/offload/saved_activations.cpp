// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/offload/saved_activations.h>

#include <trireme/base/error.h>
#include <trireme/parallel/recompute/effects.h>
#include <trireme/parallel/recompute/observed_call.h>
#include <trireme/tensor/dispatch/distributed_meta.h>

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <map>
#include <utility>

namespace trireme::pipeline {

namespace autograd = torch::autograd;

// A storage of the device, and the kept tensors in it.
struct SavedActivations::Memory {
  c10::Storage storage;  // null while its content is only in host memory
  std::vector<std::weak_ptr<Kept>> tensors;
  bool is_input = false;
};

// The hook that autograd calls for one saved tensor. A node of the graph owns it.
class SavedActivations::Hook final : public autograd::SavedVariableHooks {
 public:
  explicit Hook(SavedActivations& memory) : memory_(&memory), title_(memory.title_) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    kept_ = std::exchange(memory_, nullptr)->keep(tensor);
  }

  at::Tensor call_unpack_hook() override {
    if (!kept_->is_as_it_was()) {
      const at::Tensor& tensor = kept_->tensor();
      throw UsageError(join_message("a tensor ", tensor.sizes(), " ", tensor.scalar_type(),
                                    " that backward needs of ", title_,
                                    " was written to after autograd had saved it"),
                       "leave out the in-place operator, or let it write to a clone()");
    }
    return kept_->tensor();
  }

 private:
  SavedActivations* memory_;  // null after packing
  std::string title_;
  std::shared_ptr<Kept> kept_;
};

const at::Tensor& SavedActivations::Kept::tensor() const {
  TRIREME_CHECK(!is_away_);
  return tensor_;
}

// Binds the tensor to another storage. For a distributed tensor, whose wrapper belongs to this
// object alone, that is the storage of its local part.
void SavedActivations::Kept::lie_in(const c10::Storage& memory) {
  at::Tensor& holder =
      tensor::is_wrapper(tensor_) ? tensor::distributed_meta(tensor_).local : tensor_;
  holder = detail::over(holder, memory);
}

SavedActivations::SavedActivations(HostCopies& copies, std::string title)
    : copies_(copies), title_(std::move(title)) {}

SavedActivations::~SavedActivations() {
  if (!is_under_way_) return;
  // A step has failed while copies were under way. Later work on the device must not overwrite
  // memory that is still copied.
  try {
    stored_.wait();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device has failed too
  }
}

std::shared_ptr<SavedActivations::Kept> SavedActivations::keep(const at::Tensor& tensor) {
  auto kept = std::make_shared<Kept>(tensor);
  kept_.push_back(kept);
  return kept;
}

// Detaches the kept tensors. A node that saved its own result would otherwise form a cycle with it.
// This is done after forward, because a distributed tensor may change its layout until then.
void SavedActivations::settle() {
  for (const std::weak_ptr<Kept>& each : kept_) {
    if (const std::shared_ptr<Kept> kept = each.lock()) kept->tensor_ = kept->tensor_.tensor_data();
  }
}

void SavedActivations::sort(const Memories& lasting, const Memories& inputs) {
  for (const std::weak_ptr<Kept>& each : kept_) {
    const std::shared_ptr<Kept> kept = each.lock();
    if (!kept) continue;
    const c10::StorageImpl* const memory = detail::memory_below(kept->tensor_);
    const bool stays = memory == nullptr || memory->nbytes() == 0 || lasting.contains(memory) ||
                       memory->device_type() != copies_.device().type();
    kept->place_ = stays                     ? Kept::Place::kStays
                   : inputs.contains(memory) ? Kept::Place::kInput
                                             : Kept::Place::kMade;
  }
}

void SavedActivations::begin() {
  std::map<const c10::StorageImpl*, std::size_t> places;
  std::vector<c10::Storage> storages;
  for (const std::weak_ptr<Kept>& each : kept_) {
    const std::shared_ptr<Kept> kept = each.lock();
    if (!kept || kept->place_ == Kept::Place::kStays) continue;
    const c10::StorageImpl* const memory = detail::memory_below(kept->tensor_);
    const auto [place, is_new] = places.emplace(memory, memories_.size());
    if (is_new) {
      const at::Tensor& holder = tensor::is_wrapper(kept->tensor_)
                                     ? tensor::distributed_meta(kept->tensor_).local
                                     : kept->tensor_;
      storages.push_back(holder.storage());
      memories_.push_back({.storage = holder.storage(),
                           .tensors = {},
                           .is_input = kept->place_ == Kept::Place::kInput});
    }
    memories_[place->second].tensors.push_back(kept);
  }
  stored_ = copies_.store(storages);
  is_under_way_ = true;
}

std::vector<const void*> SavedActivations::offload() {
  stored_.wait();
  is_under_way_ = false;
  std::vector<const void*> left;
  for (Memory& memory : memories_) {
    if (!memory.is_input) left.push_back(memory.storage.data());
    const c10::Storage nothing(c10::Storage::use_byte_size_t(), 0,
                               c10::DataPtr(nullptr, memory.storage.device()),
                               /*allocator=*/nullptr, /*resizable=*/false);
    for (const std::weak_ptr<Kept>& each : memory.tensors) {
      const std::shared_ptr<Kept> kept = each.lock();
      if (!kept) continue;
      kept->lie_in(nothing);
      kept->is_away_ = true;
    }
    memory.storage = c10::Storage();
  }
  return left;
}

std::vector<const void*> SavedActivations::load() {
  const std::vector<c10::Storage> storages = copies_.load(stored_);
  is_under_way_ = true;
  std::vector<const void*> inputs;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    if (memories_[i].is_input) inputs.push_back(storages[i].data());
    for (const std::weak_ptr<Kept>& each : memories_[i].tensors) {
      const std::shared_ptr<Kept> kept = each.lock();
      if (!kept) continue;
      kept->lie_in(storages[i]);
      kept->is_away_ = false;
    }
  }
  memories_.clear();
  return inputs;
}

void SavedActivations::wait_until_loaded() {
  if (!is_under_way_) return;
  stored_.wait();
  stored_ = {};
  is_under_way_ = false;
}

std::unique_ptr<autograd::SavedVariableHooks> SavedActivations::Collecting::hooks() {
  return std::make_unique<Hook>(memory_);
}

SavedActivations::Collecting::~Collecting() { memory_.settle(); }

}  // namespace trireme::pipeline
