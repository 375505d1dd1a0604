// SPDX-License-Identifier: Apache-2.0
// Horovod's interface under its own names, for programs that are ported from its Python API. A
// comm::Group takes the place of a Horovod process set; the default is the group of all ranks.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/graph/module_ref.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
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

namespace trireme::hvd {

/// Calls trireme::init(). The other functions, except is_initialized(), throw UsageError before it
/// is called. A second call does nothing; after shutdown(), a call connects the ranks again.
/// Collective and blocking.
void init(const InitOptions& options = {});
/// Releases the connection. It is closed when no other object uses it.
void shutdown();
/// Returns true between init() and shutdown().
bool is_initialized() noexcept;
/// Returns the result of init().
const World& world();

/// Returns the rank among all ranks.
int rank();
/// Returns the number of all ranks.
int size();
/// Returns the rank among the ranks of this host.
int local_rank();
/// Returns the number of ranks of this host.
int local_size();
/// Returns the rank among the ranks with this local rank, of which each host has one.
int cross_rank();
/// Returns the number of ranks with this local rank.
int cross_size();

/// The reduction of allreduce().
using Op = comm::ReduceOp;
// NOLINTBEGIN(readability-identifier-naming): Horovod's names
inline constexpr Op Average = Op::kAverage;  ///< the mean over ranks; floating dtypes
inline constexpr Op Sum = Op::kSum;          ///< the sum over ranks
inline constexpr Op Product = Op::kProduct;  ///< the product over ranks
inline constexpr Op Min = Op::kMinimum;      ///< the least of all ranks
inline constexpr Op Max = Op::kMaximum;      ///< the greatest of all ranks
// NOLINTEND(readability-identifier-naming)

// Collectives. Functions whose name ends with an underscore work in place; the others return a new
// tensor. All are collective and blocking, and throw CommError on failure. Strides may differ
// between ranks. Unlike Horovod's, they are not differentiable: results are detached.

/// Reduces a tensor over all ranks. Average is the sum divided once. It takes floating dtypes only,
/// and throws UsageError for others. The average of fp16 tensors is computed in fp32.
at::Tensor allreduce(const at::Tensor& tensor, Op op = Average,
                     const comm::Group& process_set = world().group);
/// Does the same in place.
// NOLINTNEXTLINE(readability-identifier-naming): Horovod's names here too
void allreduce_(const at::Tensor& tensor, Op op = Average,
                const comm::Group& process_set = world().group);

/// Concatenates the tensors [n, …] of all ranks in rank order. n may differ between ranks. Throws
/// the same UsageError on every rank if anything else differs.
at::Tensor allgather(const at::Tensor& tensor, const comm::Group& process_set = world().group);

/// Returns the tensor of rank `root_rank` on every rank.
at::Tensor broadcast(const at::Tensor& tensor, int root_rank,
                     const comm::Group& process_set = world().group);
/// Does the same in place.
// NOLINTNEXTLINE(readability-identifier-naming)
void broadcast_(const at::Tensor& tensor, int root_rank,
                const comm::Group& process_set = world().group);

/// Sends the first `splits[0]` rows of `tensor` [n, …] to rank 0, the next `splits[1]` to rank 1,
/// and so on. Returns the rows that this rank received, in rank order, and the number of rows from
/// each rank. Empty `splits` mean equal parts. Throws the same UsageError on every rank if the
/// splits do not fit.
std::pair<at::Tensor, std::vector<std::int64_t>> alltoall(
    const at::Tensor& tensor, const std::vector<std::int64_t>& splits = {},
    const comm::Group& process_set = world().group);

/// Returns the text of rank `root_rank` on every rank, for example settings or a file name.
std::string broadcast_object(const std::string& text, int root_rank,
                             const comm::Group& process_set = world().group);
/// Returns the texts of all ranks, in rank order.
std::vector<std::string> allgather_object(const std::string& text,
                                          const comm::Group& process_set = world().group);

/// Waits until every rank has called it.
void barrier(const comm::Group& process_set = world().group);

// Models and optimizers.

/// Parameters with their names, in a fixed order.
using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

/// Returns the module's parameters. A `prefix` that is not empty is put before each name, with a
/// dot. A parameter with several names is listed once, under the first. For several models:
///
///     auto parameters = hvd::named_parameters(*encoder, "encoder");
///     for (auto& parameter : hvd::named_parameters(*decoder, "decoder"))
///       parameters.push_back(parameter);
NamedParameters named_parameters(ConstModuleRef module, const std::string& prefix = "");

/// Copies the parameters and buffers of rank `root_rank` to all ranks. Throws the same UsageError
/// on every rank, naming the first tensor that differs in name, shape, strides or dtype. Collective
/// and blocking.
void broadcast_parameters(ConstModuleRef module, int root_rank = 0,
                          const comm::Group& process_set = world().group);
/// Does the same for a list of parameters.
void broadcast_parameters(const NamedParameters& parameters, int root_rank = 0,
                          const comm::Group& process_set = world().group);

/// Copies the optimizer state of rank `root_rank` to all ranks: momentum and similar tensors, step
/// counts, and the options of each parameter group, such as the learning rate. Ranks without state
/// get it. Supports SGD, Adam, AdamW, RMSprop, Adagrad and lamb() over whole parameters (not after
/// Parallelized::shard). Throws the same UsageError on every rank for other optimizers, and if the
/// kinds or the parameters of the optimizers differ between ranks. Collective and blocking.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root_rank = 0,
                               const comm::Group& process_set = world().group);

/// The dtype in which gradients are sent. kNone keeps their own.
using Compression = GradientCompression;

/// Options of a DistributedOptimizer. All ranks pass the same values.
struct DistributedOptimizerOptions {
  /// The reduction of gradients: Average or Sum.
  Op op = Average;
  /// The number of calls of backward() in one step. Their gradients are added; ranks exchange them
  /// during the last call.
  std::int64_t backward_passes_per_step = 1;
  /// Divides by backward_passes_per_step too. By default, as in Horovod for PyTorch, the caller
  /// divides the loss. Allowed with Average only.
  bool average_aggregated_gradients = false;
  /// The divisor that is applied before the sum, for sums that would overflow. After the sum,
  /// gradients are divided by size / this. Allowed with Average only.
  double gradient_predivide_factor = 1;
  /// The dtype in which gradients are sent.
  Compression compression = Compression::kNone;
};

/// Reduces gradients over all ranks while backward() runs, for an ordinary LibTorch optimizer.
/// Move-only and not thread-safe.
///
///     hvd::init();
///     torch::optim::SGD sgd(model->parameters(), 0.1 * hvd::size());
///     hvd::DistributedOptimizer optimizer(sgd, hvd::named_parameters(*model));
///     hvd::broadcast_parameters(*model);
///     hvd::broadcast_optimizer_state(sgd);
///     for (…) {
///       optimizer.zero_grad();
///       loss_of(model, batch).backward();
///       optimizer.step();
///     }
class DistributedOptimizer {
 public:
  /// Takes those of `parameters` that require gradients, until it is destroyed. If `parameters` is
  /// empty, takes those of the optimizer, named by their position. Optimizer and parameters must
  /// outlive the object. Values are not changed: call broadcast_parameters().
  ///
  /// Collective and blocking. Throws the same UsageError on every rank in these cases:
  /// - a name occurs twice;
  /// - the optimizer and the list do not hold the same parameters;
  /// - options are invalid;
  /// - any of this differs between ranks.
  [[nodiscard]] explicit DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                              const NamedParameters& parameters = {},
                                              const DistributedOptimizerOptions& options = {},
                                              const comm::Group& process_set = world().group);
  DistributedOptimizer(DistributedOptimizer&&) noexcept;
  DistributedOptimizer& operator=(DistributedOptimizer&&) noexcept;
  ~DistributedOptimizer();

  /// Completes the gradients of a step as the options say. Call it after the last backward() to
  /// clip or check gradients, which may not be read before; step() calls it otherwise. A second
  /// call does nothing. Throws UsageError if backward() was called fewer than
  /// backward_passes_per_step times since the last step; if it is called more often, backward()
  /// throws.
  ///
  /// The first call compares the parameters of all ranks. If they differ, it throws the same
  /// UsageError on every rank, naming the first that differs: broadcast_parameters() was not called
  /// for it.
  void synchronize();

  /// Calls synchronize(), unless that was called already or is skipped, and steps the optimizer.
  void step();

  /// Calls the optimizer's zero_grad(). Throws UsageError between backward() and synchronize() or
  /// step(), because the other ranks would still use these gradients.
  void zero_grad(bool set_to_none = true);

  /// Makes step() only step the optimizer while it lives, without synchronize(). For loops that
  /// have called synchronize() themselves.
  class [[nodiscard]] SkipSynchronize {
   public:
    /// Begins. The optimizer must outlive it.
    [[nodiscard]] explicit SkipSynchronize(DistributedOptimizer& optimizer);
    SkipSynchronize(const SkipSynchronize&) = delete;
    SkipSynchronize& operator=(const SkipSynchronize&) = delete;
    ~SkipSynchronize();

   private:
    DistributedOptimizer& optimizer_;
  };
  /// Begins a scope in which step() only steps the optimizer.
  SkipSynchronize skip_synchronize() { return SkipSynchronize(*this); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::hvd
