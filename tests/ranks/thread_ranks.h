// SPDX-License-Identifier: Apache-2.0
// Runs a function on several threads, each of them a rank with a real group (shared memory, Gloo
// over loopback, or the engine between threads).
#pragma once

#include <trireme/comm/engine.h>
#include <trireme/comm/engines/threads/threads.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace trireme::testing {

/// By what run_ranks connects: every engine for one host must do.
inline std::string engine_of_ranks = "shm";

/// An engine of a test, which run_ranks takes where engine_of_ranks is its name.
inline std::optional<comm::Engine> engine_of_test;

/// The engine of tensors on accelerators; null where they are copied through the host's memory.
inline const comm::Engine* device_engine_of_ranks = nullptr;

inline comm::Group connect_thread(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  std::chrono::milliseconds timeout) {
  comm::EngineContext context = {.store = store,
                                 .rank = rank,
                                 .size = size,
                                 .group_name = "threads",
                                 .world_ranks = {},
                                 .machines = {},
                                 .interface = "",
                                 .timeout = timeout,
                                 .device_engine = device_engine_of_ranks};
  if (engine_of_ranks == "threads") return comm::connect(comm::threads_engine(), context);
  if (engine_of_test && engine_of_ranks == engine_of_test->name) {
    return comm::connect(*engine_of_test, context);
  }
  return comm::connect(comm::choose_engine(engine_of_ranks, true), context);
}

/// Returns what each rank threw, by rank; null where it returned.
inline std::vector<std::exception_ptr> run_ranks_catching(
    int size, const std::function<void(comm::Group)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(connect_thread(store, rank, size, timeout));
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  threads.clear();  // joins
  return thrown;
}

/// Rethrows the first rank's exception.
inline void run_ranks(int size, const std::function<void(comm::Group)>& body) {
  for (const std::exception_ptr& exception : run_ranks_catching(size, body)) {
    if (exception) std::rethrow_exception(exception);
  }
}

/// The message of an exception of that type; anything else, or none, is returned as a text that no
/// test expects.
template <typename Expected>
std::string message_of(const std::exception_ptr& exception) {
  if (!exception) return "(nothing was thrown)";
  try {
    std::rethrow_exception(exception);
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("(another type of exception) ") + error.what();
  }
}

}  // namespace trireme::testing
