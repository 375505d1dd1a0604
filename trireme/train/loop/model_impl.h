// SPDX-License-Identifier: Apache-2.0
// The implementation of Model, shared by its sources: model.cpp (constructor, evaluation),
// model_training.cpp (the loop), model_planning.cpp, model_data.cpp, model_dry_run.cpp,
// model_checkpoints.cpp, model_faults.cpp, and the runners of plans.
#pragma once

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/checkpoint/async_saver.h>
#include <trireme/data/data_loader.h>
#include <trireme/optim/autocast.h>
#include <trireme/optim/loss_scale.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/search/automatic_plan.h>
#include <trireme/train/loop/callback_calls.h>
#include <trireme/train/loop/determinism.h>
#include <trireme/train/loop/recovery.h>
#include <trireme/train/loop/runner.h>
#include <trireme/train/metric_accumulator.h>
#include <trireme/train/model.h>
#include <trireme/train/step_agreement.h>
#include <trireme/train/step_times.h>

#include <atomic>
#include <charconv>
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

class PredictedStep;

/// The position of a training, as checkpoints record it: `step` of the `steps_in_epoch` steps of
/// `epoch` are done.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::int64_t steps_in_epoch = 0;
  std::int64_t global_step = 0;
  std::int64_t rows = 0;    ///< of all ranks, trained on in this epoch; 0 if unknown
  std::int64_t shards = 0;  ///< into which the data was divided; 0 if unknown

  bool is_between_epochs() const { return step == steps_in_epoch; }
  std::int64_t next_epoch() const { return is_between_epochs() ? epoch + 1 : epoch; }
};

/// Restores the state of the default generator of the CPU when destroyed, for code that reads
/// samples or runs forward without being part of the training.
class KeptGenerator {
 public:
  KeptGenerator();
  ~KeptGenerator();
  KeptGenerator(const KeptGenerator&) = delete;
  KeptGenerator& operator=(const KeptGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

/// Listens to requests to leave during its lifetime, if it is told to.
class Listening {
 public:
  explicit Listening(bool listens);
  ~Listening();
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

 private:
  bool listens_;
};

/// Makes the keys of callback states in a checkpoint: the name of the callback and its number among
/// those of the same name.
class StateKeys {
 public:
  std::string next(const Callback& callback);

 private:
  std::map<std::string, int> counts_;
};

/// Returns the numbers that all ranks give, by rank. Collective and blocking.
at::Tensor all_counts(std::int64_t own, const comm::Group& group);

/// The mean loss of a micro-batch and the number of its rows.
struct MicroBatchLoss {
  at::Tensor loss;
  std::int64_t rows = 0;
};
/// Returns the mean over all rows; 0 if there are none. A loss that is not a number makes the mean
/// not a number.
at::Tensor mean_of(const std::vector<MicroBatchLoss>& losses);

/// Returns a number from a checkpoint. Throws CheckpointError if it is missing.
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

/// Throws the UsageError for what needs the plan of a model whose automatic plan is not found yet.
[[noreturn]] void refuse_unplanned();

/// Returns the rows of a tensor that are not padding of the batch.
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
  Plan plan_of_program;  // as it was given
  ModelOptions options;
  Forward forward;  // empty for a model of a function
  Loss loss;
  BatchLoss batch_loss;
  std::vector<std::string> columns;  // of the last batch of a model of a function
  std::unique_ptr<Runner> runner;
  detail::StepAgreement agreement;
  std::optional<LossScale> loss_scale;  // in fp16
  at::Device device{at::kCPU};
  detail::Position position;
  std::int64_t requested_epochs = 0;
  std::map<std::string, std::string> callback_states;  // from a checkpoint, for the next training
  Run* running = nullptr;
  std::atomic<bool> wants_to_stop = false;  // this rank
  std::atomic<bool> wants_to_save = false;  // this rank
  bool wants_timeline = false;              // this rank, of the next step in stages
  bool measures_step = false;               // all ranks, the next step in stages
  bool is_stopped = false;                  // all ranks
  bool is_listening = false;                // to requests to leave, during a training
  bool is_leaving = false;                  // all ranks
  bool has_position = false;                // was resumed, or has trained
  std::optional<std::string> rows_of_step;  // to compare with those of other ranks
  bool is_sharded_manually = false;         // the data of this training
  int num_same_rows = 0;  // comparisons in a row in which ranks had read the same rows

  /// The plan that was found, of a model whose plan is automatic.
  struct FoundPlan {
    double step_seconds = 0;         ///< predicted
    std::int64_t parts = 1;          ///< into which the batch of a step is divided
    std::vector<double> measured{};  ///< seconds of the first steps
    bool is_compared = false;        ///< with the prediction
  };
  std::optional<FoundPlan> found_plan;
  /// A checkpoint that was resumed before the plan was known, until its tensors are loaded.
  std::optional<std::filesystem::path> pending_checkpoint;

  /// An asynchronous save that nobody has waited for yet.
  struct PendingSave {
    const Run* run = nullptr;  ///< the run in which it began; null outside of a run
    std::int64_t epoch = 0;
    std::int64_t global_step = 0;
  };
  std::optional<PendingSave> pending_save;
  std::unique_ptr<checkpoint::AsyncSaver> saver;  // made by the first asynchronous save
  std::unique_ptr<detail::Recovery> recovery;     // null in a run without restarts
  std::int64_t steps_between_checks = 0;          // of replicas; 0 for none
  std::int64_t checked_step = 0;                  // the global step of the last one

  void check_options() const;
  void find_device();
  at::Tensor input_of(const data::Batch& batch) const;
  /// Returns the target, on the device of `output`.
  at::Tensor target_for(const at::Tensor& output, const data::Batch& batch) const;
  at::Tensor output_of(const at::Tensor& input) const;
  at::Tensor loss_of(const data::Batch& batch) const;
  /// Returns the tensors of a batch that forward and loss get, on the device of the model.
  std::vector<at::Tensor> tensors_of(const data::Batch& batch);
  /// Returns the loss of these tensors, and the output if there is one, for code that records them.
  /// An input without target comes from predict; the sum of the output then takes the place of the
  /// loss.
  std::vector<at::Tensor> results_of(const std::vector<at::Tensor>& inputs) const;
  std::unique_ptr<detail::DeterministicAlgorithms> determinism() const;
  /// Evaluates the first `num_batches` batches of the data.
  Evaluation evaluate(const data::DataLoader& data, std::int64_t num_batches);

  std::int64_t steps_in_epoch(const data::DataLoader& data) const;
  [[noreturn]] void record_step(detail::PredictedStep& predicted, const Run& run);
  History run(Run& run);
  void run_epochs(Run& run);
  void begin_epoch(const Run& run);
  std::unique_ptr<data::BatchStream> open_batches(Run& run);
  void train_epoch(Run& run);
  void end_epoch(Run& run, const EpochContext& epoch, const MetricAccumulator& accumulator,
                 double seconds);
  void call_step_end(Run& run, const StepEndContext& end);
  StepEndContext train_step(Run& run, data::BatchStream* batches, const StepContext& step);
  /// Tells the other ranks the loss of this rank's step and its wishes.
  void start_agreement(const Run& run, const std::vector<detail::MicroBatchLoss>& losses);
  /// Throws TrainingError on all ranks for a step whose loss is not finite. Names the samples, and
  /// tells the launcher if the step has been tried again in vain. Collective.
  [[noreturn]] void fail_for_loss(const Run& run, const StepContext& step,
                                  const detail::NonFiniteLoss& found);
  /// Finds the plan if it is automatic and not known. Collective and blocking.
  void find_plan(const data::DataLoader& data);
  search::AutomaticPlan search_plan(const data::DataLoader& data);
  /// Returns into how many parts a plan divides the batch of a step.
  std::int64_t parts_of_step(const Plan& plan) const;
  /// Loads the tensors of a checkpoint that was resumed before the plan was known. Collective.
  void load_pending();
  search::Training training_to_plan(const data::DataLoader& data);
  /// Answers the request of `trireme plan`, which has started this program, and ends the process.
  [[noreturn]] void answer_request(const std::filesystem::path& folder,
                                   const data::DataLoader& data);
  /// Returns what this rank reads of the data of a training. Finds the plan first. Collective.
  data::DataLoader training_part(const data::DataLoader& data);
  /// Warns if the steps of an automatic plan take other times than predicted.
  void compare_with_prediction(const StepSeconds& measured);
  /// Returns the part of the data that this rank reads. Collective if the model divides the data
  /// itself.
  data::DataLoader part_of(const data::DataLoader& data, data::Remainder remainder);
  /// Throws UsageError if ranks that need the same batch have read different ones, or some have
  /// read none. Called for the first batch of an epoch, evaluation or prediction. Collective among
  /// these ranks.
  void check_same_batch(const std::optional<data::Batch>& batch) const;
  /// Stores a description of the rows of a step's first batch, in steps that are compared.
  void note_rows(const StepContext& step, const data::Batch& batch);
  /// Throws UsageError on all ranks if any rank has read the wrong rows. Collective.
  void check_rows(const StepContext& step);
  void pretend_step();
  Evaluation validate(Run& run);
  checkpoint::State state() const;
  /// Returns what this rank writes to a checkpoint.
  checkpoint::Content content();
  void resume(const std::filesystem::path& checkpoint);
  /// Loads what an earlier attempt of this run has kept, if it is newer. Collective.
  void recover();
  /// Compares what several ranks hold, unless that has happened after this step or is not wanted.
  /// Throws TrainingError on all ranks if it differs, or if a rank has failed before. Collective.
  void compare_replicas(const Run& run);
  /// Does so if it is time to. Collective.
  void compare_replicas_if_due(Run& run);
  /// Keeps the state for another attempt, if it is time to. Collective.
  void keep_state(Run& run);
  /// Waits for an unfinished asynchronous save and tells callbacks of its end. Throws its failure.
  std::optional<std::filesystem::path> finish_save();
  // Copies the tensors of a running save that are not written yet, before they change.
  void copy_before_change() noexcept;
  /// Waits for an unfinished save when training ends by an exception with the text `message`. Warns
  /// of a failure that the text does not contain.
  void finish_save_after(const std::string& message);
  bool agree_to_stop(const Run& run);
  /// Returns whether a training can leave in time.
  bool listens(const Run& run) const;
  bool is_asked_to_leave() const;
  void save_to_leave(Run& run);
  /// Ends the process after a training that has left, unless the options say otherwise. Collective.
  void leave(const Callbacks& callbacks) const;
  /// Resumes from the newest checkpoint before the first training, if the environment says so.
  void resume_if_told(Model& model, const Callbacks& callbacks);
  /// Finds the step of an epoch that other numbers of ranks have begun.
  void adapt_position(const Run& run);

  /// Throws UsageError for a model of a function.
  void check_can_predict() const;
  /// Returns a text such as `rank 1, reading data in an evaluation`.
  std::string name_in(std::string_view what, std::string_view doing) const;
  /// Returns this rank's counts, or none if another rank counts the same samples.
  MetricAccumulator counted_once(const MetricAccumulator& own) const;
  /// Adds up the counts of all ranks. Throws TrainingError on all if any has failed. Collective.
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
