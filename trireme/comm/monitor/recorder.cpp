// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/monitor/recorder.h>

#include <trireme/base/error.h>

#include <algorithm>

namespace trireme::comm {
namespace {

std::chrono::nanoseconds now() { return std::chrono::steady_clock::now().time_since_epoch(); }

bool is_point_to_point(std::string_view operation) {
  return operation == "send" || operation == "receive";
}

}  // namespace

void Recorder::begin(std::uint64_t number, const char* operation, std::string_view type,
                     std::int64_t count, std::string_view label) {
  const std::lock_guard lock(mutex_);
  entries_[number % kRecords] = {.number = number,
                                 .operation = operation,
                                 .type = type,
                                 .count = count,
                                 .label = std::string(label),
                                 .started = now(),
                                 .finished = {}};
}

void Recorder::end(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[number % kRecords];
  if (entry.number == number) entry.finished = now();
}

std::vector<OperationRecord> Recorder::records() const {
  std::vector<OperationRecord> all;
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.number == 0) continue;
    all.push_back({.number = entry.number,
                   .is_collective = !is_point_to_point(entry.operation),
                   .what = entry.type.empty() ? std::string(entry.operation)
                                              : join_message(entry.operation, " of ", entry.count,
                                                             " ", entry.type),
                   .label = entry.label,
                   .started = entry.started,
                   .finished = entry.finished});
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  return all;
}

}  // namespace trireme::comm
