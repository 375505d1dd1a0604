// SPDX-License-Identifier: Apache-2.0
// DataParallel and ShardedDataParallel: the plans that nine of ten programs need, in one line.
#pragma once

#include <trireme/parallel/parallelize.h>

namespace trireme {

/// Trains `module` on every rank of `group`, each with its own part of the data; see parallelize
/// for what that means. Lasts as long as the object: give it a name.
///
///     auto world = trireme::init();
///     torch::nn::Linear model(10, 1);
///     trireme::DataParallel parallel(*model, world.group);
///     torch::optim::SGD optimizer(model->parameters(), 0.1);
///     // … the training loop of one process, on this rank's part of the data
class [[nodiscard]] DataParallel : public Parallelized {
 public:
  [[nodiscard]] DataParallel(ModuleRef module, const comm::Group& group,
                             std::int64_t micro_batches = 1)
      : Parallelized(parallelize(module, {.micro_batches = micro_batches}, group)) {}
};

/// The same with the optimizer's state, gradients or parameters cut into one part a rank:
/// `zero_level` as Plan::zero_level says. The rest of a loop stays as it is.
///
///     torch::optim::Adam optimizer(model->parameters(), 1e-3);
///     trireme::ShardedDataParallel parallel(*model, optimizer, world.group, 3);
class [[nodiscard]] ShardedDataParallel : public Parallelized {
 public:
  [[nodiscard]] ShardedDataParallel(ModuleRef module, torch::optim::Optimizer& optimizer,
                                    const comm::Group& group, int zero_level,
                                    std::int64_t micro_batches = 1)
      : Parallelized(parallelize(module, plan_for(optimizer, zero_level, micro_batches), group)) {
    shard(optimizer);
  }

 private:
  // An optimizer that cannot be cut is refused before the module is.
  static Plan plan_for(const torch::optim::Optimizer& optimizer, int zero_level,
                       std::int64_t micro_batches) {
    if (zero_level > 0) check_can_shard(optimizer);
    return {.micro_batches = micro_batches, .zero_level = zero_level};
  }
};

}  // namespace trireme
