// SPDX-License-Identifier: Apache-2.0
// Model::dry_run: a training of one step, after which everything is restored.
#include <trireme/parallel/module/evaluation_mode.h>
#include <trireme/parallel/state_dict.h>
#include <trireme/train/loop/model_impl.h>

#include <torch/torch.h>

#include <map>
#include <string>

namespace trireme {
namespace {

checkpoint::TensorMap clones(const checkpoint::TensorMap& tensors) {
  checkpoint::TensorMap all;
  for (const auto& [name, tensor] : tensors) all[name] = tensor.detach().clone();
  return all;
}

}  // namespace

// A copy of this rank's part of everything that training changes in a model.
struct Model::Snapshot {
  explicit Snapshot(Impl& the_impl)
      : impl(the_impl),
        state(partial_state(impl.runner->parallelized(), *impl.module, impl.optimizer)),
        streams(detail::random_streams(impl.device)),
        modes(*impl.module),
        loss_scale(impl.loss_scale),
        position(impl.position),
        requested_epochs(impl.requested_epochs),
        is_stopped(impl.is_stopped) {
    state.parameters = clones(state.parameters);
    state.buffers = clones(state.buffers);
    state.optimizer.tensors = clones(state.optimizer.tensors);
  }

  // Collective if the plan cuts parameters, gradients or optimizer state.
  void restore() {
    impl.optimizer.zero_grad();
    load_partial_state(state, impl.runner->parallelized(), *impl.module, impl.optimizer);
    impl.runner->complete();
    detail::set_random_streams(streams, impl.device);
    impl.loss_scale = loss_scale;
    impl.position = position;
    impl.requested_epochs = requested_epochs;
    impl.is_stopped = is_stopped;
  }

  Impl& impl;
  PartialState state;
  std::map<std::string, std::string> streams;
  const detail::ModeGuard modes;  // restores the modes when destroyed
  const std::optional<LossScale> loss_scale;
  const detail::Position position;
  const std::int64_t requested_epochs;
  const bool is_stopped;
};

History Model::dry_run(const data::DataLoader& training, const data::DataLoader* validation,
                       const Callbacks& callbacks) {
  Impl& impl = *impl_;
  const data::DataLoader own = impl.training_part(training);
  const auto own_validation =
      validation == nullptr ? std::nullopt
                            : std::optional(impl.part_of(*validation, data::Remainder::kUneven));
  impl.is_sharded_manually = training.is_sharded();
  impl.num_same_rows = 0;
  impl.steps_in_epoch(own);  // throws unless it is at least 1 and equal on all ranks
  impl.find_device();
  impl.runner->prepare(own);
  Snapshot snapshot(impl);
  const std::int64_t epochs_done = impl.position.next_epoch() - 1;
  impl.position = {.epoch = epochs_done, .global_step = impl.position.global_step};
  impl.requested_epochs = epochs_done;
  const FitOptions options{.epochs = 1, .callbacks = callbacks};
  Run run({.model = *this,
           .rank = impl.options.group.rank(),
           .world_size = impl.options.group.size(),
           .last_epoch = epochs_done + 1,
           .steps_in_epoch = 1,
           .is_dry_run = true},
          own, own_validation ? &*own_validation : nullptr, options, impl.options.group);
  try {
    History history = impl.run(run);
    snapshot.restore();
    return history;
  } catch (...) {
    // After different failures, ranks cannot run the collectives of restore() together.
    if (impl.options.group.size() == 1) snapshot.restore();
    throw;
  }
}

}  // namespace trireme
