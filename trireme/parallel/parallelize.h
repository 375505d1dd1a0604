// SPDX-License-Identifier: Apache-2.0
// parallelize: the one function that changes a module so that it trains in parallel.
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

/// What `parallelize` put around a module's parameters. It must outlive the training; destroying it
/// takes everything out again and leaves an ordinary module. Where an exception destroys it,
/// parameters of ZeRO level 3 are left with this rank's parts and zeros, for it does not wait for
/// the other ranks. Move-only, not thread-safe.
class Parallelized {
 public:
  struct Impl;
  explicit Parallelized(std::unique_ptr<Impl> impl);
  Parallelized(Parallelized&&) noexcept;
  Parallelized& operator=(Parallelized&&) noexcept;
  ~Parallelized();

  const Plan& plan() const noexcept;
  const comm::Group& group() const noexcept;

  /// The ranks that have other data than this one and exchange gradients with it: the plan's `data`
  /// axis. Its rank and size say which part of the data this rank is to read.
  const comm::Group& data_group() const noexcept;

  /// The ranks that work on one part of the data together, on which the parameters are cut: the
  /// axes of plan.mesh but `data`. Not defined where the plan has no others.
  const DeviceMesh& mesh() const noexcept;

  /// Makes `optimizer` step this rank's part of the parameters, which the plan's zero_level asks
  /// for before the first backward(), and keep state of that part alone. The optimizer may have
  /// been made, and have stepped, before or after parallelize; its groups keep their settings. From
  /// then on gradients are in the optimizer, and each step's replace those before: accumulate by
  /// plan.micro_batches. Between backward() and the optimizer's step `.grad()` of a parameter has
  /// no memory, and an operator on it, such as those of torch::nn::utils::clip_grad_norm_, throws
  /// UsageError (take clip_by_global_norm); else it is undefined.
  ///
  /// The parts of other ranks are gathered when an operator first touches a parameter after a step,
  /// so all ranks must do that alike. In ZeRO level 3 they are gathered whenever an operator
  /// touches one that is not whole, so that all ranks must run the same operators on parameters in
  /// the same order; UsageError names the parameters where they do not (experts that are skipped,
  /// say: call them with no rows, or keep them whole by zero_level_of). Parameters of ZeRO level 0
  /// stay in the optimizer as they are. Does nothing where nothing is cut. Not collective.
  ///
  /// Throws UsageError for an optimizer that does not treat every element alone (SGD, Adam, AdamW,
  /// RMSprop and Adagrad do), and for one without any of the parameters. backward() throws one
  /// where a parameter has no optimizer, was given other memory, or was gathered between two steps.
  void shard(torch::optim::Optimizer& optimizer);

  /// The reverse: the optimizer has the parameters and their whole state on every rank, for a
  /// checkpoint, say. Parameters of ZeRO level 3 stay cut; see gather_parameters. Collective,
  /// blocking.
  void unshard(torch::optim::Optimizer& optimizer);

  /// Makes parameters whole that optimizers stepped in parts, as an operator on one of them does;
  /// in ZeRO level 3 all at once, until the next step. For code that reads their memory itself,
  /// such as torch::save. Collective, blocking.
  void gather_parameters();

  /// What this rank has of a parameter: a flat part that an optimizer steps, or all of it.
  struct Part {
    std::string name;
    at::Tensor parameter;
    at::Tensor tensor;        ///< [n] and flat, or the parameter itself
    std::int64_t offset = 0;  ///< of the part in the parameter's memory, in elements
    /// False for what no stage of this rank uses, in a pipeline: its values are another rank's.
    bool is_own = true;
  };
  /// Of every parameter, in the module's order.
  std::vector<Part> parts() const;

  /// An optimizer that shard was called for steps a large part in pieces that stay in the
  /// processor's cache, each with state of its own. While `call` runs it has the parts, as in
  /// parts(), and one state of each. Not collective.
  void with_whole_parts(torch::optim::Optimizer& optimizer,
                        const std::function<void()>& call) const;

  /// For code that is about to write into parts, as an optimizer's step does: those of other ranks
  /// are gathered again when a parameter is touched afterwards. All ranks must do this alike.
  void expect_parts_to_change();

  /// For clip_by_global_norm and LossScale (trireme/optim): which ranks have what of the optimizers
  /// that shard was called for. Refers to this object.
  Sharing sharing() const;

  /// While the returned object lives, backward() only adds to the gradients of this rank: it is no
  /// part of plan.micro_batches, and nothing travels along `data`. The next backward() after it
  /// exchanges everything. Nothing divides by the number of such passes: scale the loss. All ranks
  /// must do this alike.
  class [[nodiscard]] NoSync;
  NoSync no_sync();

  /// For ranks whose data ends before that of others: to be called by every rank after its loop.
  /// Takes part in the steps of those that go on, with zeros, and calls `step` after each, which is
  /// to step the optimizer as the loop does and to zero its gradients, so that this rank's
  /// parameters and state stay equal to theirs. Returns when all ranks have come here. Collective,
  /// blocking; no step of the others may take longer than the group's deadline. Divides by all
  /// ranks or by those that go on as the plan says; buffers stay rank 0's. Throws UsageError where
  /// the plan needs this rank inside forward (ZeRO level 3, sync_batch_norm). Ranks that work on
  /// one part of the data come here together.
  void join(const std::function<void()>& step);

  /// Has buckets of gradients summed by `hook` (PowerSGD, top-k, your own) instead of
  /// all-reduce; null: by all-reduce again. Between steps; all ranks must do this alike. Throws
  /// UsageError where the plan cuts gradients, which takes sums of slices.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  /// Gives this rank's number for the step that is under way; call it before the step's last
  /// backward(). The sum over the ranks along `data` travels with the gradients and costs no
  /// message of its own: a loss, or a mark that it is not finite. A distributed one is made whole
  /// first, by the ranks that work together.
  /// @param number one element of a floating dtype; may be on another device than the gradients.
  void add_to_step(const at::Tensor& number);

  /// Takes this rank's part in a step whose last backward() will not come, or has ended by an
  /// exception, so that the others do not wait: what has not gone to them yet goes as zeros, and
  /// with it the number of add_to_step, by which this rank can say that it cannot go on. No rank
  /// should use the gradients of such a step. Collective with that backward() of the others,
  /// blocking. Throws UsageError where the plan needs this rank inside forward (ZeRO level 3,
  /// sync_batch_norm, other axes than `data`), and where the exchange itself has failed.
  void finish_without_backward();

  /// Ends the groups that this communicates over, among them the one it was made for, because this
  /// rank cannot go on: what other ranks wait for in them, and start later, throws CommError with
  /// `reason`. Over Gloo and MPI they learn that something has ended, and when this process ends or
  /// destroys its groups. Not collective.
  void abort(const std::string& reason);

  /// Forgets a step that an exception interrupted, so that the next backward() begins a new one. A
  /// group of one goes on as if the step had not been; with several ranks the others have gone on
  /// without this one, and its next backward() throws UsageError.
  void abandon_step();

  /// Returns the sum over the ranks along `data` of the numbers given for the step whose last
  /// backward() returned; 0 where none was. In a group of one, the last number given.
  double sum_of_step() const;

  /// Returns how long the thread that ran the step's last backward() was busy with the exchange of
  /// gradients: copying them, starting collectives, and waiting for other ranks at its end. What
  /// ZeRO level 3 gathers is no part of it. 0 where nothing is exchanged.
  double seconds_of_exchange() const;

 private:
  friend detail::Reducer* detail::reducer_of(Parallelized& parallelized);
  friend detail::Shards* detail::shards_of(const Parallelized& parallelized);
  friend detail::StageUse detail::use_of(const Parallelized& parallelized, const std::string& name);
  std::unique_ptr<Impl> impl_;
};

class [[nodiscard]] Parallelized::NoSync {
 public:
  [[nodiscard]] explicit NoSync(Impl& impl);
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  ~NoSync();

 private:
  Impl& impl_;
};

/// Which part of the data a rank of `group` is to read under `plan`, before or after parallelize:
/// ranks that work on one part together have the same one.
struct DataPart {
  std::int64_t index = 0;
  std::int64_t count = 1;
};
/// Throws UsageError where plan.mesh does not fit the group. Not collective.
DataPart data_part(const Plan& plan, const comm::Group& group);

/// Throws UsageError with the reason for an optimizer that cannot step parts of parameters.
void check_can_shard(const torch::optim::Optimizer& optimizer);

/// Makes `module` train over the ranks of `group` as `plan` says. The module stays what it is: its
/// forward, its optimizer and the loop around it are written as for one process.
///
/// Data parallel: parameters and buffers become rank 0's. From then on, when the last of
/// `plan.micro_batches` calls of backward() returns, every gradient is the sum over ranks (in rank
/// order, each rank's sum over its micro-batches) divided once by ranks times micro-batches: the
/// mean over the whole batch where the loss is a mean and parts are equal. Gradients travel while
/// backward still runs. Call optimizer.zero_grad() between steps, in either form. The memory behind
/// `.grad()` belongs to the plan and is written again in the next step. A parameter that no rank
/// used in a step keeps its gradient as it was, unless a hook brings what it had kept back;
/// one that some ranks used counts as zero on the others.
///
/// Tensor parallel: where plan.mesh has other axes than `data`, parameters and buffers become
/// distributed tensors on them, as plan.layouts says (distribute_module), and stay that when the
/// returned object goes. The ranks along those axes give forward the same inputs, and take part in
/// it together. Each gradient is brought to its parameter's layout first, and what this rank has of
/// it then travels along `data`, is divided by the ranks along it, and cut by ZeRO. Modules that
/// were constructed without memory are whole on every rank for a moment. An optimizer that has
/// stepped before has plain state: make it anew, or load it from a checkpoint. Random numbers of
/// torch's default generator are those of the first of the ranks that work together, from then on
/// the same on all of them.
///
/// Collective and blocking; every rank must then run backward() equally often. Throws UsageError
/// naming the first parameter or buffer that differs between ranks in name, shape, strides or
/// dtype, and for a module that is parallel already; a CommError of a later exchange comes out of
/// backward().
///
/// A parameter that is frozen, moved, cast or added afterwards makes the next backward() throw a
/// UsageError that names it. A backward() inside a backward (recomputation by hand) is refused.
///
/// @param module `*model`, a holder or a shared_ptr; must outlive the returned object.
/// @param group throws UsageError for an empty one: world.group, or comm::Group::self() to train
/// alone.
///
/// Same contract as PyTorch's DistributedDataParallel with find_unused_parameters, without wrapping
/// forward.
[[nodiscard]] Parallelized parallelize(ModuleRef module, const Plan& plan,
                                       const comm::Group& group);

/// The same with a mesh of one's own, over the ranks of its group: plan.mesh is empty, or the axes
/// of the mesh. What else is distributed over that mesh works together with the module.
[[nodiscard]] Parallelized parallelize(ModuleRef module, const Plan& plan, const DeviceMesh& mesh);

/// The same for several modules that train together, such as `{{"generator", generator},
/// {"critic", critic}}`: one with these as its submodules, by whose names plan.layouts and error
/// messages call the parameters. Throws UsageError for a name that is empty, twice or has a dot,
/// and for a module that no shared_ptr owns.
[[nodiscard]] Parallelized parallelize(
    const std::vector<std::pair<std::string, ModuleRef>>& modules, const Plan& plan,
    const comm::Group& group);

/// The same for a list of named parameters, of several modules say. Names must differ; there are no
/// buffers and no batch norm to synchronise.
[[nodiscard]] Parallelized parallelize(
    const std::vector<std::pair<std::string, at::Tensor>>& parameters, const Plan& plan,
    const comm::Group& group);

}  // namespace trireme
