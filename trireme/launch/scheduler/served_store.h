// SPDX-License-Identifier: Apache-2.0
// The store that a scheduler serves for its workers, seen from the scheduler's event loop.
#pragma once

#include <trireme/launch/run/run.h>

#include <functional>
#include <memory>
#include <string>

namespace trireme::launch {

/// A store that is served until destruction. Not thread-safe.
class ServedStore {
 public:
  ServedStore() = default;
  ServedStore(const ServedStore&) = delete;
  ServedStore& operator=(const ServedStore&) = delete;
  virtual ~ServedStore() = default;

  /// Returns a descriptor that becomes readable if the store may have failed, or -1.
  virtual int fd() const = 0;
  /// Returns why the store is not served any more, or an empty text.
  virtual std::string failure() = 0;
};

/// Starts to serve a store on a socket that already listens. Throws ConfigError on failure.
using StoreStarter = std::function<std::unique_ptr<ServedStore>(StoreAddress)>;

/// Returns a function that serves the store in a process of its own (store_process.h). The caller
/// must have only one thread when it calls the function.
StoreStarter serve_in_own_process(StoreOpener open);

/// Returns a function that serves the store in this process.
StoreStarter serve_in_this_process(StoreOpener open);

}  // namespace trireme::launch
