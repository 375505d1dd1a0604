// SPDX-License-Identifier: Apache-2.0
// Horovod's interface under its own names, for programs that move from its Python API. Where a
// Horovod program has a process set, these have a Group; the default is all ranks.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>
#include <trireme/graph/module_ref.h>

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

/// trireme::init(). Everything below needs it first, and throws UsageError else. Calling it again
/// does nothing; after shutdown() the ranks meet anew.
void init(const InitOptions& options = {});
/// Lets go of the connection; it closes when nobody else uses it.
void shutdown();
bool is_initialized() noexcept;
/// What init() found.
const World& world();

int rank();
int size();
/// Among the ranks of this host.
int local_rank();
int local_size();
/// Among the ranks with this local rank, one a host.
int cross_rank();
int cross_size();

using Op = comm::ReduceOp;
// NOLINTBEGIN(readability-identifier-naming): Horovod's names
inline constexpr Op Average = Op::kAverage;
inline constexpr Op Sum = Op::kSum;
inline constexpr Op Product = Op::kProduct;
inline constexpr Op Min = Op::kMinimum;
inline constexpr Op Max = Op::kMaximum;
// NOLINTEND(readability-identifier-naming)

// Collectives. A name with an underscore at its end works in place, the others return a new tensor.
// All are collective and blocking, and throw CommError. Strides may differ between ranks. Unlike
// Horovod's they have no gradients: what they return is detached.

/// Average is the sum divided once, of floating dtypes alone: UsageError for others. The
/// average of fp16 is computed in fp32.
at::Tensor allreduce(const at::Tensor& tensor, Op op = Average,
                     const comm::Group& process_set = world().group);
// NOLINTNEXTLINE(readability-identifier-naming): Horovod's names here too
void allreduce_(const at::Tensor& tensor, Op op = Average,
                const comm::Group& process_set = world().group);

/// Concatenates every rank's tensor [n, …] in rank order; n may differ between ranks. Throws the
/// same UsageError on every rank where anything else differs.
at::Tensor allgather(const at::Tensor& tensor, const comm::Group& process_set = world().group);

at::Tensor broadcast(const at::Tensor& tensor, int root_rank,
                     const comm::Group& process_set = world().group);
// NOLINTNEXTLINE(readability-identifier-naming)
void broadcast_(const at::Tensor& tensor, int root_rank,
                const comm::Group& process_set = world().group);

/// Sends the first `splits[0]` rows of `tensor` [n, …] to rank 0, the next `splits[1]` to rank 1,
/// and so on; returns what the ranks sent to this one, in rank order, and how many rows from each.
/// No splits: equal parts. Throws the same UsageError on every rank for splits that do not fit.
std::pair<at::Tensor, std::vector<std::int64_t>> alltoall(
    const at::Tensor& tensor, const std::vector<std::int64_t>& splits = {},
    const comm::Group& process_set = world().group);

/// Returns rank `root_rank`'s text on every rank: settings, a random seed, a file's name.
std::string broadcast_object(const std::string& text, int root_rank,
                             const comm::Group& process_set = world().group);
/// Returns every rank's text, by rank.
std::vector<std::string> allgather_object(const std::string& text,
                                          const comm::Group& process_set = world().group);

void barrier(const comm::Group& process_set = world().group);

// Models and optimizers.

using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

/// Returns the module's parameters, with `prefix` and a dot before each name; one that has several
/// names comes once, under the first. Of several models:
///
///     auto parameters = hvd::named_parameters(*encoder, "encoder");
///     for (auto& parameter : hvd::named_parameters(*decoder, "decoder"))
///       parameters.push_back(parameter);
NamedParameters named_parameters(ConstModuleRef module, const std::string& prefix = "");

/// Gives all ranks the values of rank `root_rank`; of a module, those of its buffers too. Throws
/// the same UsageError on every rank, naming the first tensor that differs in name, shape, strides
/// or dtype.
void broadcast_parameters(ConstModuleRef module, int root_rank = 0,
                          const comm::Group& process_set = world().group);
void broadcast_parameters(const NamedParameters& parameters, int root_rank = 0,
                          const comm::Group& process_set = world().group);

/// Gives all ranks the state of rank `root_rank`'s optimizer: momentum buffers and the like, counts
/// of steps, and the options of each group, such as the learning rate. Ranks without state get it.
/// For SGD, Adam, AdamW, RMSprop and Adagrad over whole parameters (not after Parallelized::shard).
/// Throws the same UsageError on every rank where the optimizers are of other kinds or over other
/// parameters, and for other kinds.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root_rank = 0,
                               const comm::Group& process_set = world().group);

/// What gradients are made while they travel.
enum class Compression { kNone, kFp16, kBf16 };

struct DistributedOptimizerOptions {
  /// Average or Sum.
  Op op = Average;
  /// Calls of backward() that make up one step. Their gradients are added up; ranks exchange them
  /// during the last.
  std::int64_t backward_passes_per_step = 1;
  /// Divide by backward_passes_per_step too. Horovod for PyTorch does not, and neither does this by
  /// default: it expects the loss to be divided. With Average alone.
  bool average_aggregated_gradients = false;
  /// Gradients are divided by so much before they are added, and by size / this after; for sums
  /// that overflow. With Average alone.
  double gradient_predivide_factor = 1;
  Compression compression = Compression::kNone;
};

/// Reduces gradients over all ranks while backward() runs, for an optimizer that stays what it is.
/// Not thread-safe; move-only.
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
  /// Takes the trained parameters among `parameters` until it is destroyed; changes no values: see
  /// broadcast_parameters. Without any, those of the optimizer by their place in it. Both must
  /// outlive it.
  ///
  /// Collective and blocking. Throws the same UsageError on every rank for names that are there
  /// twice, for parameters that the optimizer has and the list has not, or the other way round, for
  /// options that cannot be, and where ranks differ in any of this; it says which.
  [[nodiscard]] explicit DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                              const NamedParameters& parameters = {},
                                              const DistributedOptimizerOptions& options = {},
                                              const comm::Group& process_set = world().group);
  DistributedOptimizer(DistributedOptimizer&&) noexcept;
  DistributedOptimizer& operator=(DistributedOptimizer&&) noexcept;
  ~DistributedOptimizer();

  /// Makes the gradients what the options say, after the last backward() of a step: before that
  /// they are not to be read. To be called by who clips or checks them; step() does it else. A
  /// second call does nothing. Throws UsageError where backward() has not been called
  /// backward_passes_per_step times since the last step; more often, backward() throws itself.
  ///
  /// The first call compares the parameters over the ranks, and throws the same UsageError on every
  /// rank, naming the first that differs: one that was left out of broadcast_parameters.
  void synchronize();

  /// synchronize(), unless that has been done or is skipped, and the optimizer's own step().
  void step();

  /// The optimizer's own. Throws UsageError after backward() and before synchronize() or step(),
  /// where it would throw gradients away that the other ranks use.
  void zero_grad(bool set_to_none = true);

  /// While it lives, step() is the optimizer's own: for those who called synchronize() and want to
  /// be sure.
  class [[nodiscard]] SkipSynchronize {
   public:
    [[nodiscard]] explicit SkipSynchronize(DistributedOptimizer& optimizer);
    SkipSynchronize(const SkipSynchronize&) = delete;
    SkipSynchronize& operator=(const SkipSynchronize&) = delete;
    ~SkipSynchronize();

   private:
    DistributedOptimizer& optimizer_;
  };
  SkipSynchronize skip_synchronize() { return SkipSynchronize(*this); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::hvd
