// SPDX-License-Identifier: Apache-2.0
// Suppresses LibTorch's own log lines, including stack traces, while its failures are turned into
// errors of Trireme.
#pragma once

#include <c10/util/Logging.h>
#include <pthread.h>

#include <mutex>
#include <utility>

C10_DECLARE_int(caffe2_log_level);

namespace trireme::launch {

/// Suppresses LibTorch's log below the level "fatal" while at least one object exists. Applies to
/// the whole process. Thread-safe. A forked child starts without suppression.
class TorchLogSilencer {
  // The fork handlers keep the mutex consistent in a child and restore the level there.
 public:
  /// Suppresses the log until this object is destroyed.
  TorchLogSilencer() {
    [[maybe_unused]] static const int is_registered =
        ::pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); },
                         [] {
                           if (std::exchange(count, 0) > 0) FLAGS_caffe2_log_level = level;
                           mutex.unlock();
                         });
    const std::lock_guard lock(mutex);
    if (count++ > 0) return;
    level = FLAGS_caffe2_log_level;
    FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  }
  ~TorchLogSilencer() {
    const std::lock_guard lock(mutex);
    if (count == 0) return;
    --count;
    if (count == 0) FLAGS_caffe2_log_level = level;
  }
  TorchLogSilencer(const TorchLogSilencer&) = delete;
  TorchLogSilencer& operator=(const TorchLogSilencer&) = delete;

 private:
  inline static std::mutex mutex;  // guards the members below
  inline static int count = 0;
  inline static int level = 0;
};

}  // namespace trireme::launch
