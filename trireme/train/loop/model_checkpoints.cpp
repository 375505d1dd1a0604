// SPDX-License-Identifier: Apache-2.0
// Saves models and resumes from checkpoints.
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/warning.h>
#include <trireme/comm/monitor/termination.h>
#include <trireme/parallel/record/predicted_step.h>
#include <trireme/parallel/sharded_state.h>
#include <trireme/report/number.h>
#include <trireme/train/loop/model_impl.h>

#include <torch/torch.h>

#include <chrono>
#include <string_view>
#include <utility>

namespace trireme {
namespace {

using detail::Position;

constexpr std::string_view kCallback = "callback.";

// The contents of a checkpoint other than module and optimizer.
struct Standing {
  Position position;
  std::optional<LossScale::State> loss_scale;
  std::map<std::string, std::string> callback_states;
};

Standing standing_of(const checkpoint::State& state) {
  Standing standing;
  standing.position = {
      .epoch = state.epoch,
      .step = state.step,
      .steps_in_epoch = detail::number_entry<std::int64_t>(state, "steps_in_epoch"),
      .global_step = detail::number_entry<std::int64_t>(state, "global_step")};
  if (state.entries.contains("rows_in_epoch")) {
    standing.position.rows = detail::number_entry<std::int64_t>(state, "rows_in_epoch");
    standing.position.shards = detail::number_entry<std::int64_t>(state, "data_shards");
  }
  if (state.entries.contains("loss_scale")) {
    standing.loss_scale = {
        .value = detail::number_entry<double>(state, "loss_scale"),
        .good_steps = detail::number_entry<std::int64_t>(state, "loss_scale_steps")};
  }
  for (const auto& [name, text] : state.entries) {
    if (name.starts_with(kCallback)) standing.callback_states[name] = text;
  }
  return standing;
}

}  // namespace

std::string detail::StateKeys::next(const Callback& callback) {
  const std::string name = callback.name();
  return join_message(kCallback, name, ".", counts_[name]++);
}

checkpoint::State Model::Impl::state() const {
  checkpoint::State state;
  state.epoch = position.epoch;
  state.step = position.step;
  state.entries = {{"global_step", std::to_string(position.global_step)},
                   {"steps_in_epoch", std::to_string(position.steps_in_epoch)},
                   {"rows_in_epoch", std::to_string(position.rows)},
                   {"data_shards", std::to_string(position.shards)}};
  state.own = detail::random_streams(device);
  if (loss_scale) {
    const LossScale::State scale = loss_scale->state();
    state.entries["loss_scale"] = report::shortest(scale.value);
    state.entries["loss_scale_steps"] = std::to_string(scale.good_steps);
  }
  runner->add_to(state);
  if (running == nullptr) {
    // The model was resumed and has not trained since: the loaded states of callbacks are kept.
    state.entries.insert(callback_states.begin(), callback_states.end());
    return state;
  }
  detail::StateKeys keys;
  for (const Callback& callback : running->calls.all()) {
    const std::string key = keys.next(callback);
    const std::string text = callback.state();
    if (!text.empty()) state.entries[key] = text;
  }
  return state;
}

checkpoint::Content Model::Impl::content() {
  find_device();
  load_pending();
  checkpoint::Content content{.parts = {}, .state = state()};
  content.parts = parts_to_save(runner->parallelized(), *module, &optimizer, content.state);
  return content;
}

std::filesystem::path Model::save(const checkpoint::SaveOptions& options) const {
  Impl& impl = *impl_;
  impl.finish_save();
  const auto save = [&] {
    return checkpoint::save_parts(options, [&] { return impl.content(); }, impl.options.group);
  };
  if (impl.running == nullptr) return save();
  Run& run = *impl.running;
  impl.compare_replicas(run);
  const CheckpointContext begin{
      .run = run.context, .epoch = impl.position.epoch, .global_step = impl.position.global_step};
  run.calls.each("on_checkpoint_begin",
                 [&](Callback& callback) { callback.on_checkpoint_begin(begin); });
  const auto started = std::chrono::steady_clock::now();
  CheckpointEndContext end{begin};
  end.path = save();
  comm::note_saved(end.path.string());
  end.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  run.calls.each("on_checkpoint_end", [&](Callback& callback) { callback.on_checkpoint_end(end); });
  return end.path;
}

void Model::save_async(const checkpoint::SaveOptions& options, checkpoint::Copying copying) const {
  Impl& impl = *impl_;
  impl.finish_save();
  if (impl.running != nullptr) impl.compare_replicas(*impl.running);
  const Impl::PendingSave pending{
      .run = impl.running, .epoch = impl.position.epoch, .global_step = impl.position.global_step};
  if (impl.running != nullptr) {
    const CheckpointContext begin{.run = impl.running->context,
                                  .epoch = pending.epoch,
                                  .global_step = pending.global_step,
                                  .is_asynchronous = true};
    impl.running->calls.each("on_checkpoint_begin",
                             [&](Callback& callback) { callback.on_checkpoint_begin(begin); });
  }
  if (!impl.saver) impl.saver = std::make_unique<checkpoint::AsyncSaver>(impl.options.group);
  impl.saver->save(
      options, [&] { return impl.content(); },
      impl.running != nullptr ? copying : checkpoint::Copying::kAtOnce);
  impl.pending_save = pending;
}

void Model::Impl::copy_before_change() noexcept {
  if (saver) saver->before_change();
}

std::optional<std::filesystem::path> Model::wait_for_save() const { return impl_->finish_save(); }

void Model::check_save() const {
  if (impl_->saver) impl_->saver->check();
}

std::optional<std::filesystem::path> Model::Impl::finish_save() {
  if (!saver) return std::nullopt;
  const auto pending = std::exchange(pending_save, std::nullopt);
  const auto path = saver->finish();
  if (path) comm::note_saved(path->string());
  // Callbacks only hear of the end of a save if they belong to the training in which it began.
  if (!pending || running == nullptr || pending->run != running) return path;
  CheckpointEndContext end{CheckpointContext{.run = running->context,
                                             .epoch = pending->epoch,
                                             .global_step = pending->global_step,
                                             .is_asynchronous = true}};
  end.path = path.value();
  end.seconds = saver->seconds().count();
  running->calls.each("on_checkpoint_end",
                      [&](Callback& callback) { callback.on_checkpoint_end(end); });
  return path;
}

void Model::Impl::finish_save_after(const std::string& message) {
  if (!saver) return;
  pending_save.reset();
  try {
    saver->finish();
  } catch (const std::exception& failure) {
    const std::string text = message_of(failure);
    // The exception that ends training may be this failure itself.
    if (message.find(text) != std::string::npos) return;
    warn("saving a checkpoint failed: ", text);
  }
}

void Model::resume(const std::filesystem::path& path) { impl_->resume(path); }

void Model::Impl::resume(const std::filesystem::path& path) {
  if (detail::PredictedStep::of_process() != nullptr) return;  // there are no values
  finish_save();
  find_device();
  const checkpoint::State state = runner->load(path);
  Standing standing = standing_of(state);
  has_position = true;
  position = standing.position;
  checked_step = 0;
  callback_states = std::move(standing.callback_states);
  if (loss_scale && standing.loss_scale) loss_scale->restore(*standing.loss_scale);
  detail::set_random_streams(state.own, device);
}

// Damage is found before anything is changed, and makes all ranks throw.
void Model::Impl::recover() {
  const bool is_first = options.group.rank() == 0;
  const auto warn_of = [&](const std::exception& error) {
    if (is_first) warn("the state that was kept before the restart cannot be used: ", error.what());
  };
  try {
    const auto newest = recovery->take_newest(position.global_step);
    if (!newest) return;
    resume(*newest);
  } catch (const CheckpointError& error) {
    return warn_of(error);
  } catch (const UsageError& error) {  // another rank could not read it
    return warn_of(error);
  }
  if (!is_first) return;
  note("goes on after step ", position.step, " of epoch ", position.epoch, " (step ",
       position.global_step, " in all), from the state that was kept before the restart");
}

}  // namespace trireme
