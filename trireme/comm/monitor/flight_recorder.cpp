// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/monitor/flight_recorder.h>

#include <trireme/base/error.h>

#include <algorithm>

namespace trireme::comm {

OperationRecord FlightRecorder::record_of(const Entry& entry) {
  return {.number = entry.number,
          .is_collective = entry.peer < 0,
          .what = entry.type.empty()
                      ? std::string(entry.name)
                      : join_message(entry.name, " of ", entry.count, " ", entry.type),
          .label = entry.label,
          .started = entry.started.time_since_epoch(),
          .finished = entry.finished.time_since_epoch()};
}

FlightRecorder::Entry* FlightRecorder::find(Serial serial) {
  Entry& entry = entries_[serial % kRecords];
  return entry.serial == serial ? &entry : nullptr;  // later operations may have taken its place
}

FlightRecorder::Serial FlightRecorder::begin(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  const Serial serial = ++last_serial_;
  if (operation.peer < 0) last_collective_ = std::max(last_collective_, operation.number);
  entries_[serial % kRecords] = {.serial = serial,
                                 .number = operation.number,
                                 .name = operation.name,
                                 .type = operation.type,
                                 .count = operation.count,
                                 .label = std::string(operation.label),
                                 .peer = operation.peer,
                                 .started = Clock::now()};
  return serial;
}

void FlightRecorder::wait(Serial serial) {
  const std::lock_guard lock(mutex_);
  if (Entry* entry = find(serial)) entry->waited_since = Clock::now();
}

void FlightRecorder::stop_waiting(Serial serial) {
  const std::lock_guard lock(mutex_);
  if (Entry* entry = find(serial)) entry->waited_since.reset();
}

void FlightRecorder::end(Serial serial) {
  const std::lock_guard lock(mutex_);
  Entry* entry = find(serial);
  if (entry == nullptr) return;
  entry->finished = Clock::now();
  entry->waited_since.reset();
}

std::vector<OperationRecord> FlightRecorder::records() const {
  const std::lock_guard lock(mutex_);
  std::vector<const Entry*> entries;
  for (const Entry& entry : entries_) {
    if (entry.serial != 0) entries.push_back(&entry);
  }
  std::ranges::sort(entries, {}, [](const Entry* entry) { return entry->serial; });
  std::vector<OperationRecord> all;
  for (const Entry* entry : entries) all.push_back(record_of(*entry));
  return all;
}

FlightRecorder::Place FlightRecorder::place() const {
  const std::lock_guard lock(mutex_);
  Place place{.last_collective = last_collective_, .last = "nothing yet"};
  const Entry& last = entries_[last_serial_ % kRecords];
  if (last_serial_ != 0) place.last = describe(record_of(last));
  for (const Entry& entry : entries_) {
    if (!entry.waited_since) continue;
    if (place.waiting && place.waiting->since <= *entry.waited_since) continue;
    place.waiting = Waiting{.operation = record_of(entry),
                            .peer = entry.peer,
                            .serial = entry.serial,
                            .since = *entry.waited_since};
  }
  return place;
}

}  // namespace trireme::comm
