// SPDX-License-Identifier: Apache-2.0
// The inside of Model, shared by its sources: model.cpp (making it, evaluating), model_training.cpp
// (the loop), model_in_stages.cpp (what is otherwise where the plan has stages), model_dry_run.cpp
// and model_checkpoints.cpp.
#pragma once

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/checkpoint/async_saver.h>
#include <trireme/data/data_loader.h>
#include <trireme/optim/autocast.h>
#include <trireme/optim/loss_scale.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/training_step.h>
#include <trireme/train/detail/callback_calls.h>
#include <trireme/train/detail/determinism.h>
#include <trireme/train/metric_accumulator.h>
#include <trireme/train/model.h>
#include <trireme/train/step_agreement.h>
#include <trireme/train/step_times.h>

#include <atomic>
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

/// Puts every part of a module back into its mode, training or evaluation, at the end.
class ModeGuard {
 public:
  explicit ModeGuard(torch::nn::Module& module);
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;
  ~ModeGuard();

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

/// By rank. Collective, blocking.
at::Tensor all_counts(std::int64_t own, const comm::Group& group);

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
  /// What in_stages needs that a plan without stages does not.
  struct Stages {
    bool fits_whole = true;                            ///< the module, on every rank
    std::vector<std::string> columns{};                ///< of a batch
    std::optional<std::filesystem::path> to_resume{};  ///< whose tensors are not loaded yet
  };
  Stages stages;                         // before in_stages, whose making sets them
  std::optional<Parallelized> in_whole;  // or
  std::optional<TrainingStep> in_stages;
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

  Plan checked(const Plan& plan) const;
  std::optional<Parallelized> make_whole() const;
  std::optional<TrainingStep> make_stages();
  /// Throws UsageError in stages before the first batch.
  Parallelized& parallelized();
  Sharing sharing() const;
  /// The ranks that have other data than this one.
  const comm::Group& data_group() const;
  /// Groups of this rank whose ranks work on one part of the data together.
  std::vector<comm::Group> peers() const;
  /// Lets whoever looks at the module next do so alone, but where it may not fit whole. Collective.
  void complete();
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
  bool accumulate_gradients(Run& run, data::BatchStream& batches, StepEndContext& step);
  /// The part of the data that this rank is to read. Collective where the model takes it.
  data::DataLoader part_of(const data::DataLoader& data, data::Remainder remainder) const;
  /// Of an epoch's first batch: UsageError where ranks that need the same one differ. Collective.
  void check_same_batch(const data::Batch& batch) const;
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

  // In stages.
  std::vector<at::Tensor> results_of(const std::vector<at::Tensor>& inputs) const;
  std::vector<at::Tensor> tensors_of(const data::Batch& batch);
  std::vector<data::Batch> read_round(data::BatchStream& batches, std::int64_t most) const;
  MicroBatches micro_batches_of(const std::vector<data::Batch>& round);
  /// Unless they are known, with the batches that the next step of training reads.
  void assign_stages(const data::DataLoader& training);
  void assign_stages(const MicroBatches& micro_batches);
  /// The same where ranks may have other shapes, or nothing. Collective.
  void assign_stages_of_any(const MicroBatches& micro_batches);
  /// The tensors of a checkpoint that was resumed before the stages were known. Collective.
  void load_later();
  void step_through_stages(Run& run, data::BatchStream* batches, StepEndContext& step);
  Evaluation evaluate_in_stages(const data::DataLoader& data, std::int64_t num_batches);
  void count_in_stages(const data::DataLoader& data, std::int64_t num_batches,
                       MetricAccumulator& accumulator, detail::Failures& failures);
  std::vector<at::Tensor> predict_in_stages(const std::vector<at::Tensor>& inputs);
  at::Tensor predict_in_stages(const data::DataLoader& data);
  /// Throws UsageError for a model of a function.
  void check_can_predict() const;
  checkpoint::State resume_later(const std::filesystem::path& path);

  /// Whether forward needs ranks that work on the same part of the data, within operators.
  bool forward_is_shared() const { return in_whole && in_whole->mesh().defined(); }
  /// Whether forward in training needs other ranks, so that nothing can stand in for one.
  bool forward_takes_all() const {
    return in_whole &&
           (cuts_parameters(options.plan) || options.plan.sync_batch_norm || forward_is_shared()) &&
           options.group.size() > 1;
  }
  /// What all ranks have counted; those that work on one part of the data count it once.
  MetricAccumulator sum_over_ranks(const MetricAccumulator& own) const;
  void count(const data::DataLoader& data, std::int64_t num_batches, MetricAccumulator& accumulator,
             std::string_view& doing);

  /// Calls `call`, in which the other ranks wait for this one: where it throws they are told by the
  /// end of the groups.
  /// @param who returns what the message says has failed.
  template <typename Call, typename Who>
  void end_all_on_failure(const Call& call, const Who& who) {
    try {
      call();
    } catch (const CommError& error) {
      // Those along data may wait for this rank in groups that the one that failed is not in.
      if (forward_is_shared()) in_whole->abort(error.what());
      throw;
    } catch (...) {
      in_whole->abort(join_message(who(), ": ", message_of(std::current_exception())));
      throw;
    }
  }

  template <typename Compute>
  at::Tensor in_precision(const Compute& compute) const {
    if (!options.autocast) return compute();
    const Autocast autocast(device.type(), *options.autocast);
    return compute();
  }
};

}  // namespace trireme
