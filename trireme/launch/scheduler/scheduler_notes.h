// SPDX-License-Identifier: Apache-2.0
// What a scheduler writes to standard error. A thread writes, so that a reader that has stopped
// does not stop the scheduler, and what strangers cause is limited in length and number.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::launch {

/// The notes of a scheduler. Not thread-safe.
class SchedulerNotes {
 public:
  /// The largest number of lines about connections that were dropped or refused for one cause.
  static constexpr std::int64_t kMostOfCause = 100;
  /// The largest number of notes that wait to be written. Later ones are counted instead.
  static constexpr std::size_t kMostWaiting = 1000;

  /// Starts the thread.
  /// @param fd the descriptor to write to. It must stay open until the process ends.
  explicit SchedulerNotes(int fd = 2);
  SchedulerNotes(const SchedulerNotes&) = delete;
  SchedulerNotes& operator=(const SchedulerNotes&) = delete;
  /// Waits until all notes are written, for two seconds at most.
  ~SchedulerNotes();

  /// Writes a note: `trireme: `, the text and a line break. Control characters become question
  /// marks. Never blocks.
  void add(std::string_view text);
  /// Counts a connection that was dropped or refused, and writes a note unless there were too many
  /// for this cause.
  /// @param cause why, in a few words.
  /// @param text the note. Only about 200 bytes of it are written.
  /// @return true if the note was written.
  bool add_limited(const std::string& cause, std::string_view text);
  /// Returns one line for each cause: `  3 connections: no secret`. Empty if there were none.
  std::string describe_counts() const;

 private:
  struct Queue;

  std::shared_ptr<Queue> queue_;
  std::map<std::string, std::int64_t> counts_;
};

}  // namespace trireme::launch
