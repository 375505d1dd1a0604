// SPDX-License-Identifier: Apache-2.0
// Comm hooks for Python: PowerSGD and top-k of the library, and functions that are written in
// Python.
#pragma once

#include <trireme/parallel/gradients/comm_hook.h>

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>

namespace trireme::python {

/// Exchanges buckets by a function of Python. It is called with a bucket and returns a function
/// without arguments that waits until the bucket's memory holds the sum over ranks, or None if it
/// holds it already.
class PythonCommHook final : public CommHook {
 public:
  /// @param start the function; the caller holds the GIL.
  explicit PythonCommHook(pybind11::function start);

  /// Throws UsageError with the text of an exception of the function.
  std::function<void()> start(GradientBucket& bucket, const comm::Group& group) override;

 private:
  std::shared_ptr<pybind11::object> start_;
};

/// Adds GradientBucket, CommHook, PowerSgd, TopK and PythonCommHook to `module`.
void bind_comm_hooks(pybind11::module_& module);

}  // namespace trireme::python
