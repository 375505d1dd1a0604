// SPDX-License-Identifier: Apache-2.0
// Everything a program needs: #include <torch/torch.h> first, then this.
#pragma once

#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/spawn.h>
#include <trireme/comm/world.h>
#include <trireme/data/cifar10.h>
#include <trireme/data/mnist.h>
#include <trireme/data/pipeline.h>
#include <trireme/optim/autocast.h>
#include <trireme/optim/gradients.h>
#include <trireme/optim/loss_scale.h>
#include <trireme/parallel/data/exchanges/half_precision.h>
#include <trireme/parallel/data/exchanges/power_sgd.h>
#include <trireme/parallel/data/exchanges/top_k.h>
#include <trireme/parallel/data_parallel.h>
#include <trireme/parallel/deferred.h>
#include <trireme/parallel/gradient_reducer.h>
#include <trireme/parallel/horovod.h>
#include <trireme/parallel/local_sgd.h>
#include <trireme/parallel/state.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/lambda_callback.h>
#include <trireme/train/learning_rate.h>
#include <trireme/train/loss_monitor.h>
#include <trireme/train/model.h>
#include <trireme/train/progress_bar.h>
#include <trireme/train/time_monitor.h>
