// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/monitor/failure_report.h>

#include <trireme/base/error.h>
#include <trireme/base/listed_ranks.h>
#include <trireme/launch/store/quiet_torch.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <thread>

namespace trireme::comm {
namespace {

std::string key_of(int rank) { return join_message("did/", rank); }

}  // namespace

std::string exchange_last_operations(c10d::Store& store, int rank, int size,
                                     std::span<const int> world_ranks, const std::string& own,
                                     std::chrono::milliseconds patience) {
  const launch::QuietTorch quiet;
  const auto give_up = std::chrono::steady_clock::now() + patience;
  std::string lines;
  try {
    store.set(key_of(rank), own);
    for (int other = 0; other < size; ++other) {
      std::string text = other == rank ? own : "";
      while (other != rank && text.empty()) {
        if (store.check({key_of(other)})) {
          text = store.get_to_str(key_of(other));
        } else if (std::chrono::steady_clock::now() >= give_up) {
          text = "does not answer: it ended, is stopped or still computes";
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      }
      lines += join_message("\n  ", listed_ranks({&other, 1}, world_ranks), ": ", text);
    }
  } catch (const std::exception&) {
    lines += "\n  (the store that could tell of the others is gone)";
  }
  return lines;
}

}  // namespace trireme::comm
