// SPDX-License-Identifier: Apache-2.0
// parallelize(): prepares a module for parallel training by a loop that calls backward() itself.
// Covers data parallelism (as PyTorch's DistributedDataParallel), ZeRO levels 1 to 3 and tensor
// parallelism. Pipelines are TrainingStep's (training_step.h).
#pragma once

#include <trireme/comm/group.h>
#include <trireme/graph/module_ref.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/optim/gradients.h>
#include <trireme/parallel/gradients/comm_hook.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace trireme {

class Parallelized;
namespace detail {
class Reducer;
class Shards;
Reducer* reducer_of(Parallelized& parallelized);
Shards* shards_of(const Parallelized& parallelized);
struct StageUse;
StageUse use_of(const Parallelized& parallelized, const std::string& name);
}  // namespace detail

/// The state that `parallelize` attaches to a module's parameters: hooks, buckets and shards. Keep
/// it alive as long as the module trains. The destructor removes everything and leaves an ordinary
/// module, except that distributed parameters remain distributed. If an exception destroys it, it
/// does not wait for the other ranks: parameters of ZeRO level 3 then hold this rank's part and
/// zeros elsewhere. Move-only and not thread-safe.
class Parallelized {
 public:
  struct Impl;
  /// For parallelize(), which makes these objects.
  explicit Parallelized(std::unique_ptr<Impl> impl);
  /// Moves; the other object may then only be destroyed or assigned.
  Parallelized(Parallelized&&) noexcept;
  /// Restores the module of this object, and moves the other one here.
  Parallelized& operator=(Parallelized&&) noexcept;
  ~Parallelized();

  /// Returns the plan that was given.
  const Plan& plan() const noexcept;
  /// Returns the group that was given, or that of the mesh.
  const comm::Group& group() const noexcept;

  /// Returns the ranks along the plan's `data` axis, which read other data than this rank and
  /// exchange gradients with it. The rank and size of this group select the part of the data that
  /// this rank reads.
  const comm::Group& data_group() const noexcept;

  /// Returns the mesh of all axes of plan.mesh except `data`: the ranks that work on one part of
  /// the data together, over which parameters are distributed. It is not defined if the plan has no
  /// such axis.
  const DeviceMesh& mesh() const noexcept;

  /// Makes `optimizer` step only this rank's part of the parameters and keep state for that part
  /// only. If the plan's zero_level is above 0, call it before the first backward(). Parameters of
  /// ZeRO level 0 stay in the optimizer unchanged. Does nothing if nothing is sharded. Collective
  /// and blocking along `data`; if one rank fails, all throw.
  ///
  /// The optimizer may be constructed, and may have stepped, before or after parallelize. Its
  /// parameter groups keep their options. From now on:
  /// - The sharded gradients are in the optimizer, and each step replaces those before. To
  ///   accumulate gradients, set plan.micro_batches.
  /// - Between backward() and the optimizer's step, `.grad()` of a parameter has no memory. An
  ///   operator on it, such as in torch::nn::utils::clip_grad_norm_, throws UsageError; call
  ///   clip_by_global_norm instead. At other times `.grad()` is undefined.
  /// - The first operator that touches a parameter after a step gathers the other ranks' parts, so
  ///   all ranks must touch parameters alike.
  /// - In ZeRO level 3, any operator on a parameter that is not whole gathers it. All ranks must
  ///   run the same operators on parameters in the same order; UsageError names the parameters
  ///   where they do not. For experts that a rank would skip, call them with zero rows, or keep
  ///   them whole by plan.zero_level_of.
  ///
  /// Throws UsageError for an optimizer that cannot step parts of parameters (SGD, Adam, AdamW,
  /// RMSprop, Adagrad and lamb() can), and for one that holds none of the parameters. backward()
  /// throws UsageError if a sharded parameter has no optimizer, was given other memory, or was
  /// gathered between two steps.
  void shard(torch::optim::Optimizer& optimizer);

  /// Undoes shard(): the optimizer holds the parameters and their whole state on every rank again,
  /// for example for a checkpoint. Parameters of ZeRO level 3 stay sharded; see gather_parameters.
  /// Collective and blocking.
  void unshard(torch::optim::Optimizer& optimizer);

  /// Gathers all parameters whose parts the ranks have stepped. Call it before code that reads
  /// their memory without operators, such as torch::save. Parameters of ZeRO level 3 are whole
  /// until the next step. Collective and blocking.
  void gather_parameters();

  /// The part of one parameter that this rank holds: a flat slice that an optimizer steps, or the
  /// whole parameter.
  struct Part {
    std::string name;         ///< the name in the module
    at::Tensor parameter;     ///< the module's parameter
    at::Tensor tensor;        ///< the slice, flat [n], or the parameter itself
    std::int64_t offset = 0;  ///< where the slice begins in the parameter's memory, in elements
    /// False for a parameter that no stage of this rank uses, in a pipeline. Another rank then
    /// holds its current values.
    bool is_own = true;
  };
  /// Returns the part of every parameter, in the module's order. Not collective.
  std::vector<Part> parts() const;

  /// Calls `call` while the optimizer holds each part as one tensor with one state, as parts()
  /// returns it. At other times, an optimizer passed to shard() holds a large part in pieces that
  /// fit into the CPU's cache, each with its own state. Not collective.
  void with_whole_parts(torch::optim::Optimizer& optimizer,
                        const std::function<void()>& call) const;

  /// Announces that the caller will write into parts, as an optimizer's step does. Whole parameters
  /// are then gathered again when one is touched. All ranks must call it alike.
  void expect_parts_to_change();

  /// Returns which ranks hold which parts of the sharded parameters, for clip_by_global_norm and
  /// LossScale (trireme/optim). The returned value refers to this object.
  Sharing sharing() const;

  /// Suspends the exchange of gradients while it lives. Returned by no_sync().
  class [[nodiscard]] NoSync;
  /// Makes backward() only accumulate on this rank while the returned object lives. Such passes do
  /// not count towards plan.micro_batches, and nothing travels along `data`. The next backward()
  /// afterwards exchanges the accumulated gradients. They are not divided by the number of passes:
  /// scale the loss. All ranks must do this alike.
  NoSync no_sync();

  /// Keeps taking part in the steps of ranks that have more batches. Every rank calls it after its
  /// loop. It contributes zeros, and calls `step` after each step of the others. `step` must step
  /// the optimizer and zero its gradients as the loop does, so that parameters and state stay equal
  /// on all ranks. Gradients are divided by all ranks, or by those that still train, as the plan
  /// says. Buffers stay those of rank 0.
  ///
  /// Collective and blocking: returns when all ranks have called it. Ranks that work on one part of
  /// the data must call it together. No step of the others may take longer than the group's
  /// deadline. Throws UsageError if the plan needs this rank inside forward (ZeRO level 3,
  /// sync_batch_norm).
  void join(const std::function<void()>& step);

  /// Makes `hook` sum the buckets of gradients in place of all-reduce: PowerSGD, top-k or a hook of
  /// your own. Null restores what the plan says: all-reduce, in half precision if plan.wire is
  /// set; a hook takes the place of plan.wire too. Call it between steps, on all ranks alike.
  /// Throws UsageError if the plan shards gradients, because these need sums of slices.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  /// Adds a number to the step under way, for example its loss or a flag for values that are not
  /// finite. It is summed over the ranks along `data` together with the gradients, at no extra
  /// message; read it with sum_of_step(). Call it before the last backward() of the step. A
  /// distributed number is gathered first, which is collective over mesh(). Throws UsageError for
  /// any other tensor than one floating-point element.
  /// @param number one element of a floating dtype. It may be on another device than the gradients.
  void add_to_step(const at::Tensor& number);

  /// Completes this rank's part in a step whose last backward() will not come, or threw. The other
  /// ranks then do not wait: gradients that were not sent yet are sent as zeros, together with the
  /// number of add_to_step(), which can tell them that this rank cannot go on. No rank should use
  /// the gradients of such a step. Collective with the last backward() of the other ranks, and
  /// blocking. Throws UsageError if the plan needs this rank inside forward (ZeRO level 3,
  /// sync_batch_norm, other axes than `data`), or if the exchange itself has failed.
  void finish_without_backward();

  /// Aborts all groups that this object communicates over, including the one it was made for,
  /// because this rank cannot go on. Operations of other ranks on these groups, pending or later,
  /// throw CommError with `reason`. Over Gloo and MPI, other ranks notice it only when this process
  /// exits or destroys its groups, and without the reason. Not collective.
  void abort(const std::string& reason);

  /// Drops a step that an exception interrupted, so that the next backward() begins a new one. In a
  /// group of one, training continues as if the step had not begun. With several ranks, the others
  /// went on without this one, so its next backward() throws UsageError.
  void abandon_step();

  /// Returns the sum over the ranks along `data` of the numbers passed to add_to_step() for the
  /// last complete step, or 0 if there were none. In a group of one, returns the last number
  /// passed.
  double sum_of_step() const;

  /// Returns the seconds that the thread of the last backward() spent on exchanging gradients:
  /// copying them, starting collectives, and waiting for other ranks at the end. Gathers of ZeRO
  /// level 3 are not included. Returns 0 if nothing is exchanged.
  double seconds_of_exchange() const;

 private:
  friend detail::Reducer* detail::reducer_of(Parallelized& parallelized);
  friend detail::Shards* detail::shards_of(const Parallelized& parallelized);
  friend detail::StageUse detail::use_of(const Parallelized& parallelized, const std::string& name);
  std::unique_ptr<Impl> impl_;
};

/// A scope in which backward() exchanges no gradients (no_sync). Gradients add up on each rank.
class [[nodiscard]] Parallelized::NoSync {
 public:
  /// Begins the scope.
  [[nodiscard]] explicit NoSync(Impl& impl);
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  ~NoSync();

 private:
  Impl& impl_;
};

/// One part of the training data: part `index` of `count` equal ones.
struct DataPart {
  std::int64_t index = 0;  ///< from 0
  std::int64_t count = 1;  ///< the ranks along `data`
};
/// Returns the part of the data that this rank of `group` reads under `plan`. Ranks that work on
/// one part together get the same one. May be called before or after parallelize. Throws UsageError
/// if plan.mesh does not fit the group. Not collective.
DataPart data_part(const Plan& plan, const comm::Group& group);

/// Throws UsageError with the reason if `optimizer` cannot step parts of parameters.
void check_can_shard(const torch::optim::Optimizer& optimizer);

/// Prepares `module` for training over the ranks of `group` as `plan` says. The module's forward,
/// its optimizer and the training loop are written as for one process. The contract is that of
/// PyTorch's DistributedDataParallel with find_unused_parameters, without wrapping forward.
///
/// Data parallelism: parameters and buffers take the values of rank 0. A step consists of
/// `plan.micro_batches` calls of backward(). When the last one returns, every gradient is the sum
/// over ranks of their sums over micro-batches, divided once by ranks times micro-batches. Ranks
/// are added in rank order. This is the mean over the whole batch if each loss is a mean over
/// equally many rows. Gradients travel while backward still runs.
/// - Call optimizer.zero_grad() between steps, with or without set_to_none.
/// - The memory of `.grad()` belongs to the plan and is overwritten in the next step.
/// - A parameter that no rank used in a step keeps its gradient. A comm hook that feeds back errors
///   may still change it.
/// - A parameter that only some ranks used counts as zero on the others.
///
/// Tensor parallelism: if plan.mesh has other axes than `data`, parameters and buffers become
/// distributed tensors over these axes, as plan.layouts says (distribute_module). They remain
/// distributed after the returned object is destroyed.
/// - The ranks along these axes pass the same inputs to forward and run it together.
/// - Each gradient is first redistributed to its parameter's layout. This rank's part of it is then
///   summed over the ranks along `data`, divided by their number, and sharded by ZeRO.
/// - A module that was constructed without memory is whole on every rank for a moment.
/// - An optimizer that stepped before has state of whole parameters: construct a new one, or load
///   its state from a checkpoint.
/// - From now on, torch's default generator draws the same numbers on all of these ranks: those of
///   the first one.
///
/// Collective and blocking. Every rank must then run backward() equally often. Throws UsageError
/// naming the first parameter or buffer that differs between ranks in name, shape, strides or
/// dtype, and for a module that is parallelized already. Errors of a later exchange (CommError) are
/// thrown by backward(). If a parameter is frozen, moved, cast or added afterwards, the next
/// backward() throws UsageError naming it. Calling backward() inside a backward pass (recomputation
/// by hand) is refused.
///
/// @param module `*model`, a holder or a shared_ptr. Must outlive the returned object.
/// @param group the ranks that train: world.group, or comm::Group::self() to train alone. An empty
/// group throws UsageError.
[[nodiscard]] Parallelized parallelize(ModuleRef module, const Plan& plan,
                                       const comm::Group& group);

/// Does the same over the ranks of an existing mesh. plan.mesh must be empty or equal to the axes
/// of `mesh`. Other tensors that are distributed over `mesh` can be combined with the module's.
[[nodiscard]] Parallelized parallelize(ModuleRef module, const Plan& plan, const DeviceMesh& mesh);

/// Does the same for several modules that train together, such as `{{"generator", generator},
/// {"critic", critic}}`. They are treated as submodules of one module: plan.layouts and error
/// messages name parameters with the given name and a dot in front. Throws UsageError for a name
/// that is empty, repeated or contains a dot, and for a module that no shared_ptr owns.
[[nodiscard]] Parallelized parallelize(
    const std::vector<std::pair<std::string, ModuleRef>>& modules, const Plan& plan,
    const comm::Group& group);

/// Does the same for a list of named parameters, for example of several modules. Names must differ.
/// Buffers are not exchanged and batch norm is not synchronised.
[[nodiscard]] Parallelized parallelize(
    const std::vector<std::pair<std::string, at::Tensor>>& parameters, const Plan& plan,
    const comm::Group& group);

}  // namespace trireme
