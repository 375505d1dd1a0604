// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/monitor/failure_report.h>

#include <trireme/base/error.h>
#include <trireme/base/format_ranks.h>
#include <trireme/base/text.h>
#include <trireme/launch/store/torch_log_silencer.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <thread>

namespace trireme::comm {
namespace {

std::string key_of(int rank) { return join_message("did/", rank); }

}  // namespace

FailureReport exchange_last_operations(c10d::Store* store, int rank, int size,
                                       std::span<const int> world_ranks, const std::string& own,
                                       std::chrono::milliseconds patience,
                                       const std::function<Finding(int rank)>& look) {
  const launch::TorchLogSilencer quiet;
  const auto give_up = std::chrono::steady_clock::now() + patience;
  FailureReport report;
  try {
    if (store != nullptr) store->set(key_of(rank), own);
    for (int other = 0; other < size; ++other) {
      std::string text = other == rank ? own : "";
      if (other == rank && report.teller < 0) report.teller = rank;
      while (text.empty()) {
        // A rank that fails publishes its answer before it ends.
        const Finding found = look(other);
        if (store != nullptr && store->check({key_of(other)})) {
          text = printable(store->get_to_str(key_of(other)));
          if (report.teller < 0) report.teller = other;
          break;
        }
        const bool is_known = found.fate <= RankStatus::kStopped || store == nullptr;
        if (is_known || std::chrono::steady_clock::now() >= give_up) {
          text = found.text.empty() ? "does not answer: it ended, is stopped or still computes"
                                    : found.text;
          if (found.fate != RankStatus::kArrived &&
              (report.culprit < 0 || found.fate < report.fate)) {
            report.culprit = other;
            report.fate = found.fate;
            report.what = format_ranks({&other, 1}, world_ranks) + " " + text;
          }
          break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      report.lines += join_message("\n  ", format_ranks({&other, 1}, world_ranks), ": ", text);
    }
  } catch (const std::exception&) {
    report.lines += "\n  (the store that could tell of the others is gone)";
  }
  return report;
}

}  // namespace trireme::comm
