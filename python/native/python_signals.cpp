// SPDX-License-Identifier: Apache-2.0
#include <python/native/python_signals.h>

#include <trireme/base/interruption.h>

#include <pybind11/pybind11.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace trireme::python {
namespace {

// Used by the watched thread only.
std::atomic<std::thread::id> watched_thread;
// Never destroyed, because the interpreter may have ended by then.
std::optional<pybind11::error_already_set>& raised() {
  static auto& exception = *new std::optional<pybind11::error_already_set>;
  return exception;
}

std::string check_signals() {
  if (std::this_thread::get_id() != watched_thread || Py_IsInitialized() == 0) return "";
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return "";
  raised().emplace();  // takes the current exception
  return pybind11::str(raised()->type().attr("__name__"));
}

}  // namespace

void watch_signals_of_this_thread() {
  watched_thread = std::this_thread::get_id();
  set_interruption_check(check_signals);
}

bool restore_exception_of_signal() {
  if (std::this_thread::get_id() != watched_thread || !raised()) return false;
  raised()->restore();
  raised().reset();
  return true;
}

}  // namespace trireme::python
