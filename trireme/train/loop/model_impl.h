// SPDX-License-Identifier: Apache-2.0
// The inside of Model, shared by its sources: model.cpp (making it, evaluating), model_training.cpp
// (the loop), model_dry_run.cpp, model_checkpoints.cpp, and the two runners of plans.
#pragma once

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/checkpoint/async_saver.h>
#include <trireme/data/data_loader.h>
#include <trireme/optim/autocast.h>
#include <trireme/optim/loss_scale.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/train/loop/callback_calls.h>
#include <trireme/train/loop/determinism.h>
#include <trireme/train/loop/runner.h>
#include <trireme/train/metric_accumulator.h>
#include <trireme/train/model.h>
#include <trireme/train/step_agreement.h>
#include <trireme/train/step_times.h>

#include <atomic>
#include <charconv>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {
namespace data {
class BatchStream;
}

namespace detail {

/// Where training stands, as a checkpoint records it: `step` of the `steps_in_epoch` steps of
/// `epoch` are done.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::int64_t steps_in_epoch = 0;
  std::int64_t global_step = 0;

  bool is_between_epochs() const { return step == steps_in_epoch; }
  std::int64_t next_epoch() const { return is_between_epochs() ? epoch + 1 : epoch; }
};

/// Names of callbacks' states in a checkpoint: a callback's name, and its place among those of that
/// name.
class StateKeys {
 public:
  std::string next(const Callback& callback);

 private:
  std::map<std::string, int> counts_;
};

/// By rank. Collective, blocking.
at::Tensor all_counts(std::int64_t own, const comm::Group& group);

struct MicroBatchLoss {
  at::Tensor loss;
  std::int64_t rows = 0;
};
/// Returns the mean over all rows; 0 where there are none. One that is not a number stays so.
at::Tensor mean_of(const std::vector<MicroBatchLoss>& losses);

/// Returns a number of a checkpoint. Throws CheckpointError where it is not there.
template <typename Number>
Number number_entry(const checkpoint::State& state, const std::string& name) {
  const auto found = state.entries.find(name);
  if (found != state.entries.end()) {
    const std::string& text = found->second;
    Number value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure == std::errc{} && end == text.data() + text.size()) return value;
  }
  throw CheckpointError(
      join_message("the checkpoint has no number in its entry ", name),
      "only Model::save makes checkpoints to resume; load others with checkpoint::load");
}

/// The rows that count, of a batch that was padded.
at::Tensor valid_rows(const at::Tensor& tensor, const data::Batch& batch);

}  // namespace detail

/// One call of fit, train or dry_run.
struct Model::Run {
  Run(RunContext the_context, const data::DataLoader& the_training,
      const data::DataLoader* validation, const FitOptions& the_options, const comm::Group& group)
      : context(std::move(the_context)),
        training(the_training),
        validate_with(validation),
        options(the_options),
        calls(the_options.callbacks, group) {}

  const RunContext context;
  const data::DataLoader& training;
  const data::DataLoader* const validate_with;  // may be null
  const FitOptions& options;
  detail::CallbackCalls calls;
  detail::StepTimer timer;
  History history;
};

struct Model::Impl {
  Impl(std::shared_ptr<torch::nn::Module> the_module, torch::optim::Optimizer& the_optimizer,
       ModelOptions the_options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::shared_ptr<torch::nn::Module> module;
  torch::optim::Optimizer& optimizer;
  ModelOptions options;
  Forward forward;  // empty for a model of a function
  Loss loss;
  BatchLoss batch_loss;
  std::unique_ptr<Runner> runner;
  detail::StepAgreement agreement;
  std::optional<LossScale> loss_scale;  // in fp16
  at::Device device{at::kCPU};
  detail::Position position;
  std::int64_t requested_epochs = 0;
  std::map<std::string, std::string> callback_states;  // of a checkpoint, for the next training
  Run* running = nullptr;
  std::atomic<bool> wants_to_stop = false;  // this rank
  std::atomic<bool> wants_to_save = false;  // this rank
  bool is_stopped = false;                  // all ranks
  std::optional<std::string> rows_of_step;  // that is compared with those of other ranks
  bool is_sharded_manually = false;         // the data of this training
  int num_same_rows = 0;  // comparisons in a row in which ranks had read the same rows

  /// A save beside the training that nobody has waited for.
  struct PendingSave {
    const Run* run = nullptr;  ///< in which it began; null outside of one
    std::int64_t epoch = 0;
    std::int64_t global_step = 0;
  };
  std::optional<PendingSave> pending_save;
  std::unique_ptr<checkpoint::AsyncSaver> saver;  // made by the first such save

  void check_options() const;
  void find_device();
  at::Tensor input_of(const data::Batch& batch) const;
  at::Tensor target_of(const data::Batch& batch) const;
  at::Tensor output_of(const at::Tensor& input) const;
  at::Tensor loss_of(const data::Batch& batch) const;
  std::unique_ptr<detail::DeterministicAlgorithms> determinism() const;
  /// Of all batches, or the first ones.
  Evaluation evaluate(const data::DataLoader& data, std::int64_t num_batches);

  std::int64_t steps_in_epoch(const data::DataLoader& data) const;
  History run(Run& run);
  void run_epochs(Run& run);
  void begin_epoch(const Run& run);
  std::unique_ptr<data::BatchStream> open_batches(Run& run);
  void train_epoch(Run& run);
  void end_epoch(Run& run, const EpochContext& epoch, const MetricAccumulator& accumulator,
                 double seconds);
  void call_step_end(Run& run, const StepEndContext& end);
  StepEndContext train_step(Run& run, data::BatchStream* batches, const StepContext& step);
  /// Tells the others of the loss of this rank's step, with what it wishes.
  void start_agreement(const Run& run, const std::vector<detail::MicroBatchLoss>& losses);
  /// The part of the data that this rank is to read. Collective where the model takes it.
  data::DataLoader part_of(const data::DataLoader& data, data::Remainder remainder) const;
  /// Throws UsageError if ranks that need the same batch have read different ones, or some have
  /// read none. Called for the first batch of an epoch, evaluation or prediction. Collective among
  /// these ranks.
  void check_same_batch(const std::optional<data::Batch>& batch) const;
  /// Keeps what tells the rows of a step's first batch from others, in steps that are compared.
  void note_rows(const StepContext& step, const data::Batch& batch);
  /// Throws UsageError on all ranks where any have read what they should not. Collective.
  void check_rows(const StepContext& step);
  void pretend_step();
  Evaluation validate(Run& run);
  checkpoint::State state() const;
  /// What this rank gives to a checkpoint.
  checkpoint::Content content();
  /// Waits for a save beside the training and tells callbacks of its end; throws its failure.
  std::optional<std::filesystem::path> finish_save();
  /// The same where training ends by an exception of this text: says what that does not say.
  void finish_save_after(const std::string& message);
  bool agree_to_stop(const Run& run) const;

  /// Throws UsageError for a model of a function.
  void check_can_predict() const;
  /// `rank 1, reading data in an evaluation`.
  std::string name_in(std::string_view what, std::string_view doing) const;
  /// Returns this rank's counts, without those that another rank counts too.
  MetricAccumulator counted_once(const MetricAccumulator& own) const;
  /// Adds up what ranks have counted. Throws TrainingError on all where any has failed. Collective.
  Evaluation sum_evaluation(MetricAccumulator own, const detail::Failures& failures,
                            const comm::Group& of_metrics);

  template <typename Compute>
  at::Tensor in_precision(const Compute& compute) const {
    if (!options.autocast) return compute();
    const Autocast autocast(device.type(), *options.autocast);
    return compute();
  }
};

}  // namespace trireme
