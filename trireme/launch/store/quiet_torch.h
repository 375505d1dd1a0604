// SPDX-License-Identifier: Apache-2.0
// Keeps LibTorch's own log lines, stack traces included, off the screen while we turn its failures
// into our errors.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <exception>
#include <string>

C10_DECLARE_int(caffe2_log_level);

namespace trireme::launch {

/// Returns the message without LibTorch's stack trace.
inline std::string message_of(const std::exception& failure) {
  const auto* error = dynamic_cast<const c10::Error*>(&failure);
  return error != nullptr ? error->what_without_backtrace() : failure.what();
}

/// Silences LibTorch's log below fatal as long as it lives. Process-wide; not thread-safe.
class QuietTorch {
 public:
  QuietTorch() : level_(FLAGS_caffe2_log_level) { FLAGS_caffe2_log_level = c10::GLOG_FATAL; }
  ~QuietTorch() { FLAGS_caffe2_log_level = level_; }
  QuietTorch(const QuietTorch&) = delete;
  QuietTorch& operator=(const QuietTorch&) = delete;

 private:
  int level_;
};

}  // namespace trireme::launch
