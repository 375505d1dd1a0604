// SPDX-License-Identifier: Apache-2.0
// Comm hooks for Parallelized::register_comm_hook(): fp16 and bf16 compression, PowerSGD and top-k.
// Programs include this header; it includes the implementation's.
#pragma once

#include <trireme/parallel/comm_hooks/half_precision.h>
#include <trireme/parallel/comm_hooks/power_sgd.h>
#include <trireme/parallel/comm_hooks/top_k.h>
