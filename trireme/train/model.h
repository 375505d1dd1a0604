// SPDX-License-Identifier: Apache-2.0
// Model: a module, a loss and an optimizer, trained over the ranks of a group with the loop written
// once.
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

/// Something with `forward(Tensor) -> Tensor` behind an arrow: a ModuleHolder or a shared_ptr to a
/// module.
template <typename T>
concept ForwardPointer = requires(T& pointer, const at::Tensor& input) {
  { pointer->forward(input) } -> std::convertible_to<at::Tensor>;
};

/// A module whose forward maps one tensor to one tensor, in any of the forms LibTorch has for it.
template <typename T>
concept Network =
    ForwardPointer<T> || (ModuleHolder<T> && requires(T& any, const at::Tensor& input) {
      { any.forward(input) } -> std::convertible_to<at::Tensor>;
    });

/// A module itself, `*network`, whose forward maps one tensor to one tensor.
template <typename T>
concept NetworkModule = requires(T& module, const at::Tensor& input) {
  { module.shared_from_this() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
  { module.forward(input) } -> std::convertible_to<at::Tensor>;
};

/// A function of the whole batch. (A ModuleHolder must not be asked whether it can be called: that
/// does not compile.)
template <typename T>
concept BatchFunction =
    !ModuleHolder<T> && !NetworkModule<T> && requires(T& function, const data::Batch& batch) {
      { function(batch) } -> std::convertible_to<at::Tensor>;
    };

struct ModelOptions {
  /// The ranks that train together. This one setting makes training parallel; a program that was
  /// started alone may leave it out, one of several ranks throws UsageError without it.
  comm::Group group{};
  /// One with an axis `pipe`, stages or recomputation is carried out by a TrainingStep, which
  /// records forward and loss: they may not look at values.
  Plan plan{};
  /// The columns that go into forward and into the loss; by default the first and the second of the
  /// batch.
  std::string input_column{};
  std::string target_column{};
  /// What every evaluation counts beside the loss. They must outlive the model; afterwards they
  /// have the result of all ranks.
  Metrics metrics{};
  /// Gradients are made shorter where their norm, over all parameters, is above this
  /// (clip_by_global_norm).
  std::optional<double> clip_norm{};
  /// Computes matrix products and convolutions of forward in at::kBFloat16 or at::kHalf, with
  /// parameters, outputs and losses in fp32 (Autocast); in evaluations and predictions too.
  std::optional<at::ScalarType> autocast{};
  /// Of training in at::kHalf: losses are multiplied by it before backward(). A step whose
  /// gradients overflow on any rank is skipped by all. Checkpoints have its state.
  LossScaleOptions loss_scale{};
  /// A seed that makes runs repeatable: while this model works, LibTorch takes deterministic
  /// algorithms (an operator that has none throws; on CUDA, set CUBLAS_WORKSPACE_CONFIG=:4096:8),
  /// and its random numbers, such as those of dropout, begin anew in each step, from the seed, the
  /// step and the rank. The number of threads must stay the same.
  std::optional<std::uint64_t> deterministic{};
  /// Each rank trains and evaluates on the part of the data that the plan gives it (data_part): all
  /// ranks give the same pipeline, without shard(). One for which shard() was called is taken as it
  /// is. In the first steps, and now and then after that, ranks compare what they have read:
  /// UsageError where ranks that work on one part read different rows, or, after shard(), ranks
  /// along `data` the same. False: every pipeline is this rank's part already, and only ranks that
  /// work on one part are compared.
  bool shards_data = true;
};

struct FitOptions {
  std::int64_t epochs = 1;
  Callbacks callbacks{};
  /// Validates at the end of every n-th epoch; 0: never.
  std::int64_t validate_every_epochs = 1;
  /// And after every n-th step, counted over all epochs, but for those that end such an epoch;
  /// 0: never.
  std::int64_t validate_every_steps = 0;
};

/// Trains, evaluates and predicts. Over several ranks the module is parallelized by the plan when
/// the model is made, and restored when it is destroyed; where the plan has stages, each rank
/// trains its own, and has the whole module when a call of the model returns, unless that is cut
/// (ZeRO level 3) or was constructed without memory. Module and optimizer stay the caller's, and
/// may be looked at and changed between calls; inputs are moved to the device of the module's first
/// parameter. Not thread-safe. What is collective must be called by all ranks of the group in the
/// same order.
///
///     models::ResNet network = models::resnet20();
///     torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.1));
///     trireme::Model model(network, trireme::CrossEntropy(), optimizer, {.group = world.group});
///     trireme::LossMonitor monitor(100);
///     model.fit(training_data, test_data, {.epochs = 10, .callbacks = {monitor}});
///     std::cout << *model.evaluate(test_data).accuracy;
class Model {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor& input)>;
  /// Returns a scalar, the mean over the samples: CrossEntropy, MeanSquaredError or any function.
  using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;
  /// Returns the mean loss of a batch, a scalar to call backward() on.
  using BatchLoss = std::function<at::Tensor(const data::Batch& batch)>;

  /// A network with one input and one output. Collective: see parallelize, whose errors it throws.
  /// Throws UsageError for options that cannot be.
  /// @param optimizer must outlive the model.
  template <Network NetworkType>
  Model(const NetworkType& network, Loss loss, torch::optim::Optimizer& optimizer,
        ModelOptions options = {})
      : Model(module_of(network), forward_of(network), std::move(loss), {}, optimizer,
              std::move(options)) {}
  template <NetworkModule ModuleType>
  Model(ModuleType& network, Loss loss, torch::optim::Optimizer& optimizer,
        ModelOptions options = {})
      : Model(
            ModuleRef(network).shared(),
            [&network](const at::Tensor& input) -> at::Tensor { return network.forward(input); },
            std::move(loss), {}, optimizer, std::move(options)) {}

  /// Anything that turns a batch into a loss. `module` holds the parameters that it uses; where it
  /// uses several modules, register them in one. Such a model cannot predict, and its evaluation
  /// has no accuracy. Collective.
  template <BatchFunction Function>
  Model(Function loss, ModuleRef module, torch::optim::Optimizer& optimizer,
        ModelOptions options = {})
      : Model(module.shared(), {}, {}, std::move(loss), optimizer, std::move(options)) {}

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  /// Trains for `options.epochs` passes over the data, this rank's part of it, in training mode. A
  /// step takes `plan.micro_batches` batches; those left over at the end of an epoch are not used.
  /// Epochs and steps are counted on from call to call. Validates in between (evaluate), and
  /// returns what came of it.
  ///
  /// After `resume` the epochs and steps that lie behind the checkpoint are passed over: the
  /// program makes the same calls as an uninterrupted one, and goes on with the same data, random
  /// numbers and bits, where the number of ranks is the same.
  ///
  /// Collective, blocking. Throws UsageError where ranks have different numbers of batches, or too
  /// few for one step, and TrainingError on all ranks, with one text:
  /// - where a loss is infinite or not a number, before the optimizer has used it;
  /// - where data, forward, loss, backward or optimizer throw on any rank: it names the rank, what
  ///   it was doing, epoch and step. No rank changes a parameter after that, and the group can
  ///   still be used. On the rank itself the exception is nested (std::rethrow_if_nested);
  /// - where a callback has thrown (Callback).
  /// In a group of one the exception itself comes out. With a plan that needs all ranks inside
  /// forward (ZeRO level 3, sync_batch_norm) nothing can stand in for the one that fails in data,
  /// forward or backward: it throws the exception itself, and the others CommError with that text;
  /// the group is dead then. So it is where forward or backward fail in a stage. A forward that
  /// communicates by itself is on its own.
  ///
  /// In stages the batches of a step are the micro-batches. The first call reads those of its first
  /// step once more, from which the stages follow. Throws UsageError for what a TrainingStep
  /// refuses, and TrainingError for batches that were filled up.
  History fit(const data::DataLoader& training, const data::DataLoader& validation,
              const FitOptions& options = {});

  /// The same without validation, or with one at the end of every epoch.
  History train(std::int64_t epochs, const data::DataLoader& data, const Callbacks& callbacks = {},
                const data::DataLoader* evaluate_with = nullptr);

  /// Tries everything once, fast: one step, an evaluation of one batch, every hook of the callbacks
  /// (which see RunContext::is_dry_run; those of Trireme write nothing that stays: checkpoints are
  /// written and removed again, other files only tried). Module, optimizer, random streams and
  /// position are afterwards what they were; gradients are cleared. Needs memory for a copy of this
  /// rank's parameters and optimizer state. Collective, blocking; throws as fit does, and after an
  /// exception over several ranks nothing is put back.
  History dry_run(const data::DataLoader& training, const data::DataLoader* validation = nullptr,
                  const Callbacks& callbacks = {});

  /// Makes fit() or train() return on all ranks, whichever asks: after the step that is running or
  /// about to begin, with the epoch where it is asked at an epoch's end, and without a step where a
  /// callback asks in on_run_begin. A checkpoint made then is one to resume from; a later train(1)
  /// goes on to the end of an epoch that was broken off. Does nothing where no training runs. May
  /// be called from callbacks, other threads and signal handlers.
  void request_stop() noexcept;
  /// Whether the last training ended by that.
  bool is_stopped() const;

  /// Makes the Checkpoint callbacks of all ranks save after the step that is running or about to
  /// begin, whichever rank asks. May be called as request_stop may.
  void request_save() noexcept;

  /// Returns loss and accuracy over the parts of all ranks, and fills the metrics of the options,
  /// in evaluation mode and without gradients; modes are as before afterwards. Parts may differ in
  /// size. All ranks use rank 0's buffers (running statistics), which are also what a checkpoint
  /// holds. Collective, blocking. What data, network and metrics throw on any rank is thrown on
  /// all, as fit does.
  Evaluation evaluate(const data::DataLoader& data);

  /// Returns the network's output for one input batch, in evaluation mode and without gradients.
  /// Not collective, but with a plan that cuts parameters (ZeRO level 3), has stages or other axes,
  /// and in callbacks after a step with any that shards. Throws UsageError for a model made of a
  /// function, and if ranks that work together pass different inputs.
  at::Tensor predict(const at::Tensor& input);

  /// Returns the outputs for the data as it is given, in its order, concatenated: for all of it,
  /// unless shard() was called. Not
  /// collective, but with a plan that cuts parameters, where all ranks need equally many batches,
  /// or has stages or other axes, whose ranks read the same ones.
  at::Tensor predict(const data::DataLoader& data);

  /// Gives every rank the values of all parameters and buffers, and memory to those that have none
  /// here: for code that reads the module itself after training in stages or with parameters that
  /// are cut (ZeRO level 3), which stay whole until the next step. Not needed before save.
  /// Collective, blocking. Throws UsageError in stages before the first batch.
  void gather_parameters();

  /// Saves module, optimizer, position, loss scale, random streams and the state of running
  /// callbacks as `prefix-<epoch>_<step>`, and returns its path. Every rank writes its share, so
  /// all must see the folder. Collective; blocking until everything is on the disk, and before that
  /// until a save of save_async is. Throws CheckpointError on all ranks where one cannot write, and
  /// in stages before the first batch.
  std::filesystem::path save(const checkpoint::SaveOptions& options) const;

  /// Saves the same beside the training: copies what this rank writes into memory that is kept for
  /// the next time, and returns; the rest takes place while training goes on. One save is under way
  /// at a time: this one waits for the one before. None outlives fit, train or dry_run: they wait,
  /// and throw its failure; where they end by another exception, it goes to standard error.
  /// Collective, in the same order as the others of this model. Throws what the save before failed
  /// with, on all ranks, and begins none then.
  void save_async(const checkpoint::SaveOptions& options) const;

  /// Waits for what save_async has begun, and returns the path of the last checkpoint that it made.
  /// Throws a failure, once, on all ranks. Collective, blocking.
  std::optional<std::filesystem::path> wait_for_save() const;

  /// Throws the failure of a save that has ended, until one of the above has; does nothing while
  /// one is under way. Not collective: one rank may know before another.
  void check_save() const;

  /// Loads a checkpoint made by `save`, by any number of ranks and with any plan; every rank reads
  /// its share. Callbacks of the next training get their state back, by name. Collective. Throws
  /// CheckpointError on all ranks, naming what does not fit, also where ranks find different
  /// checkpoints in that place. In stages, before the first batch, the position is loaded at once,
  /// and the tensors when the next call gives a batch.
  void resume(const std::filesystem::path& checkpoint);

  /// How far training has come; after a checkpoint was resumed, where that stands.
  Progress progress() const;

  torch::nn::Module& module() const;
  torch::optim::Optimizer& optimizer() const;
  const ModelOptions& options() const;
  /// Where the parameters were when the model last worked.
  at::Device device() const;
  /// For global_norm and others of trireme/optim: which ranks have what of the gradients. Throws
  /// UsageError in stages before the first batch.
  Sharing sharing() const;

 private:
  struct Impl;
  struct Run;
  struct Snapshot;
  class Runner;
  class WholeRunner;
  class StagedRunner;

  // Either forward and loss, or batch_loss; the others are empty.
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
