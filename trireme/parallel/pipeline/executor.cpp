// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/executor.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/buckets/divide.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/pipeline/execution/gradient_sums.h>
#include <trireme/parallel/pipeline/execution/in_transit.h>
#include <trireme/parallel/pipeline/execution/inputs.h>
#include <trireme/parallel/pipeline/execution/stage_run.h>
#include <trireme/parallel/pipeline/messages/messenger.h>
#include <trireme/parallel/pipeline/offload/host_copies.h>
#include <trireme/parallel/record/predicted_step.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/verifier/verify.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::pipeline {

using schedule::Action;
using schedule::ActionKind;
using schedule::item;

namespace {

// Throws for actions without a callback, and for `step` actions before the end of the list.
void check_callbacks(const std::vector<Action>& actions, const Callbacks& callbacks) {
  bool has_stepped = false;
  for (const Action& action : actions) {
    const bool is_given = action.kind == ActionKind::kGather   ? callbacks.gather != nullptr
                          : action.kind == ActionKind::kFree   ? callbacks.free != nullptr
                          : action.kind == ActionKind::kReduce ? callbacks.reduce != nullptr
                          : action.kind == ActionKind::kStep   ? callbacks.step != nullptr
                                                               : true;
    if (!is_given) {
      throw UsageError(join_message("the schedule has ", to_text(action),
                                    ", and nothing is given "
                                    "that does ",
                                    name_of(action.kind)),
                       "set it in ExecutorOptions::callbacks, or leave it out of the schedule");
    }
    if (has_stepped && action.kind != ActionKind::kStep && action.kind != ActionKind::kFree) {
      throw UsageError(join_message("the schedule has ", to_text(action),
                                    " after a step of the "
                                    "same rank, which needs all gradients of the rank"),
                       "put steps at the end of a rank, as with_steps does");
    }
    has_stepped = has_stepped || action.kind == ActionKind::kStep;
  }
}

// Checks everything that needs no other rank, and inserts messages.
Program prepare(Program program, const std::vector<StageCode>& stages, const comm::Group& group,
                const ExecutorOptions& options) {
  schedule::Schedule& plan = program.schedule;
  if (plan.num_ranks() != group.size()) {
    throw UsageError(join_message("the schedule has ", plan.num_ranks(), " ranks, and the group '",
                                  group.name(), "' has ", group.size()),
                     "make the schedule for the ranks of the group");
  }
  if (options.messages.receives_ahead < 0 || options.messages.outstanding.value_or(0) < 0) {
    throw UsageError(
        join_message("messages: ", options.messages.receives_ahead, " receives ahead, ",
                     options.messages.outstanding.value_or(0), " outstanding, expected 0 or more"),
        "correct ExecutorOptions::messages");
  }
  const schedule::Messages messages = messages_of(group, options.device, options.messages);
  if (!schedule::lists_messages(plan)) plan = schedule::with_messages(plan, messages);
  schedule::verify(
      plan, {.transfers = schedule::VerifyOptions::Transfers::kListed, .messages = messages});
  check_program(program);
  check_stages(program, stages, group.rank());
  check_callbacks(item(plan.ranks, group.rank()), options.callbacks);
  return program;
}

// Throws the first error on every rank, if `error` is not empty on one of them.
void throw_of_all(const std::string& error, const comm::Group& group) {
  const std::vector<std::string> all = comm::all_gather_text(error, group);
  const auto found =
      std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
  if (found == all.end()) return;
  constexpr std::string_view kHint = "\n  hint: ";  // the format of Error::what()
  const std::size_t end = found->find(kHint);
  throw UsageError(
      join_message("the pipeline cannot be made: rank ", found - all.begin(), ": ",
                   found->substr(0, end)),
      end == std::string::npos ? "look at that rank" : found->substr(end + kHint.size()));
}

// Makes the checks before the first step, which need no device and run no stage. Checks the program
// and the stages of this rank, verifies the schedule under the rules of the
// group's engine, and compares the program over all ranks. Collective and blocking. Throws
// UsageError on every rank if a check fails on one, or if programs differ.
// @return the program, with messages inserted if its schedule listed none.
Program validate_program(Program program, const std::vector<StageCode>& stages,
                         const comm::Group& group, const ExecutorOptions& options) {
  std::string error;
  std::string text;
  try {
    program = prepare(std::move(program), stages, group, options);
    text = join_message(describe(program), "receives ahead ", options.messages.receives_ahead,
                        ", outstanding ", options.messages.outstanding.value_or(-1));
  } catch (const std::exception& found) {
    error = message_of(found);
  }
  // Errors are exchanged before programs are compared, so that no rank waits in the comparison for
  // one that has failed.
  throw_of_all(error, group);
  detail::check_same_text("program of the pipeline", text, group);
  return program;
}

// Returns true for forwards and for messages of activations, which an evaluation performs.
bool is_of_forward(const Action& action) {
  if (schedule::is_message(action.kind)) return !carries_gradients(action);
  return action.kind == ActionKind::kForward;
}

}  // namespace

struct Executor::Impl {
  Impl(Program agreed, const std::vector<StageCode>& stages, const comm::Group& ranks,
       const ExecutorOptions& given)
      : program(std::move(agreed)),
        group(ranks),
        options(given),
        sums(program, stages, group, given.device),
        messenger(program, group, given.device, given.messages, sums.num_tags()),
        inputs(program, stages, actions(), given.device),
        activations(program),
        gradients(program) {
    for (const Result& result : program.results) results[result.value] = {};
    for (std::size_t index = 0; index < program.boundary_tensors.size(); ++index) {
      boundary_tensor_of[program.boundary_tensors[index].value] = index;
    }
    if (!program.is_evaluation && std::ranges::any_of(actions(), [](const Action& action) {
          return action.kind == ActionKind::kOffload;
        })) {
      copies = std::make_unique<HostCopies>(options.device);
    }
    for (const StageCode& code : stages) {
      runs[code.stage] = std::make_unique<StageRun>(program, code, actions(), copies.get());
    }
  }

  const std::vector<Action>& actions() const { return item(program.schedule.ranks, group.rank()); }
  StageRun& run_of(int stage) { return *runs.at(stage); }
  bool is_own(int stage) const { return program.schedule.rank_of(stage) == group.rank(); }
  bool has_loss() const { return is_own(program.loss_stage); }

  StepResult run_step(const std::vector<std::vector<at::Tensor>>& micro_batches,
                      const StepOptions& given);
  void perform(const Action& action);
  void pass_over(const Action& action);
  void forward(const Action& action);
  void recompute(const Action& action);
  void offload(const Action& action);
  void load(const Action& action);
  void backward(const Action& action);
  void backward_weight(const Action& action);
  void leave_out_gradients(int stage);
  void send(const Action& action);
  void receive(const Action& action);
  void call_back(const Action& action);
  void finish_gradients();

  MicroBatch micro_batch_of(const Action& action) const;
  at::Tensor gradient_of(int value, int micro_batch);
  at::Tensor mean_loss() const;
  void end_step();
  [[noreturn]] void fail(const std::exception_ptr& error);

  Program program;
  comm::Group group;
  ExecutorOptions options;
  GradientSums sums;
  Messenger messenger;
  Inputs inputs;
  InTransit activations;
  InTransit gradients;
  std::map<int, std::size_t> boundary_tensor_of;  // by value
  std::unique_ptr<HostCopies> copies;             // null where the rank offloads nothing
  std::map<int, std::unique_ptr<StageRun>> runs;
  // The state of the current step:
  std::int64_t step_number = 0;
  double scale = 1;
  std::vector<at::Tensor> losses;
  std::map<int, std::vector<at::Tensor>> results;  // by value, in evaluations
  std::optional<StepRecorder> recorder;
  const Action* current = nullptr;  // null before the first action and after the last
  bool are_gradients_finished = false;
  bool has_failed = false;
};

MicroBatch Executor::Impl::micro_batch_of(const Action& action) const {
  return {.number = action.micro_batch,
          .step = step_number,
          .variant = program.variant_of(action.micro_batch)};
}

void Executor::Impl::forward(const Action& action) {
  StageRun& run = run_of(action.stage);
  std::vector<at::Tensor> taken;
  std::vector<bool> are_callers;
  std::int64_t bytes = 0;
  for (const int value : run.code().inputs) {
    const auto boundary_tensor = boundary_tensor_of.find(value);
    if (boundary_tensor == boundary_tensor_of.end()) {
      Inputs::Taken input = inputs.take(value, action.micro_batch, action.stage);
      taken.push_back(std::move(input.tensor));
      are_callers.push_back(!input.is_copy);
    } else {
      are_callers.push_back(false);
      taken.push_back(activations.take(boundary_tensor->second, action.stage, action.micro_batch));
      bytes += static_cast<std::int64_t>(taken.back().nbytes());
    }
  }
  std::vector<at::Tensor> given =
      run.forward(micro_batch_of(action), std::move(taken), are_callers);
  if (recorder) {
    recorder->take_inputs(bytes);
    recorder->give(given);
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    const int value = run.code().outputs[i];
    if (const auto kept = results.find(value); kept != results.end()) {
      kept->second.resize(losses.size());
      item(kept->second, action.micro_batch) = given[i];
    }
    if (value == program.loss) item(losses, action.micro_batch) = given[i];
    const auto boundary_tensor = boundary_tensor_of.find(value);
    if (boundary_tensor == boundary_tensor_of.end()) continue;
    for (const int to : program.boundary_tensors[boundary_tensor->second].to) {
      activations.at(boundary_tensor->second, to, action.micro_batch) = given[i];
    }
  }
}

void Executor::Impl::recompute(const Action& action) {
  run_of(action.stage).recompute(micro_batch_of(action));
}

void Executor::Impl::offload(const Action& action) {
  const std::vector<const void*> left = run_of(action.stage).offload(action.micro_batch);
  if (recorder) recorder->leave_out(left);
}

void Executor::Impl::load(const Action& action) {
  const std::vector<const void*> received = run_of(action.stage).load(action.micro_batch);
  if (recorder) recorder->leave_out(received);
}

// Adds the gradients of a value from all stages that took it, the last stage first. That is the
// order in which autograd adds them in one process.
at::Tensor Executor::Impl::gradient_of(int value, int micro_batch) {
  const auto found = boundary_tensor_of.find(value);
  if (found == boundary_tensor_of.end()) {
    return at::full_like(item(losses, micro_batch), program.weight_of(micro_batch) * scale);
  }
  const BoundaryTensor& boundary_tensor = program.boundary_tensors[found->second];
  at::Tensor sum;
  for (auto to = boundary_tensor.to.rbegin(); to != boundary_tensor.to.rend(); ++to) {
    at::Tensor gradient = gradients.take(found->second, *to, micro_batch);
    if (!gradient.defined()) continue;
    sum = sum.defined() ? at::add(sum, gradient) : std::move(gradient);
  }
  return sum;
}

void Executor::Impl::backward(const Action& action) {
  StageRun& run = run_of(action.stage);
  std::vector<at::Tensor> of_outputs;
  for (const int value : run.code().outputs) {
    of_outputs.push_back(gradient_of(value, action.micro_batch));
  }
  std::vector<at::Tensor> of_inputs;
  {
    const GradientSums::OfStage scope(sums, action.stage);
    of_inputs = run.backward(action.micro_batch, std::move(of_outputs));
    leave_out_gradients(action.stage);
  }
  if (recorder) recorder->give(of_inputs);
  for (std::size_t i = 0; i < of_inputs.size(); ++i) {
    const auto boundary_tensor = boundary_tensor_of.find(run.code().inputs[i]);
    if (boundary_tensor == boundary_tensor_of.end()) continue;
    gradients.at(boundary_tensor->second, action.stage, action.micro_batch) =
        std::move(of_inputs[i]);
  }
}

void Executor::Impl::backward_weight(const Action& action) {
  const GradientSums::OfStage scope(sums, action.stage);
  run_of(action.stage).backward_weight(action.micro_batch);
  leave_out_gradients(action.stage);
}

// Called after each backward, because autograd may have given a parameter new memory for its
// gradient.
void Executor::Impl::leave_out_gradients(int stage) {
  if (!recorder) return;
  for (const auto& [name, parameter] : run_of(stage).code().parameters) {
    recorder->leave_out(parameter.grad());
  }
}

void Executor::Impl::send(const Action& action) {
  const bool are_gradients = carries_gradients(action);
  std::vector<at::Tensor> tensors;
  for (const std::size_t index : messenger.boundary_tensors_of(action)) {
    const BoundaryTensor& boundary_tensor = program.boundary_tensors[index];
    at::Tensor tensor = are_gradients ? gradients.take(index, action.stage, action.micro_batch)
                                      : activations.take(index, action.peer, action.micro_batch);
    if (!tensor.defined()) {  // the stage computes no gradient, but the receiver waits for one
      tensor = at::zeros(item(boundary_tensor.shapes, program.variant_of(action.micro_batch)).sizes,
                         at::TensorOptions(boundary_tensor.dtype).device(options.device));
    }
    tensors.push_back(std::move(tensor));
  }
  messenger.send(action, tensors);
}

void Executor::Impl::receive(const Action& action) {
  const bool are_gradients = carries_gradients(action);
  const std::vector<std::size_t>& boundary_tensors = messenger.boundary_tensors_of(action);
  std::vector<at::Tensor> tensors = messenger.receive(action);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor& place = are_gradients
                            ? gradients.at(boundary_tensors[i], action.peer, action.micro_batch)
                            : activations.at(boundary_tensors[i], action.stage, action.micro_batch);
    place = std::move(tensors[i]);
  }
}

// Runs once per step: before the first `step` action, or after the last action.
void Executor::Impl::finish_gradients() {
  if (std::exchange(are_gradients_finished, true) || program.is_evaluation) return;
  sums.finish();
}

void Executor::Impl::call_back(const Action& action) {
  const Callbacks& callbacks = options.callbacks;
  switch (action.kind) {
    case ActionKind::kGather:
      return callbacks.gather(action.stage);
    case ActionKind::kFree:
      return callbacks.free(action.stage);
    case ActionKind::kReduce: {
      const GradientSums::OfStage scope(sums, action.stage);
      return callbacks.reduce(action.stage, action.micro_batch);
    }
    default:
      finish_gradients();
      return callbacks.step(action.stage);
  }
}

// Skips an action in an evaluation. A message of gradients carries no tensors there, but its
// receive still waits until the activations that it answers have arrived. So no rank runs further
// ahead than in training, and the verified schedule stays valid.
void Executor::Impl::pass_over(const Action& action) {
  if (action.kind == ActionKind::kReceive) messenger.receive(action);
}

void Executor::Impl::perform(const Action& action) {
  if (program.is_evaluation && !is_of_forward(action)) return pass_over(action);
  switch (action.kind) {
    case ActionKind::kForward:
      return forward(action);
    case ActionKind::kRecompute:
      return recompute(action);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return backward(action);
    case ActionKind::kBackwardWeight:
      return backward_weight(action);
    case ActionKind::kOffload:
      return offload(action);
    case ActionKind::kLoad:
      return load(action);
    case ActionKind::kSend:
      return send(action);
    case ActionKind::kReceive:
      return receive(action);
    default:
      return call_back(action);
  }
}

at::Tensor Executor::Impl::mean_loss() const {
  const c10::NoGradGuard no_graph;
  at::Tensor sum;
  for (int number = 0; number < program.schedule.micro_batches; ++number) {
    const at::Tensor loss = item(losses, number).reshape({});
    const double weight = program.weight_of(number);
    const at::Tensor weighted = weight == 1 ? loss : at::mul(loss, weight);
    sum = sum.defined() ? at::add(sum, weighted) : weighted;
  }
  at::Tensor mean = at::empty({}, sum.options());
  detail::divide(mean, sum, detail::divisor_for(sum.options(), program.sum_of_weights()));
  return mean;
}

StepResult Executor::Impl::run_step(const std::vector<std::vector<at::Tensor>>& micro_batches,
                                    const StepOptions& given) {
  if (std::ssize(micro_batches) != program.schedule.micro_batches) {
    throw UsageError(
        join_message("step() was given ", micro_batches.size(),
                     " micro-batches, and the schedule has ", program.schedule.micro_batches),
        "cut the batch into as many, or make the pipeline for another number");
  }
  if (given.report) recorder.emplace(program.schedule, group);
  losses.assign(micro_batches.size(), {});
  are_gradients_finished = false;
  scale = given.scale;
  if (!program.is_evaluation) sums.begin();
  messenger.begin();
  inputs.begin(micro_batches);
  for (const Action& action : actions()) {
    current = &action;
    const double began = recorder ? recorder->now() : 0;
    if (recorder) recorder->begin(action);
    perform(action);
    if (recorder) recorder->end(action, began);
    // Copies to the host start here, before the offload action, so that the actions in between
    // overlap with them.
    if (action.kind == ActionKind::kForward && !program.is_evaluation) {
      run_of(action.stage).begin_offload(action.micro_batch);
    }
    messenger.drop_sent();
  }
  current = nullptr;
  finish_gradients();
  messenger.finish();
  StepResult result;
  for (const Result& kept : program.results) {
    result.results.push_back(results.at(kept.value));
  }
  for (auto& [value, tensors] : results) tensors.clear();
  if (has_loss()) {
    result.loss = mean_loss();
    result.losses = std::move(losses);
  }
  if (given.share_loss) {
    if (!has_loss()) {
      result.loss = at::empty({}, at::TensorOptions(program.loss_dtype).device(options.device));
    }
    comm::broadcast(result.loss, program.schedule.rank_of(program.loss_stage), group, "loss");
  }
  if (given.report) result.report = recorder->gather(group);
  return result;
}

void Executor::Impl::end_step() {
  recorder.reset();
  inputs.end();
}

// Aborts the group, so that no other rank waits, and rethrows.
void Executor::Impl::fail(const std::exception_ptr& error) {
  has_failed = true;
  const std::string reason = join_message(
      options.name.empty() ? join_message("rank ", group.rank()) : options.name, " failed in step ",
      step_number, " of the pipeline",
      current == nullptr
          ? std::string()
          : join_message(", at ", to_text(*current), " (", schedule::describe(*current), ")"),
      ": ", message_of(error));
  detail::abort(group, reason);
  std::rethrow_exception(error);
}

Executor::Executor(Program program, const std::vector<StageCode>& stages, const comm::Group& group,
                   const ExecutorOptions& options) {
  if (auto* const predicted = detail::PredictedStep::of_process()) predicted->refuse("an Executor");
  Program agreed = validate_program(std::move(program), stages, group, options);
  impl_ = std::make_unique<Impl>(std::move(agreed), stages, group, options);
}

Executor::Executor(Executor&&) noexcept = default;
Executor& Executor::operator=(Executor&&) noexcept = default;
Executor::~Executor() = default;

StepResult Executor::step(const std::vector<std::vector<at::Tensor>>& micro_batches,
                          std::int64_t step_number, const StepOptions& options) {
  if (impl_->has_failed) {
    throw UsageError("a step of this pipeline has failed, and its group has ended",
                     "make a new group and a new pipeline, or end the process");
  }
  impl_->step_number = step_number;
  try {
    StepResult result = impl_->run_step(micro_batches, options);
    impl_->end_step();
    return result;
  } catch (...) {
    impl_->end_step();
    impl_->fail(std::current_exception());
  }
}

const schedule::Schedule& Executor::schedule() const noexcept { return impl_->program.schedule; }

std::size_t Executor::num_buffers() const noexcept { return impl_->messenger.num_buffers(); }

std::int64_t Executor::host_bytes() const noexcept {
  return impl_->copies ? impl_->copies->num_bytes() : 0;
}

}  // namespace trireme::pipeline
