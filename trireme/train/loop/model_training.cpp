// SPDX-License-Identifier: Apache-2.0
// The training loop: Model::fit and Model::train.
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/step_progress.h>
#include <trireme/base/text.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/monitor/termination.h>
#include <trireme/data/data_loader.h>
#include <trireme/optim/gradients.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/record/predicted_step.h>
#include <trireme/train/loop/model_impl.h>
#include <trireme/train/loop/out_of_memory.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

namespace trireme {

using detail::all_counts;

namespace {

using Seconds = std::chrono::duration<double>;

// With different numbers of steps, ranks would wait for each other at the end of the epoch. A rank
// that has failed sends kNone.
void check_same_steps(std::int64_t steps, const comm::Group& group,
                      const detail::Failures& failures) {
  constexpr std::int64_t kNone = -1;
  const at::Tensor all = all_counts(failures.has_failed() ? kNone : steps, group);
  const std::int64_t* counts = all.const_data_ptr<std::int64_t>();
  if (std::find(counts, counts + group.size(), kNone) != counts + group.size()) {
    failures.throw_on_all("training");
  }
  for (int rank = 1; rank < group.size(); ++rank) {
    if (counts[rank] == counts[0]) continue;
    throw UsageError(join_message("ranks would take different numbers of steps in an epoch: ",
                                  counts[0], " on rank 0, ", counts[rank], " on rank ", rank),
                     "shard the data set so that all parts are equal: remainder kWrap or kDrop");
  }
}

void check(const FitOptions& options) {
  if (options.epochs < 0) {
    throw UsageError(join_message("cannot train for ", options.epochs, " epochs"),
                     "give 0 or more");
  }
  if (options.validate_every_epochs >= 0 && options.validate_every_steps >= 0) return;
  throw UsageError(join_message("cannot validate every ", options.validate_every_epochs,
                                " epochs and every ", options.validate_every_steps, " steps"),
                   "give numbers above 0, or 0 for never");
}

}  // namespace

// Weights the losses by their rows, unless all have equally many.
at::Tensor detail::mean_of(const std::vector<MicroBatchLoss>& losses) {
  const auto has_as_many = [&](const MicroBatchLoss& one) { return one.rows == losses[0].rows; };
  const bool is_even = std::ranges::all_of(losses, has_as_many);
  at::Tensor sum;
  std::int64_t weights = 0;
  for (const auto& [loss, rows] : losses) {
    const at::Tensor term = is_even ? loss : loss * rows;
    sum = sum.defined() ? sum + term : term;
    weights += is_even ? 1 : rows;
  }
  return weights == 1 ? sum : sum / weights;
}

at::Tensor detail::all_counts(std::int64_t own, const comm::Group& group) {
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  comm::all_gather(all, at::tensor({own}, at::kLong), group);
  return all;
}

std::int64_t Model::Impl::steps_in_epoch(const data::DataLoader& data) const {
  detail::Failures failures(options.group);
  std::int64_t batches = 0;
  failures.attempt(
      [&] {
        if (!data.is_batched()) {
          throw UsageError("the data to train on has no batch size: each step would take one row",
                           "call batch() on the data loader");
        }
        batches = data.batches();
      },
      [&] {
        return join_message("rank ", options.group.rank(),
                            ", counting batches before the first step");
      });
  const std::int64_t steps = batches / options.plan.micro_batches;
  check_same_steps(steps, options.group, failures);
  if (steps == 0) {
    throw UsageError(join_message("an epoch has ", batches, " batches, a step takes ",
                                  options.plan.micro_batches, " (plan.micro_batches)"),
                     "use more data, smaller batches or fewer micro-batches");
  }
  return steps;
}

// Throws on all ranks if any has failed. Returns whether any rank wants to stop. Sets
// `measures_step` if any rank wants the timeline of the next step.
bool Model::Impl::agree_to_stop(const Run& run) {
  enum Wish : std::int64_t { kNone, kStop, kLeave, kFail, kNumWishes };
  Wish own = is_asked_to_leave() ? kLeave : wants_to_stop ? kStop : kNone;
  measures_step = measures_step || wants_timeline;
  if (options.group.size() == 1) {
    is_leaving = is_leaving || own == kLeave;
    return own != kNone;
  }
  const detail::Failures& failures = run.calls.failures();
  if (failures.has_failed()) own = kFail;
  const at::Tensor all = all_counts(own + (measures_step ? kNumWishes : 0), options.group);
  const std::int64_t* const wishes = all.const_data_ptr<std::int64_t>();
  std::int64_t most = kNone;
  for (int rank = 0; rank < options.group.size(); ++rank) {
    most = std::max<std::int64_t>(most, wishes[rank] % kNumWishes);
    measures_step = measures_step || wishes[rank] >= kNumWishes;
  }
  if (most == kFail) failures.throw_on_all("training");
  if (most == kLeave && !std::exchange(is_leaving, true)) comm::leave_with_others();
  return most != kNone;
}

void Model::Impl::start_agreement(const Run& run,
                                  const std::vector<detail::MicroBatchLoss>& losses) {
  agreement.start(detail::mean_of(losses), {.to_stop = wants_to_stop || is_asked_to_leave(),
                                            .to_save = wants_to_save.exchange(false),
                                            .has_failed = run.calls.failures().has_failed()});
}

// Called if this rank's optimizer has failed. The other ranks have stepped and will gather the
// parameters that were written, which needs this rank. Multiplying by 1 marks this rank's parts as
// written.
void Model::Impl::pretend_step() {
  const torch::NoGradGuard no_grad;
  for (const Parallelized::Part& part : runner->parallelized().parts()) {
    if (part.is_own) part.tensor.mul_(1);
  }
}

// Runs one optimizer step over the next micro-batches.
// @param batches null if they could not be opened.
StepEndContext Model::Impl::train_step(Run& run, data::BatchStream* batches,
                                       const StepContext& step) {
  detail::StepTimer& timer = run.timer;
  StepEndContext result{step};
  if (options.deterministic) {
    detail::seed_step(*options.deterministic, step.global_step, runner->data_group().rank());
  }
  timer.measure(Phase::kOptimizer, [&] { optimizer.zero_grad(); });
  runner->step(run, batches, result);
  const auto outcome = timer.measure(Phase::kBackward, [&] {
    try {
      return agreement.finish(step.epoch, step.step);
    } catch (const detail::NonFiniteLoss& found) {
      fail_for_loss(run, step, found);
    }
  });
  if (outcome.has_failed) run.calls.failures().throw_on_all("training");
  check_rows(step);
  result.loss = outcome.loss;
  result.is_save_requested = outcome.is_saved;
  is_stopped = outcome.is_last;

  const Sharing sharing = runner->sharing();
  if (loss_scale) {
    result.loss_scale = loss_scale->value();
    result.is_skipped =
        !timer.measure(Phase::kOptimizer, [&] { return loss_scale->unscale(optimizer, sharing); });
    if (result.is_skipped) return result;
  }
  timer.measure(Phase::kCallbacks, [&] {
    copy_before_change();
    run.calls.each("on_backward_end", [&](Callback& callback) { callback.on_backward_end(step); });
  });
  const bool has_stepped = run.calls.attempt("stepping the optimizer", [&] {
    timer.measure(Phase::kOptimizer, [&] {
      copy_before_change();  // of a save that a callback has just begun
      if (options.clip_norm) {
        result.gradient_norm =
            clip_by_global_norm(optimizer, *options.clip_norm, sharing).item<double>();
      }
      detail::with_memory_account(*module, optimizer, device, [&] { optimizer.step(); });
    });
  });
  if (!has_stepped && cuts_anything(options.plan)) pretend_step();
  return result;
}

void Model::Impl::call_step_end(Run& run, const StepEndContext& end) {
  const std::int64_t every = run.options.validate_every_steps;
  const bool ends_validated_epoch = position.is_between_epochs() &&
                                    run.options.validate_every_epochs > 0 &&
                                    position.epoch % run.options.validate_every_epochs == 0;
  run.timer.measure(Phase::kCallbacks, [&] {
    run.calls.each("on_step_end", [&](Callback& callback) { callback.on_step_end(end); });
    const bool validates = run.validate_with != nullptr && every > 0 &&
                           end.global_step % every == 0 && !ends_validated_epoch;
    if (validates) validate(run);
  });
}

Evaluation Model::Impl::validate(Run& run) {
  run.context.scalars->clear();
  const EvaluationContext begin{
      .run = run.context, .epoch = position.epoch, .global_step = position.global_step};
  run.calls.each("on_evaluation_begin",
                 [&](Callback& callback) { callback.on_evaluation_begin(begin); });
  const auto started = std::chrono::steady_clock::now();
  EvaluationEndContext end{begin};
  end.evaluation = evaluate(*run.validate_with,
                            run.context.is_dry_run ? 1 : std::numeric_limits<std::int64_t>::max());
  end.seconds = Seconds(std::chrono::steady_clock::now() - started).count();
  run.history.validations.push_back(
      {.epoch = begin.epoch, .global_step = begin.global_step, .evaluation = end.evaluation});
  run.calls.each("on_evaluation_end", [&](Callback& callback) { callback.on_evaluation_end(end); });
  return end.evaluation;
}

// Enters the next epoch, or the one that a resumed run continues in its middle.
void Model::Impl::begin_epoch(const Run& run) {
  const std::int64_t steps = run.context.steps_in_epoch;
  if (position.is_between_epochs()) {
    position = {.epoch = position.next_epoch(),
                .steps_in_epoch = steps,
                .global_step = position.global_step,
                .shards = data_ranks(options.plan, options.group.size())};
  } else if (position.steps_in_epoch != steps) {
    adapt_position(run);
  }
}

// Opens the remaining batches of the epoch. Returns null if this rank cannot read them.
std::unique_ptr<data::BatchStream> Model::Impl::open_batches(Run& run) {
  std::unique_ptr<data::BatchStream> batches;
  runner->open(run, [&] {
    batches = run.training.open(position.epoch - 1, position.step * options.plan.micro_batches);
  });
  return batches;
}

void Model::Impl::train_epoch(Run& run) {
  begin_epoch(run);
  const EpochContext epoch{
      .run = run.context, .epoch = position.epoch, .steps_done = position.step};
  run.calls.set_place(position.epoch, position.global_step);
  const std::unique_ptr<data::BatchStream> batches = open_batches(run);
  run.calls.each("on_epoch_begin", [&](Callback& callback) { callback.on_epoch_begin(epoch); });
  run.timer.clear();
  const auto started = std::chrono::steady_clock::now();
  MetricAccumulator accumulator;
  while (!position.is_between_epochs()) {
    const StepContext step{.run = run.context,
                           .epoch = epoch.epoch,
                           .step = position.step + 1,
                           .global_step = position.global_step + 1};
    run.context.scalars->clear();
    run.calls.set_place(step.epoch, step.global_step);
    run.timer.measure(Phase::kCallbacks, [&] {
      run.calls.each("on_step_begin", [&](Callback& callback) { callback.on_step_begin(step); });
    });
    StepEndContext end = train_step(run, batches.get(), step);
    ++position.step;
    ++position.global_step;
    accumulator.add_loss(static_cast<double>(end.loss), end.samples);
    end.all_samples = end.samples * data_ranks(options.plan, options.group.size());
    position.rows += end.all_samples;
    compare_replicas_if_due(run);
    end.spans = run.timer.end_step();
    end.seconds = sum_of(end.spans);
    if (!run.context.is_dry_run) {
      report_step({.step = end.global_step,
                   .of_steps = position.global_step + position.steps_in_epoch - position.step +
                               (requested_epochs - position.epoch) * position.steps_in_epoch,
                   .epoch = end.epoch,
                   .samples = end.all_samples,
                   .own_seconds = end.seconds.total() - end.seconds.communication});
    }
    compare_with_prediction(end.seconds);
    call_step_end(run, end);
    // The state after the last step of an epoch is kept with what happens at its end.
    if (!position.is_between_epochs()) keep_state(run);
    if (is_stopped && !position.is_between_epochs()) return;
  }
  end_epoch(run, epoch, accumulator, Seconds(std::chrono::steady_clock::now() - started).count());
  keep_state(run);
}

void Model::Impl::keep_state(Run& run) {
  if (!recovery || run.context.is_dry_run) return;
  if (recovery->is_due(position.global_step)) compare_replicas(run);
  run.timer.measure(Phase::kCallbacks,
                    [&] { recovery->after_step(position.global_step, [&] { return content(); }); });
}

void Model::Impl::end_epoch(Run& run, const EpochContext& epoch,
                            const MetricAccumulator& accumulator, double seconds) {
  agree_to_stop(run);  // a callback may have failed after the last step
  run.context.scalars->clear();
  const MetricAccumulator all = all_reduce(counted_once(accumulator), options.group);
  EpochEndContext end{epoch};
  end.global_step = position.global_step;
  end.mean_loss = all.evaluation().loss;
  end.samples = all.samples;
  end.seconds = seconds;
  const std::int64_t every = run.options.validate_every_epochs;
  if (run.validate_with != nullptr && every > 0 && epoch.epoch % every == 0) {
    end.evaluation = validate(run);
  }
  run.history.epochs.push_back({.epoch = end.epoch,
                                .global_step = end.global_step,
                                .loss = end.mean_loss,
                                .samples = end.samples,
                                .seconds = seconds,
                                .evaluation = end.evaluation});
  run.calls.each("on_epoch_end", [&](Callback& callback) { callback.on_epoch_end(end); });
  const bool any_wants_to_stop = agree_to_stop(run);
  is_stopped = is_stopped || any_wants_to_stop;
}

void Model::Impl::run_epochs(Run& run) {
  report_failure({});  // the program has caught an earlier one
  run.calls.set_place(position.epoch, position.global_step);
  run.calls.each("on_run_begin", [&](Callback& callback) { callback.on_run_begin(run.context); });
  if (!run.context.is_dry_run) {
    detail::StateKeys keys;
    run.calls.each("restore", [&](Callback& callback) {
      const auto found = callback_states.find(keys.next(callback));
      if (found != callback_states.end()) callback.restore(found->second);
    });
    callback_states.clear();
  }
  // on_run_begin may have failed, or have asked to stop. All ranks agree on that before the first
  // step.
  is_stopped = agree_to_stop(run);
  while (position.next_epoch() <= requested_epochs && !is_stopped) train_epoch(run);
  agree_to_stop(run);
  finish_save();
  if (recovery) recovery->finish();
  if (is_leaving) save_to_leave(run);
  run.history.is_stopped = is_stopped;
  if (is_stopped) requested_epochs = position.next_epoch() - 1;
  runner->complete();
  run.calls.each("on_run_end", [&](Callback& callback) { callback.on_run_end(run.context); });
  agree_to_stop(run);
}

// Records the first step of a program that `trireme predict` has started.
void Model::Impl::record_step(detail::PredictedStep& predicted, const Run& run) {
  const auto batch = run.training.open(position.next_epoch() - 1)->next();
  if (!batch) {
    throw UsageError("the data of an epoch has no batch, so there is no step to predict",
                     "give every rank at least one batch, or predict fewer ranks");
  }
  predicted.run([&] { return loss_of(*batch); });
  optimizer.step();
  predicted.finish();
}

History Model::Impl::run(Run& run) {
  const auto deterministic = determinism();
  wants_to_stop = wants_to_save = is_stopped = is_leaving = false;
  wants_timeline = measures_step = false;
  const detail::Listening listening(is_listening = listens(run));
  find_device();
  module->train();
  if (auto* const predicted = detail::PredictedStep::of_process()) record_step(*predicted, run);
  // Comes before on_run_begin, because a callback that hears of a failure has had that call. Stages
  // are known from here on.
  runner->prepare(run.training);
  if (recovery && !run.context.is_dry_run) recover();
  requested_epochs += run.options.epochs;
  running = &run;
  try {
    run_epochs(run);
    copy_before_change();  // of a save that a callback has begun at the end
  } catch (...) {
    // Restores the state so that another training can follow, for example after a resume().
    running = nullptr;
    requested_epochs -= run.options.epochs;
    runner->abandon_step();
    const std::string message = message_of(std::current_exception());
    const FailureContext failure{.run = run.context,
                                 .epoch = position.epoch,
                                 .global_step = position.global_step,
                                 .message = message};
    for (Callback& callback : run.calls.all()) callback.on_failure(failure);
    finish_save_after(message);
    if (recovery) recovery->abandon();
    throw;
  }
  running = nullptr;
  return std::move(run.history);
}

History Model::fit(const data::DataLoader& training, const data::DataLoader& validation,
                   const FitOptions& options) {
  check(options);
  Impl& impl = *impl_;
  impl.resume_if_told(*this, options.callbacks);
  const data::DataLoader own = impl.training_part(training);
  const bool validates = options.validate_every_epochs > 0 || options.validate_every_steps > 0;
  const data::DataLoader own_validation =
      validates ? impl.part_of(validation, data::Remainder::kUneven) : validation;
  impl.is_sharded_manually = training.is_sharded();
  impl.num_same_rows = 0;
  const std::int64_t steps = impl.steps_in_epoch(own);
  Run run({.model = *this,
           .rank = impl.options.group.rank(),
           .world_size = impl.options.group.size(),
           .last_epoch = impl.requested_epochs + options.epochs,
           .steps_in_epoch = steps},
          own, &own_validation, options, impl.options.group);
  History history = impl.run(run);
  if (impl.is_leaving) impl.leave(options.callbacks);
  return history;
}

History Model::train(std::int64_t epochs, const data::DataLoader& data, const Callbacks& callbacks,
                     const data::DataLoader* evaluate_with) {
  const bool validates = evaluate_with != nullptr;
  return fit(data, validates ? *evaluate_with : data,
             {.epochs = epochs,
              .callbacks = callbacks,
              .validate_every_epochs = validates ? 1 : 0,
              .validate_every_steps = 0});
}

}  // namespace trireme
