// SPDX-License-Identifier: Apache-2.0
// Keeps LibTorch's own log lines, stack traces included, off the screen while its failures become
// errors of Trireme.
#pragma once

#include <c10/util/Logging.h>
#include <pthread.h>

#include <mutex>
#include <utility>

C10_DECLARE_int(caffe2_log_level);

namespace trireme::launch {

/// Silences LibTorch's log below fatal as long as one of these lives. Process-wide; thread-safe. A
/// forked child begins with none.
class TorchLogSilencer {
 public:
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
    if (count > 0 && --count == 0) FLAGS_caffe2_log_level = level;
  }
  TorchLogSilencer(const TorchLogSilencer&) = delete;
  TorchLogSilencer& operator=(const TorchLogSilencer&) = delete;

 private:
  inline static std::mutex mutex;  // guards what follows
  inline static int count = 0;
  inline static int level = 0;
};

}  // namespace trireme::launch
