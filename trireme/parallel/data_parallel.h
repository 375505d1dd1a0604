// SPDX-License-Identifier: Apache-2.0
// DataParallel: the plan that nine of ten programs need, in one line.
#pragma once

#include <trireme/parallel/parallelize.h>

namespace trireme {

/// Trains `module` on every rank of `group`, each with its own part of the data; see parallelize
/// for what that means.
///
///     auto world = trireme::init();
///     torch::nn::Linear model(10, 1);
///     trireme::DataParallel parallel(*model, world.group);
///     torch::optim::SGD optimizer(model->parameters(), 0.1);
///     // … the training loop of one process, on this rank's part of the data
class [[nodiscard]] DataParallel {
 public:
  DataParallel(torch::nn::Module& module, const comm::Group& group, std::int64_t micro_batches = 1)
      : parallelized_(
            parallelize(module, {.data_parallel = true, .micro_batches = micro_batches}, group)) {}

 private:
  Parallelized parallelized_;
};

}  // namespace trireme
