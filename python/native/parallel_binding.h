// SPDX-License-Identifier: Apache-2.0
// Makes parallelize() available to modules and optimizers of Python: hooks, buckets and shards of
// the library work on the very tensors of the module. What is particular to torch.optim's Python
// optimizers is in trireme/parallel.py and trireme/sharded_optimizer.py.
#pragma once

#include <pybind11/pybind11.h>

namespace trireme::python {

/// Adds the classes Group, Parallelized and Stepped, and functions of distributed tensors, to the
/// extension module.
void bind_parallel(pybind11::module_& module);

}  // namespace trireme::python
