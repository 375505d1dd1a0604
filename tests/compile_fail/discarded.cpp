// SPDX-License-Identifier: Apache-2.0
// Objects that are made and thrown away in one statement: training would go on without them.
#include <trireme/optim/autocast.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/gradient_reducer.h>
#include <trireme/parallel/horovod.h>
#include <trireme/parallel/local_sgd.h>
#include <trireme/parallel/training_step.h>
#include <trireme/tensor/operator_strategy.h>

namespace trireme {

void discard(torch::nn::Module& module, torch::optim::Optimizer& optimizer, const Plan& plan,
             const comm::Group& group, const graph::Forward& forward) {
  const DataParallel kept(module, group);
  DataParallel(module, group);                       // refused
  ShardedDataParallel(module, optimizer, group, 3);  // refused
  parallelize(module, plan, group);                  // refused
  TrainingStep(module, forward, plan, group);        // refused
  GradientReducer(module, group);                    // refused
  LocalSgd(module, {}, group);                       // refused
  hvd::DistributedOptimizer{optimizer};              // refused
  Autocast{at::kCPU};                                // refused
  DataParallelDefault();                             // refused
}

void discard(Parallelized& parallelized, hvd::DistributedOptimizer& optimizer) {
  const auto kept = parallelized.no_sync();
  parallelized.no_sync();        // refused
  optimizer.skip_synchronize();  // refused
}

}  // namespace trireme
