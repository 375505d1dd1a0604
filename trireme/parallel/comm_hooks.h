// SPDX-License-Identifier: Apache-2.0
// Ways in which buckets of gradients travel other than by all-reduce, for register_comm_hook().
// This header gathers what a program includes.
#pragma once

#include <trireme/parallel/gradients/comm_hooks/half_precision.h>
#include <trireme/parallel/gradients/comm_hooks/power_sgd.h>
#include <trireme/parallel/gradients/comm_hooks/top_k.h>
