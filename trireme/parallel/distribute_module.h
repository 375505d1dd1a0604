// SPDX-License-Identifier: Apache-2.0
// Makes the parameters of a module distributed tensors: distribute_module().
// This header gathers what a program includes.
#pragma once

#include <trireme/parallel/tensor_parallel/distribute_module.h>
