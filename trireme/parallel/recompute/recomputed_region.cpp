// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/recompute/recomputed_region.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/tensor/dispatch/planned_layouts.h>

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>

namespace trireme::detail {

ExecutionContext::ExecutionContext(const std::vector<std::shared_ptr<torch::nn::Module>>& modules)
    : modules_(modules),
      keys_(c10::impl::tls_local_dispatch_key_set()),
      autograd_(c10::AutogradState::get_tls_state()),
      caches_casts_(at::autocast::is_autocast_cache_enabled()) {
  for (const c10::DeviceType device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    autocast_dtypes_.emplace_back(device, at::autocast::get_autocast_dtype(device));
  }
  for (const auto& module : modules_) {
    for (const auto& each : module->modules()) training_.emplace_back(each, each->is_training());
  }
}

void ExecutionContext::restore() const {
  c10::impl::_force_tls_local_dispatch_key_set(keys_);
  c10::AutogradState::set_tls_state(autograd_);
  for (const auto& [device, dtype] : autocast_dtypes_) {
    at::autocast::set_autocast_dtype(device, dtype);
  }
  at::autocast::set_autocast_cache_enabled(caches_casts_);
  for (const auto& [module, is_training] : training_) {
    // train() also changes submodules. They come after their parents, and are corrected then.
    if (module->is_training() != is_training) module->train(is_training);
  }
}

ExecutionContext::Restored::Restored(const ExecutionContext& context) : outer_(context.modules_) {
  context.restore();
  at::autocast::set_autocast_cache_enabled(false);
}

ExecutionContext::Restored::~Restored() { outer_.restore(); }

namespace autograd = torch::autograd;

namespace {

constexpr int kNoPass = -1;
constexpr int kAllPasses = -2;

// Thrown to end a second run that has computed what was asked for. It is not derived from
// std::exception, so that functions that handle those exceptions let it pass.
struct HasAll {};

}  // namespace

Shape::Shape(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  sizes = tensor.sizes().vec();
  dtype = tensor.scalar_type();
  device = tensor.device();
}

std::string Shape::to_string() const {
  if (dtype == at::ScalarType::Undefined) return "undefined";
  return join_message(c10::IntArrayRef(sizes), " ", dtype, " on ", device);
}

// A hook in a node of the first run. It remembers the number of its place.
class Region::Place final : public autograd::SavedVariableHooks {
 public:
  Place(std::shared_ptr<Region> region, const Recording& recording)
      : region_(std::move(region)), recording_(&recording) {}
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() override {
    if (index_) region_->leave_place(*index_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    index_ = region_->add_place(tensor, std::exchange(recording_, nullptr)->is_inside(tensor));
  }
  at::Tensor call_unpack_hook() override { return region_->take(index_.value()); }

 private:
  std::shared_ptr<Region> region_;
  const Recording* recording_;
  std::optional<std::size_t> index_;
};

class Region::FirstRunHooks final : public SavedTensorHooks {
 public:
  FirstRunHooks(Region& region, const Recording& recording, bool is_again)
      : region_(region), recording_(recording), is_again_(is_again) {}

  std::unique_ptr<autograd::SavedVariableHooks> hooks() override {
    return std::make_unique<Place>(region_.shared_from_this(), recording_);
  }
  bool is_second_run() const override { return is_again_; }

 private:
  Region& region_;
  const Recording& recording_;
  bool is_again_;
};

class Region::SecondRunHooks final : public SavedTensorHooks {
 public:
  SecondRunHooks(const Region& region, const Replaying& replaying, std::optional<std::size_t> only)
      : region_(region), replaying_(replaying), only_(only), count_(region.saved_.size()) {
    for (std::size_t i = 0; i < count_; ++i) {
      if (is_wanted(i)) last_ = i;
    }
  }

  std::unique_ptr<autograd::SavedVariableHooks> hooks() override {
    return std::make_unique<Kept>(*this);
  }
  bool is_second_run() const override { return true; }

  SecondRunHooks(const SecondRunHooks&) = delete;
  SecondRunHooks& operator=(const SecondRunHooks&) = delete;
  ~SecondRunHooks() override { settle(); }

  // Returns the first saved tensor that differs from the first run, with its present shape.
  const std::optional<std::pair<std::size_t, Shape>>& difference() const { return difference_; }
  std::size_t num_saved() const { return tensors_->size(); }

  Values take_values() {
    settle();
    Values values;
    for (const auto& [index, version] : wanted_) {
      values.emplace(index, Value{(*tensors_)[index], version});
    }
    return values;
  }

 private:
  using Tensors = std::vector<at::Tensor>;

  // A hook in a node of the second run. It is unpacked only if the function itself runs backward.
  class Kept final : public autograd::SavedVariableHooks {
   public:
    explicit Kept(SecondRunHooks& saved_hooks)
        : saved_hooks_(&saved_hooks), tensors_(saved_hooks.tensors_) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      index_ = tensors_->size();
      std::exchange(saved_hooks_, nullptr)->keep(tensor);
    }
    at::Tensor call_unpack_hook() override { return (*tensors_)[index_].tensor_data(); }

   private:
    SecondRunHooks* saved_hooks_;
    std::shared_ptr<Tensors> tensors_;
    std::size_t index_ = 0;
  };

  bool is_wanted(std::size_t index) const {
    return only_ ? index == *only_ : region_.saved_[index].is_held;
  }

  // Keeps the tensor itself, not a copy. A distributed tensor may still change its layout after it
  // was saved, as the first run allowed as well.
  void keep(const at::Tensor& tensor) {
    const std::size_t index = tensors_->size();
    tensors_->push_back(replaying_.seen(tensor));
    if (index >= count_ || difference_) return;
    if (Shape shape(tensor); shape != region_.saved_[index].shape) {
      difference_.emplace(index, std::move(shape));
      return;
    }
    if (is_wanted(index)) wanted_.emplace(index, TensorVersion(tensors_->back()));
    // NOLINTNEXTLINE(bugprone-std-exception-baseclass): on purpose, see there.
    if (index == last_) throw HasAll();
  }

  // Detaches the tensors from the graph: the nodes hold the tensors, so it would never be freed.
  void settle() {
    for (at::Tensor& tensor : *tensors_) tensor = tensor.tensor_data();
  }

  const Region& region_;
  const Replaying& replaying_;
  std::optional<std::size_t> only_;
  std::size_t count_;  // number of places that the first run had made when this run began
  std::optional<std::size_t> last_;
  std::optional<std::pair<std::size_t, Shape>> difference_;
  std::map<std::size_t, TensorVersion> wanted_;
  std::shared_ptr<Tensors> tensors_ = std::make_shared<Tensors>();  // all that were saved
};

Region::Region(ManyToMany function, const std::vector<at::Tensor>& inputs, RecomputeOptions options)
    : function_(std::move(function)),
      options_(std::move(options)),
      title_(options_.name.empty() ? "a recomputed function"
                                   : "the recomputed function " + options_.name),
      execution_context_(options_.modules) {
  for (const at::Tensor& input : inputs) {
    Input& saved_input = inputs_.emplace_back();
    if (!input.defined()) continue;
    saved_input.saved = autograd::SavedVariable(input, /*is_output=*/false);
    saved_input.version.emplace(input);
    saved_input.requires_grad = input.requires_grad();
  }
}

std::vector<at::Tensor> Region::run(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> outputs;
  {
    // In the second run of an outer region, this region gets no second run of its own and needs no
    // copies. The exception is a function that runs backward inside itself.
    const bool is_again = is_second_run();
    const bool keeps_copies = !is_again || !options_.keep_between_passes;
    Recording recording(effects_, inputs, title_, options_.preserve_random, keeps_copies);
    FirstRunHooks saved_hooks(*this, recording, is_again);
    const SavedTensorHooksGuard hooks_guard(saved_hooks);
    outputs = function_(inputs);
  }
  pack_copies();
  for (const at::Tensor& output : outputs) outputs_.emplace_back(output);
  return outputs;
}

std::size_t Region::add_place(const at::Tensor& tensor, bool is_inside) {
  const std::scoped_lock lock(mutex_);
  saved_.push_back({Shape(tensor), memory_below(tensor),
                    is_inside ? std::nullopt : std::optional<TensorVersion>(tensor)});
  return saved_.size() - 1;
}

void Region::leave_place(std::size_t index) {
  const std::scoped_lock lock(mutex_);
  saved_[index].is_held = false;
  if (const auto kept = values_.find(kAllPasses); kept != values_.end()) kept->second.erase(index);
}

at::Tensor Region::take(std::size_t index) {
  const std::scoped_lock lock(mutex_);
  const Value value = taken(index);
  if (!value.version.is_current()) {
    throw UsageError(
        join_message("a tensor ", saved_[index].shape.to_string(), " that backward needs of ",
                     title_, " was written to after autograd had saved it"),
        "leave out the in-place operator, or let it write to a clone()");
  }
  return value.tensor;
}

Region::Value Region::taken(std::size_t index) {
  int pass = autograd::get_current_graph_task_id();
  // Outside of a backward pass nothing tells when other values could be freed.
  if (pass == kNoPass) return run_again(index).at(index);
  if (options_.keep_between_passes) pass = kAllPasses;
  // The first node of a pass has all places computed. A node that takes its place a second time in
  // the same pass has only that one computed again.
  const bool is_first = !values_.contains(pass);
  if (is_first || !values_[pass].contains(index)) {
    Values values = run_again(is_first ? std::nullopt : std::optional(index));
    if (is_first && pass != kAllPasses) {
      // Called at the end of this pass. It must not keep the region alive.
      autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this(), pass] {
        const std::shared_ptr<Region> region = weak.lock();
        if (!region) return;
        const std::scoped_lock lock(region->mutex_);
        region->values_.erase(pass);
      });
    }
    values_[pass].merge(values);
  }
  if (pass == kAllPasses) return values_[pass].at(index);
  return std::move(values_[pass].extract(index).mapped());
}

std::vector<at::Tensor> Region::inputs_again() const {
  std::vector<at::Tensor> inputs;
  for (const Input& input : inputs_) {
    at::Tensor& again = inputs.emplace_back();
    if (!input.version) continue;
    // Detached, so that the graph of the second run ends here.
    again = input.saved.unpack().tensor_data();
    if (input.requires_grad) again.set_requires_grad(true);
  }
  return inputs;
}

void Region::pack_copies() {
  for (Effects::Memory& memory : effects_.written) {
    std::unique_ptr<autograd::SavedVariableHooks> hooks = hooks_for_copy();
    if (!hooks) return;
    hooks->call_pack_hook(memory.before);
    memory.before.reset();
    packed_copies_.push_back(std::move(hooks));
  }
}

Effects Region::effects_again() const {
  Effects again = effects_;
  for (std::size_t i = 0; i < packed_copies_.size(); ++i) {
    again.written[i].before = packed_copies_[i]->call_unpack_hook();
  }
  return again;
}

void Region::check_versions() const {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs_[i].version || inputs_[i].version->is_current()) continue;
    throw UsageError(join_message("input ", i, " of ", title_,
                                  " was written to before backward, which runs it again"),
                     "give it a clone(), or write after backward");
  }
  for (const Saved& saved : saved_) {
    if (!saved.is_held || !saved.version || saved.version->is_current()) continue;
    // The function itself wrote there, and the second run gets the copy.
    if (effects_.writes_to(saved.memory)) continue;
    throw UsageError(join_message("a tensor ", saved.shape.to_string(), " that ", title_,
                                  " uses was written to before backward, which runs it again"),
                     "write to parameters, and to what else it captures, after the last backward "
                     "that needs them");
  }
}

Region::Values Region::run_again(std::optional<std::size_t> only) {
  check_versions();
  // Unpack the inputs first: that may run an outer recomputed function.
  const std::vector<at::Tensor> inputs = inputs_again();
  const ExecutionContext::Restored restored(execution_context_);
  const tensor::ForwardWithinBackward forward;
  const Replaying replaying(effects_again());
  SecondRunHooks saved_hooks(*this, replaying, only);
  const SavedTensorHooksGuard hooks_guard(saved_hooks);
  try {
    check_same(saved_hooks, function_(inputs));
  } catch (const HasAll&) {
    return saved_hooks.take_values();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw UsageError(join_message(title_, " ended by an exception when backward ran it again: ",
                                  message_of(error)),
                     "it must compute the same again, from its inputs");
  }
  return saved_hooks.take_values();
}

void Region::check_same(const SecondRunHooks& saved_hooks,
                        const std::vector<at::Tensor>& outputs) const {
  const std::string title = title_ + " is not the same when it is run again for backward: ";
  constexpr auto kHint =
      "it must compute the same again: give it what changes between forward and backward (a "
      "counter, a flag, data of the next step) as inputs, by value, or in RecomputeOptions";
  for (std::size_t i = 0; i < std::min(outputs.size(), outputs_.size()); ++i) {
    const Shape shape(outputs[i]);
    if (shape == outputs_[i]) continue;
    throw UsageError(join_message(title, "its output ", i, " was ", outputs_[i].to_string(),
                                  ", and now is ", shape.to_string()),
                     kHint);
  }
  if (const auto& difference = saved_hooks.difference()) {
    throw UsageError(
        join_message(title, "tensor ", difference->first, " of those that autograd saved was ",
                     saved_[difference->first].shape.to_string(), ", and now is ",
                     difference->second.to_string()),
        kHint);
  }
  if (saved_hooks.num_saved() != saved_.size() || outputs.size() != outputs_.size()) {
    throw UsageError(
        join_message(title, "it gave ", outputs_.size(), " tensors, of which autograd ", "saved ",
                     saved_.size(), ", and now gives ", outputs.size(), " and saves ",
                     saved_hooks.num_saved()),
        kHint);
  }
}

}  // namespace trireme::detail
