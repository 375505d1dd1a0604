// SPDX-License-Identifier: Apache-2.0
// distribute_module(): makes the parameters of a module distributed tensors.
// Programs include this header; it includes the implementation's.
#pragma once

#include <trireme/parallel/tensor_parallel/distribute_module.h>
