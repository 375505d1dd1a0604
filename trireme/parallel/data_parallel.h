// SPDX-License-Identifier: Apache-2.0
// DataParallel and ShardedDataParallel: parallelize() with the two most common plans. They
// correspond to PyTorch's DistributedDataParallel and FullyShardedDataParallel.
#pragma once

#include <trireme/comm/consensus.h>
#include <trireme/parallel/parallelize.h>

namespace trireme {

/// Trains `module` on every rank of `group`, each with its own part of the data. Gradients are
/// averaged as parallelize() describes. Training is parallel while the object lives, so give it a
/// name.
///
///     auto world = trireme::init();
///     torch::nn::Linear model(10, 1);
///     trireme::DataParallel parallel(*model, world.group);
///     torch::optim::SGD optimizer(model->parameters(), 0.1);
///     // … the training loop of one process, on this rank's part of the data
class [[nodiscard]] DataParallel : public Parallelized {
 public:
  /// Calls parallelize(), whose errors it throws. Collective and blocking.
  /// @param micro_batches the calls of backward() in one step.
  [[nodiscard]] DataParallel(ModuleRef module, const comm::Group& group,
                             std::int64_t micro_batches = 1)
      : Parallelized(parallelize(module, {.micro_batches = micro_batches}, group)) {}
};

/// Does the same with optimizer state (`zero_level` 1), also gradients (2), or also parameters (3)
/// sharded over the ranks (Plan::zero_level). The rest of the training loop does not change.
///
///     torch::optim::Adam optimizer(model->parameters(), 1e-3);
///     trireme::ShardedDataParallel parallel(*model, optimizer, world.group, 3);
class [[nodiscard]] ShardedDataParallel : public Parallelized {
 public:
  /// Calls parallelize() and Parallelized::shard(), whose errors it throws. Collective and
  /// blocking.
  /// @param micro_batches the calls of backward() in one step.
  [[nodiscard]] ShardedDataParallel(ModuleRef module, torch::optim::Optimizer& optimizer,
                                    const comm::Group& group, int zero_level,
                                    std::int64_t micro_batches = 1)
      : Parallelized(
            parallelize(module, plan_for(optimizer, group, zero_level, micro_batches), group)) {
    shard(optimizer);
  }

 private:
  // Refuses an optimizer that cannot be sharded before the module is changed.
  static Plan plan_for(const torch::optim::Optimizer& optimizer, const comm::Group& group,
                       int zero_level, std::int64_t micro_batches) {
    comm::check_given(group, "ShardedDataParallel");
    comm::succeed_together("shard its optimizer", group, [&] {
      if (zero_level > 0) check_can_shard(optimizer);
    });
    return {.micro_batches = micro_batches, .zero_level = zero_level};
  }
};

}  // namespace trireme
