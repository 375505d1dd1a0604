// SPDX-License-Identifier: Apache-2.0
// parallelize: the one function that changes a module so that it trains in parallel.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/optim/gradients.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>

#include <memory>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace trireme {

/// What `parallelize` put around a module's parameters. It must outlive the training; destroying it
/// takes everything out again and leaves an ordinary module. Move-only, not thread-safe.
class Parallelized {
 public:
  struct Impl;
  explicit Parallelized(std::unique_ptr<Impl> impl);
  Parallelized(Parallelized&&) noexcept;
  Parallelized& operator=(Parallelized&&) noexcept;
  ~Parallelized();

  const Plan& plan() const noexcept;
  const comm::Group& group() const noexcept;

  /// Makes `optimizer` step this rank's part of the parameters, which the plan's zero_stage asks
  /// for before the first backward(), and keep state of that part alone. The optimizer may have
  /// been made, and have stepped, before or after parallelize; its groups keep their settings. From
  /// then on gradients are in the optimizer, `.grad()` of parameters is undefined between steps,
  /// and each step's gradients replace those before: accumulate by plan.micro_batches. The parts of
  /// other ranks are fetched when an operator first touches a parameter after a step, so all ranks
  /// must do that alike. Does nothing with stage 0, or in a group of one. Not collective.
  ///
  /// Throws UsageError for an optimizer that does not treat every element alone (SGD, Adam, AdamW,
  /// RMSprop and Adagrad do), and for one without any of the parameters. backward() throws one
  /// where a parameter has no optimizer, was given other memory, or was fetched between two steps.
  void shard(torch::optim::Optimizer& optimizer);

  /// The reverse: the optimizer has whole parameters and their whole state on every rank, for a
  /// checkpoint, say. Collective, blocking.
  void unshard(torch::optim::Optimizer& optimizer);

  /// Makes parameters whole that optimizers stepped in parts, as an operator on one of them does.
  /// For code that reads their memory itself, such as torch::save. Collective, blocking.
  void fetch();

  /// For clip_by_global_norm and LossScale (trireme/optim): which ranks have what of the optimizers
  /// that shard was called for. Refers to this object.
  Sharing sharing() const;

  /// Gives this rank's number for the step that is under way; call it before the step's last
  /// backward(). The sum over all ranks travels with the gradients and costs no message of its own:
  /// a loss, or a mark that it is not finite.
  /// @param number one element of a floating dtype; may be on another device than the gradients.
  void add_to_step(const at::Tensor& number);

  /// Forgets a step that an exception interrupted, so that the next backward() begins a new one. A
  /// group of one goes on as if the step had not been; with several ranks the others have gone on
  /// without this one, and its next backward() throws UsageError.
  void abandon_step();

  /// Returns the sum over ranks of the numbers given for the step whose last backward() returned; 0
  /// where none was.
  double sum_of_step() const;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Makes `module` train over the ranks of `group` as `plan` says. The module stays what it is: its
/// forward, its optimizer and the loop around it are written as for one process.
///
/// Data parallel: parameters and buffers become rank 0's. From then on, when the last of
/// `plan.micro_batches` calls of backward() returns, every gradient is the sum over ranks (in rank
/// order, each rank's sum over its micro-batches) divided once by ranks times micro-batches: the
/// mean over the whole batch where the loss is a mean and parts are equal. Gradients travel while
/// backward still runs. Call optimizer.zero_grad() between steps, in either form. The memory behind
/// `.grad()` belongs to the plan and is written again in the next step. A parameter that no rank
/// used in a step keeps its gradient as it was; one that some ranks used counts as zero on the
/// others.
///
/// Collective and blocking; every rank must then run backward() equally often. Throws UsageError
/// naming the first parameter or buffer that differs between ranks in name, shape, strides or
/// dtype, and for a module that is parallel already; a CommError of a later exchange comes out of
/// backward().
///
/// A backward() inside a backward (recomputation by hand) is refused.
///
/// Same contract as PyTorch's DistributedDataParallel with find_unused_parameters, without wrapping
/// forward.
[[nodiscard]] Parallelized parallelize(torch::nn::Module& module, const Plan& plan,
                                       const comm::Group& group);

}  // namespace trireme
