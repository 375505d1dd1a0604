// SPDX-License-Identifier: Apache-2.0
// Model: a module, a loss and an optimizer, and the training loop that trains them over the ranks
// of a group.
#pragma once

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/comm/group.h>
#include <trireme/data/batch.h>
#include <trireme/graph/module_ref.h>
#include <trireme/optim/loss_scale.h>
#include <trireme/plan/plan.h>
#include <trireme/train/callback.h>
#include <trireme/train/history.h>
#include <trireme/train/losses.h>
#include <trireme/train/metric_accumulator.h>
#include <trireme/train/metrics.h>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}
namespace trireme::data {
class DataLoader;
}

namespace trireme {

/// A pointer-like type with `pointer->forward(Tensor) -> Tensor`: a ModuleHolder or a shared_ptr to
/// a module.
template <typename T>
concept ForwardPointer = requires(T& pointer, const at::Tensor& input) {
  { pointer->forward(input) } -> std::convertible_to<at::Tensor>;
};

/// A module whose forward maps one tensor to one tensor, in any form that LibTorch has for modules.
template <typename T>
concept Network =
    ForwardPointer<T> || (ModuleHolder<T> && requires(T& any, const at::Tensor& input) {
      { any.forward(input) } -> std::convertible_to<at::Tensor>;
    });

/// The module itself, such as `*network`, whose forward maps one tensor to one tensor.
template <typename T>
concept NetworkModule = requires(T& module, const at::Tensor& input) {
  { module.shared_from_this() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
  { module.forward(input) } -> std::convertible_to<at::Tensor>;
};

/// A function of the whole batch. ModuleHolder is excluded first, because asking it for a call
/// operator does not compile.
template <typename T>
concept BatchFunction =
    !ModuleHolder<T> && !NetworkModule<T> && requires(T& function, const data::Batch& batch) {
      { function(batch) } -> std::convertible_to<at::Tensor>;
    };

/// What a training with a Checkpoint callback does when the process is asked to leave, by SIGTERM,
/// SIGUSR1 or the end of its running time (TRIREME_MAX_TIME). In the first two cases all ranks
/// finish the same step and save, even if only one was asked.
enum class AtLeaving {
  kExit,    ///< ends the process with kLeaveExitCode (75); objects of main are not destroyed
  kReturn,  ///< fit() and train() return, and is_leaving() is true
  kIgnore,  ///< does not listen: SIGTERM and SIGUSR1 end the process
};

/// Settings of a Model.
struct ModelOptions {
  /// The ranks that train together. This setting alone makes training parallel. It may be left out
  /// in a program that was started alone. In one of several ranks an empty group is a UsageError.
  comm::Group group{};
  /// How the module and the data are divided over the ranks. With Plan::automatic() the first
  /// training finds it (Model::find_plan). A plan with an axis `pipe`, stages or
  /// recomputation runs as a TrainingStep. That records forward and loss, so they must not depend
  /// on values of tensors.
  Plan plan{};
  /// The column of the batch that goes into forward; by default the first.
  std::string input_column{};
  /// The column of the batch that goes into the loss; by default the second.
  std::string target_column{};
  /// Metrics that every evaluation computes beside the loss. They must outlive the model. After an
  /// evaluation they hold the result over all ranks.
  Metrics metrics{};
  /// The largest norm of the gradients over all parameters. Larger gradients are scaled down to it
  /// (clip_by_global_norm). By default gradients are not clipped.
  std::optional<double> clip_norm{};
  /// at::kBFloat16 or at::kHalf: the dtype of matrix products and convolutions in forward, also in
  /// evaluations and predictions. Parameters, outputs and losses stay in fp32 (Autocast). By
  /// default everything is computed in fp32.
  std::optional<at::ScalarType> autocast{};
  /// The loss scale, which training with autocast to at::kHalf multiplies losses by before
  /// backward(). If gradients overflow on any rank, all ranks skip the step. Checkpoints contain
  /// the state of the scale.
  LossScaleOptions loss_scale{};
  /// A seed that makes runs repeatable, with the same number of threads. While the model works,
  /// LibTorch uses deterministic algorithms. An operator without one throws; on CUDA, set
  /// CUBLAS_WORKSPACE_CONFIG=:4096:8. Random numbers, such as those of dropout, are seeded in each
  /// step from this seed, the step and the rank.
  std::optional<std::uint64_t> deterministic{};
  /// The number of steps between two comparisons of the bits that several ranks hold
  /// (check_replicas), which find silent corruption; 0 for none. By default what `trireme run
  /// --check-replicas` says. If it is above 0, the ranks also compare before a checkpoint of the
  /// training is saved and before a state is kept for a restart.
  std::optional<std::int64_t> check_replicas{};
  /// True if each rank uses the part of the data that the plan gives it (data_part). All ranks then
  /// pass the same pipeline and do not call shard(). A pipeline for which shard() was called is
  /// used unchanged.
  /// In the first steps, and now and then later, the ranks compare what they have read. Ranks that
  /// work on the same part must have read the same rows. After shard(), ranks along `data` must
  /// have read different rows. Otherwise all throw UsageError.
  /// False if every pipeline is already the part of its rank. Only ranks that work on the same part
  /// are compared then.
  bool shards_data = true;
  /// What to do when the process is asked to leave during a training that saves checkpoints. Ranks
  /// that are threads of one process return in place of exiting.
  AtLeaving at_leaving = AtLeaving::kExit;
};

/// Settings of Model::fit.
struct FitOptions {
  /// The number of passes over the data.
  std::int64_t epochs = 1;
  /// The callbacks of this training. They are called in this order.
  Callbacks callbacks{};
  /// Validates at the end of every n-th epoch; 0 for never.
  std::int64_t validate_every_epochs = 1;
  /// Also validates after every n-th step, counted over all epochs; 0 for never. Leaves out a step
  /// that ends an epoch which is validated anyway.
  std::int64_t validate_every_steps = 0;
};

/// Trains, evaluates and predicts. Over several ranks the constructor parallelizes the module by
/// the plan, and the destructor restores it. If the plan has stages, each rank trains its own
/// stages. When a call returns, each rank has the whole module again. The exceptions are ZeRO level
/// 3, which keeps parameters cut, and a module constructed without memory.
/// The caller keeps module and optimizer, and may read and change them between calls. Inputs are
/// moved to the device of the module's first parameter. Not thread-safe. All ranks of the group
/// must make the collective calls in the same order.
///
///     models::ResNet network = models::resnet20();
///     torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.1));
///     trireme::Model model(network, trireme::CrossEntropy(), optimizer, {.group = world.group});
///     trireme::LossMonitor monitor(100);
///     model.fit(training_data, test_data, {.epochs = 10, .callbacks = {monitor}});
///     std::cout << *model.evaluate(test_data).accuracy;
class Model {
 public:
  /// Returns the output of the network.
  using Forward = std::function<at::Tensor(const at::Tensor& input)>;
  /// Returns the mean loss over the samples, a scalar: CrossEntropy, MeanSquaredError or any
  /// function.
  using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
  /// Returns the mean loss of a batch, a scalar to call backward() on.
  using BatchLoss = std::function<at::Tensor(const data::Batch& batch)>;

  /// Makes a model of a network with one input and one output. Collective; throws the errors of
  /// parallelize.
  /// @param optimizer must outlive the model.
  /// @throws UsageError for options that are not allowed.
  template <Network NetworkType>
  Model(const NetworkType& network, Loss loss, torch::optim::Optimizer& optimizer,
        ModelOptions options = {})
      : Model(module_of(network), forward_of(network), std::move(loss), {}, optimizer,
              std::move(options)) {}
  /// Makes a model of the module itself, such as `*network`. The module must be owned by a shared
  /// pointer.
  template <NetworkModule ModuleType>
  Model(ModuleType& network, Loss loss, torch::optim::Optimizer& optimizer,
        ModelOptions options = {})
      : Model(
            ModuleRef(network).shared(),
            [&network](const at::Tensor& input) -> at::Tensor { return network.forward(input); },
            std::move(loss), {}, optimizer, std::move(options)) {}

  /// Makes a model of a function that computes the loss of a batch. Such a model cannot predict,
  /// and its evaluations have no accuracy. Collective.
  /// @param module holds the parameters that the function uses. If they belong to several modules,
  /// register these in one.
  template <BatchFunction Function>
  Model(Function loss, ModuleRef module, torch::optim::Optimizer& optimizer,
        ModelOptions options = {})
      : Model(module.shared(), {}, {}, std::move(loss), optimizer, std::move(options)) {}

  /// Moves; the other object may then only be destroyed or assigned.
  Model(Model&&) noexcept;
  /// Gives the optimizer of this object its parameters back, and moves the other one here.
  Model& operator=(Model&&) noexcept;
  ~Model();

  /// Finds the plan if it is automatic and not known yet, and does nothing otherwise. The first
  /// training calls it; a program does where an evaluation comes before that. Rank 0 searches for
  /// the plan with the shortest predicted step (search/search.h), all ranks get it, and rank 0
  /// writes it to standard error. Predictions use the description that TRIREME_CLUSTER names, or
  /// `cpu`. Plans are kept in the cache folder of the user for later runs.
  ///
  /// Collective and blocking. A search takes from a tenth of a second to about half a minute, for
  /// large modules on many ranks; the other ranks wait with the deadline of the group.
  /// @param training the data of the training. The rows of a batch are those of a step over all
  /// ranks, and the plan divides them into micro-batches and among the ranks along `data`. So a
  /// step trains on the same rows as in one process. Rows at the end of an epoch that fill no step
  /// are left out.
  /// @throws UsageError as search::find_plan, for data without batch(), with bucket() or with
  /// shard(), if forward looks at values, and for a module that is not on the CPU.
  void find_plan(const data::DataLoader& training);

  /// Trains in training mode for `options.epochs` passes over the data, and evaluates with
  /// `validation` in between. Returns the losses, evaluations and times. A step takes
  /// `plan.micro_batches` batches, or one that an automatic plan divides. Batches that do not fill
  /// a step at the end of an epoch are not used. Later calls continue the numbers of epochs and
  /// steps.
  ///
  /// If the process is asked to leave and a Checkpoint is among the callbacks, all ranks finish the
  /// same step, save, and do what ModelOptions::at_leaving says. With TRIREME_RESUME=latest, the
  /// first training of a model that was not resumed goes on from the newest checkpoint of the first
  /// Checkpoint callback, or begins anew if there is none. Within an epoch, a run with another
  /// number of ranks goes on after the same rows, if the model divides the data.
  ///
  /// After `resume`, training skips the epochs and steps before the checkpoint. So the program
  /// makes the same calls as an uninterrupted one. With the same number of ranks it continues with
  /// the same data, random numbers and bits.
  ///
  /// With stages, the batches of a step are the micro-batches. The first call reads the batches of
  /// its first step twice, because the stages are derived from them.
  ///
  /// Collective and blocking.
  /// @throws UsageError if ranks have different numbers of batches, or too few for one step. With
  /// stages, also for everything that a TrainingStep refuses.
  /// @throws TrainingError on all ranks with the same text in these cases:
  /// - a loss is infinite or not a number; the optimizer has not used it;
  /// - data, forward, loss, backward or optimizer throw on any rank. The text names the rank, what
  ///   it was doing, epoch and step. No rank changes a parameter after that, and the group can
  ///   still be used. On the failing rank the exception is nested (std::rethrow_if_nested);
  /// - a callback throws (Callback);
  /// - a batch was padded, with stages;
  /// - ranks do not hold the same bits where they must (ModelOptions::check_replicas).
  ///
  /// In a group of one rank the exception itself is thrown. Some plans need all ranks inside
  /// forward: ZeRO level 3, sync_batch_norm and stages. If data, forward or backward fail there on
  /// one rank, that rank throws the exception itself. The other ranks throw CommError with the same
  /// text, and the group cannot be used any more. With stages this applies to forward and backward
  /// only. A forward that communicates by itself must handle its own failures.
  History fit(const data::DataLoader& training, const data::DataLoader& validation,
              const FitOptions& options = {});

  /// Trains like fit, without validation or with one at the end of every epoch.
  /// @param evaluate_with the data of the validation; null for none.
  History train(std::int64_t epochs, const data::DataLoader& data, const Callbacks& callbacks = {},
                const data::DataLoader* evaluate_with = nullptr);

  /// Runs everything once, quickly: one step, an evaluation of one batch and every hook of the
  /// callbacks. Callbacks see RunContext::is_dry_run. Those of Trireme write nothing that stays:
  /// they remove checkpoints again and only test whether other files can be written.
  /// Afterwards module, optimizer, random streams and position are as before, and gradients are
  /// cleared. Needs memory for a copy of this rank's parameters and optimizer state. Collective and
  /// blocking. Throws like fit. After an exception over several ranks nothing is restored.
  History dry_run(const data::DataLoader& training, const data::DataLoader* validation = nullptr,
                  const Callbacks& callbacks = {});

  /// Makes fit() or train() return on all ranks, even if only one rank calls it. Training ends
  /// after the running step or the one about to begin. A call at the end of an epoch ends training
  /// with that epoch. A call in on_run_begin ends it without a step.
  /// A checkpoint made then can be resumed. A later train(1) continues an interrupted epoch to its
  /// end. Does nothing while no training runs. May be called from callbacks, other threads and
  /// signal handlers.
  void request_stop() noexcept;
  /// Returns whether request_stop has ended the last training.
  bool is_stopped() const;

  /// Returns whether the last training has ended because a rank was asked to leave. The position is
  /// saved then. With AtLeaving::kExit, fit() and train() do not return in this case.
  bool is_leaving() const;

  /// Makes the Checkpoint callbacks of all ranks save after the running step or the one about to
  /// begin, even if only one rank calls it. May be called from callbacks, other threads and signal
  /// handlers.
  void request_save() noexcept;

  /// Measures the times of all actions of a pipeline in the step that is about to begin, even if
  /// only one rank calls it: StepEndContext::pipeline has the result. Call it in
  /// Callback::on_step_begin, not from another thread. Does nothing if the plan has no stages.
  void measure_pipeline() noexcept;

  /// Returns loss and accuracy over the data of all ranks, and fills the metrics of the options.
  /// Runs in evaluation mode and without gradients, and restores the modes afterwards. The parts of
  /// the ranks may differ in size. All ranks use the buffers of rank 0 (running statistics), which
  /// checkpoints contain too.
  /// Collective and blocking. An exception of data, network or a metric on one rank ends the
  /// evaluation on all, as in fit.
  Evaluation evaluate(const data::DataLoader& data);

  /// Returns the output of the network for one input batch, in evaluation mode and without
  /// gradients.
  /// Not collective, with these exceptions. It is collective if the plan cuts parameters (ZeRO
  /// level 3), has stages, or has axes other than `data`. In callbacks after a step it is
  /// collective with every plan that shards. Throws UsageError for a model of a function, and if
  /// ranks that work together pass different inputs.
  at::Tensor predict(const at::Tensor& input);

  /// Returns the concatenated outputs for all of the data, in its order. If shard() was called, for
  /// the part of this rank.
  /// Not collective, with these exceptions. If the plan cuts parameters (ZeRO level 3), all ranks
  /// need equally many batches. If it has stages or axes other than `data`, the ranks of these axes
  /// must read the same batches.
  at::Tensor predict(const data::DataLoader& data);

  /// Gives every rank the values of all parameters and buffers, and memory for those that have none
  /// on this rank. It is for code that reads the module after training with stages or ZeRO level 3.
  /// Parameters stay whole until the next step. Not needed before save. Collective and blocking.
  /// With stages, throws UsageError before the first batch.
  void gather_parameters();

  /// Saves module, optimizer, position, loss scale, random streams and the state of running
  /// callbacks as `prefix-<epoch>_<step>`. Returns the path. Every rank writes its share, so all
  /// ranks must see the folder.
  /// Collective. Blocks until everything is on the disk, after waiting for an unfinished save of
  /// save_async. Throws CheckpointError on all ranks if one cannot write. With stages, also before
  /// the first batch.
  std::filesystem::path save(const checkpoint::SaveOptions& options) const;

  /// Saves like `save`, but copies the data of this rank to memory and returns. The rest takes
  /// place while training goes on. The memory is kept for the next save. Only one save runs at a
  /// time: a call waits for the one before.
  /// fit, train and dry_run wait for an unfinished save before they return, and throw its failure.
  /// If they end by another exception, they print that failure on standard error.
  /// Collective, in the same order as the other calls of this model. If the save before has failed,
  /// throws its failure on all ranks and begins no new save.
  /// @param copying kBeforeChange if nothing but the optimizer changes parameters: the next step
  /// then waits for a copy of what is not written by then. Outside of training, everything is
  /// copied before the call returns.
  void save_async(const checkpoint::SaveOptions& options,
                  checkpoint::Copying copying = checkpoint::Copying::kAtOnce) const;

  /// Waits until an unfinished save of save_async is done, and returns the path of the last
  /// checkpoint that it made. Throws a failure once, on all ranks. Collective and blocking.
  std::optional<std::filesystem::path> wait_for_save() const;

  /// Throws the failure of a finished save of save_async, unless another call has thrown it before.
  /// Does nothing while a save runs. Not collective: one rank may know of a failure before another.
  void check_save() const;

  /// Loads a checkpoint made by `save` with any number of ranks and any plan. Every rank reads its
  /// share. The callbacks of the next training get back their state by name. With stages and before
  /// the first batch, only the position is loaded at once. The tensors are loaded when the next
  /// call reads a batch.
  /// Collective. Throws CheckpointError on all ranks, naming what does not fit. That includes ranks
  /// that find different checkpoints at this path.
  void resume(const std::filesystem::path& checkpoint);

  /// Returns how far training has come. After `resume`, that is the position of the checkpoint.
  Progress progress() const;

  /// Returns the module that is trained.
  torch::nn::Module& module() const;
  /// Returns the optimizer that was given.
  torch::optim::Optimizer& optimizer() const;
  /// Returns the options, with the group of this process alone in place of an empty one.
  const ModelOptions& options() const;
  /// Returns the device of the first parameter when the model last worked.
  at::Device device() const;
  /// Returns which ranks hold which parts of the gradients, for global_norm and other functions of
  /// trireme/optim. With stages, throws UsageError before the first batch.
  Sharing sharing() const;

 private:
  struct Impl;
  struct Run;
  struct Snapshot;
  class Runner;
  class WholeRunner;
  class StagedRunner;
  class UnplannedRunner;

  // Either forward and loss are set, or batch_loss.
  Model(std::shared_ptr<torch::nn::Module> module, Forward forward, Loss loss, BatchLoss batch_loss,
        torch::optim::Optimizer& optimizer, ModelOptions options);

  template <typename NetworkType>
  static std::shared_ptr<torch::nn::Module> module_of(const NetworkType& network) {
    if constexpr (ModuleHolder<NetworkType>) {
      return network.ptr();
    } else {
      return network;
    }
  }

  template <typename NetworkType>
  static Forward forward_of(const NetworkType& network) {
    return [network = network](const at::Tensor& input) mutable -> at::Tensor {
      if constexpr (ForwardPointer<NetworkType>) {
        return network->forward(input);
      } else {
        return network.forward(input);
      }
    };
  }

  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
