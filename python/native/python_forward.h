// SPDX-License-Identifier: Apache-2.0
// Lets code in C++ call a forward pass that is written in Python.
//
// Dry runs and searches run without the GIL, because autograd's engine refuses to run with it. The
// forward pass takes it. What it raises passes through them as the exceptions that a forward pass
// in C++ throws, since a search tries other plans after some of these.
#pragma once

#include <trireme/base/error.h>
#include <trireme/graph/capture.h>

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace trireme::python {

/// An exception that a forward pass raised, in place of the c10::Error that C++ would throw.
class ForwardError : public c10::Error {
 public:
  /// @param message its text.
  /// @param raised the exception itself.
  ForwardError(std::string message, pybind11::error_already_set raised)
      : c10::Error({__func__, __FILE__, __LINE__}, std::move(message)),
        raised_(std::move(raised)) {}

  /// Returns the exception itself.
  const pybind11::error_already_set& raised() const noexcept { return raised_; }

 private:
  pybind11::error_already_set raised_;
};

/// A UsageError of Trireme that a forward pass raised. Torch's bindings make it a RuntimeError.
class ForwardUsageError : public UsageError {
 public:
  /// @param message its text, with its hint.
  /// @param raised the exception itself.
  ForwardUsageError(const std::string& message, pybind11::error_already_set raised)
      : UsageError(message, ""), raised_(std::move(raised)) {}

  /// Returns the exception itself.
  const pybind11::error_already_set& raised() const noexcept { return raised_; }

 private:
  pybind11::error_already_set raised_;
};

/// Returns a forward pass that calls `callable` with the inputs as its arguments. It must return a
/// tensor. `callable` must outlive it. Call it without the GIL.
graph::Forward forward_of(const pybind11::function& callable);

/// Raises a UsageError of trireme.errors with the same message, from the exception of the forward
/// pass. Raises that exception itself if it is already one of trireme.errors. Needs the GIL.
[[noreturn]] void raise(const ForwardUsageError& error);

/// Calls `function` without the GIL, and returns what it returns. Exceptions of forward passes are
/// raised as Python raised them.
template <typename Function>
auto without_gil(const Function& function) {
  try {
    const pybind11::gil_scoped_release no_gil;
    return function();
  } catch (const ForwardUsageError& error) {
    raise(error);
  } catch (const ForwardError& error) {
    throw pybind11::error_already_set(error.raised());
  } catch (python_error& error) {  // of a backward that is written in Python
    error.restore();
    throw pybind11::error_already_set();
  }
}

}  // namespace trireme::python
