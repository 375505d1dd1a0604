// SPDX-License-Identifier: Apache-2.0
#include <python/native/monitored_barrier.h>

#include <trireme/base/error.h>
#include <trireme/base/interruption.h>
#include <trireme/launch/store/torch_log_silencer.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace trireme::python {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kPassed = "passed";

// Waits for a key. Returns false if it is not there at the deadline.
bool await_key(const MonitoredBarrier& barrier, const std::string& key,
               Clock::time_point deadline) {
  const launch::TorchLogSilencer quiet;
  while (!barrier.store->check({key})) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    if (left <= milliseconds{0}) return false;
    if (const std::string reason = interruption_reason(); !reason.empty()) {
      throw CommError(
          join_message("rank ", barrier.rank, " was interrupted in a monitored barrier: ", reason),
          "start the run again");
    }
    try {
      barrier.store->wait({key}, std::clamp(left, milliseconds{1}, kInterruptionInterval));
    } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): not there yet, or check() fails
    }
  }
  return true;
}

[[noreturn]] void fail(const MonitoredBarrier& barrier, const std::string& message) {
  throw CommError(message, "the logs of these ranks say why they did not come",
                  {.rank = barrier.rank, .operation = "monitored barrier"});
}

// Returns the message of a rank that came but did not pass. It begins as Gloo's does, for scripts
// that look for that text.
std::string reached_message(const MonitoredBarrier& barrier, const std::string& reason) {
  return join_message("Rank ", barrier.rank,
                      " successfully reached monitoredBarrier, but received errors while waiting "
                      "for send/recv from rank 0: ",
                      reason);
}

// Returns the message of rank 0, which is Gloo's.
std::string missing_message(const MonitoredBarrier& barrier, const std::vector<int>& missing) {
  const std::string time = join_message(barrier.timeout.count(), " ms");
  if (barrier.timeout <= milliseconds{0}) {
    return join_message("Rank 0 timed out in monitoredBarrier after ", time);
  }
  std::string ranks = std::to_string(missing.front());
  for (std::size_t i = 1; i < missing.size(); ++i) ranks += ", " + std::to_string(missing[i]);
  return join_message(missing.size() == 1 ? "Rank " : "Ranks ", ranks,
                      " failed to pass monitoredBarrier in ", time);
}

}  // namespace

void monitored_barrier(const MonitoredBarrier& barrier) {
  const std::string prefix = join_message("trireme/monitored_barrier/", barrier.number, "/");
  const std::string verdict = prefix + "verdict";
  const auto deadline = Clock::now() + barrier.timeout;
  if (barrier.rank != 0) {
    barrier.store->set(prefix + std::to_string(barrier.rank), "here");
    // Rank 0 may come last, and then waits for the others as long.
    if (!await_key(barrier, verdict, deadline + barrier.timeout)) {
      fail(barrier, reached_message(barrier, join_message("it did not come within ",
                                                          2 * barrier.timeout.count(), " ms")));
    }
    const std::string text = barrier.store->get_to_str(verdict);
    if (text != kPassed) fail(barrier, reached_message(barrier, text));
    return;
  }
  std::vector<int> missing;
  for (int rank = 1; rank < barrier.size; ++rank) {
    if (await_key(barrier, prefix + std::to_string(rank), deadline)) continue;
    missing.push_back(rank);
    if (!barrier.waits_for_all) break;
  }
  if (missing.empty()) return barrier.store->set(verdict, kPassed);
  const std::string message = missing_message(barrier, missing);
  barrier.store->set(verdict, message);
  fail(barrier, message);
}

}  // namespace trireme::python
