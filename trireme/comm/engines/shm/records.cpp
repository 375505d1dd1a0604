// SPDX-License-Identifier: Apache-2.0
// Reads the operations that ranks have recorded, and describes them in words.
#include <trireme/base/error.h>
#include <trireme/base/format_ranks.h>
#include <trireme/base/text.h>
#include <trireme/comm/engines/shm/member.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

namespace trireme::shm {

std::string_view name_of(Kind kind) {
  static constexpr std::string_view kNames[] = {
      "nothing", "all-reduce", "reduce",  "broadcast", "all-gather", "reduce-scatter",   "gather",
      "scatter", "all-to-all", "barrier", "send",      "receive",    "shared allocation"};
  const auto index = static_cast<std::size_t>(kind);  // other processes write it
  return index < std::size(kNames) ? kNames[index] : "unknown operation";
}

std::string describe(const Operation& operation) {
  TextWriter text;
  text << name_of(operation.kind);
  const bool reduces = operation.kind == Kind::kAllReduce || operation.kind == Kind::kReduce ||
                       operation.kind == Kind::kReduceScatter;
  if (reduces) text << " (" << name_of(operation.op) << ")";
  if (operation.kind == Kind::kSend) {
    text << " to rank " << int{operation.root};
  } else if (operation.kind == Kind::kReceive) {
    operation.root < 0 ? text << " from any rank" : text << " from rank " << int{operation.root};
  } else if (operation.root >= 0) {
    text << " with root " << int{operation.root};
  }
  if (operation.kind != Kind::kBarrier) {
    text << " of " << operation.count << " " << name_of(operation.type);
  }
  return text.str();
}

std::string describe(const RecordedOperation& recorded) {
  return join_message(describe(recorded.operation), ", number ", recorded.operation.sequence,
                      recorded.label.empty() ? "" : " ('", recorded.label,
                      recorded.label.empty() ? "" : "')");
}

std::vector<RecordedOperation> Member::recorded(int rank) const {
  std::vector<RecordedOperation> all;
  const RankBlock& other = block(rank);
  const std::uint64_t last = other.num_records.load(std::memory_order_acquire);
  const std::uint64_t num_kept = std::min<std::uint64_t>(last, RankBlock::kRecords);
  for (std::uint64_t back = num_kept; back > 0; --back) {
    const std::uint64_t number = last - back + 1;
    const Record& record = other.records[number % RankBlock::kRecords];
    constexpr auto kAcquire = std::memory_order_acquire;
    if (record.number.load(kAcquire) != number) continue;
    RecordedOperation copy;
    copy.number = number;
    std::array<std::uint64_t, 2> words = {};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = record.operation[i].load(kAcquire);
    copy.operation = std::bit_cast<Operation>(words);
    copy.started = std::chrono::nanoseconds(record.started_ns.load(kAcquire));
    copy.finished = std::chrono::nanoseconds(record.finished_ns.load(kAcquire));
    std::array<char, Record::kLabelWords * sizeof(std::uint64_t) + 1> label = {};
    for (std::size_t i = 0; i < Record::kLabelWords; ++i) {
      const std::uint64_t word = record.label[i].load(kAcquire);
      std::memcpy(label.data() + i * sizeof(word), &word, sizeof(word));
      if (word >> 56 == 0) break;
    }
    copy.label = label.data();
    if (record.number.load(kAcquire) == number) all.push_back(std::move(copy));
  }
  return all;
}

std::string Member::first_difference(int peer) const {
  const auto theirs = recorded(peer);
  for (const RecordedOperation& own : recorded(rank_)) {
    const auto is_point_to_point = [](const RecordedOperation& recorded) {
      const Kind kind = recorded.operation.kind;
      return kind == Kind::kSend || kind == Kind::kReceive;
    };
    if (is_point_to_point(own)) continue;
    for (const RecordedOperation& other : theirs) {
      if (is_point_to_point(other) || other.operation.sequence != own.operation.sequence) continue;
      if (other.operation == own.operation) continue;
      return join_message("rank ", rank_, " called ", describe(own), "; rank ", peer, " ",
                          describe(other));
    }
  }
  return join_message("ranks ", rank_, " and ", peer,
                      " gave other split sizes or factors to the same calls");
}

std::string Member::last_operations() const {
  TextWriter text;
  for (int rank = 0; rank < size(); ++rank) {
    const std::vector<RecordedOperation> records = recorded(rank);
    text << (rank == 0 ? "" : "\n") << "  " << format_ranks({&rank, 1}, options_.world_ranks)
         << ": ";
    if (records.empty()) {
      text << "nothing yet";
    } else {
      text << (records.back().finished.count() == 0 ? "is in " : "has done ")
           << describe(records.back());
    }
    const auto state = static_cast<RankState>(block(rank).state.load(std::memory_order_seq_cst));
    if (state == RankState::kLeaving || state == RankState::kLeft) text << ", and has left";
  }
  return text.str();
}

}  // namespace trireme::shm
