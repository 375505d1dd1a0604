// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/scheduler_notes.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/run/exit_report.h>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace trireme::launch {

// Shared with the thread, which may outlive the notes: nothing ends a thread that writes to a
// terminal that was stopped.
struct SchedulerNotes::Queue {
  explicit Queue(int to) : fd(to) {}

  const int fd;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> waiting;
  std::int64_t dropped = 0;
  bool is_writing = false;
  bool is_over = false;

  void write_all();
};

namespace {

std::string lines_of(std::string_view message) {
  std::string text = "trireme: ";
  for (std::size_t begin = 0; begin <= message.size();) {
    const std::size_t end = std::min(message.find('\n', begin), message.size());
    text += printable(message.substr(begin, end - begin)) + '\n';
    begin = end + 1;
  }
  return text;
}

void write_text(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;
    if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
  }
}

std::string shortened(std::string_view text) {
  constexpr std::size_t kLongest = 200;
  if (text.size() <= kLongest) return std::string(text);
  return std::string(text.substr(0, kLongest)) + "...";
}

}  // namespace

void SchedulerNotes::Queue::write_all() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return is_over || !waiting.empty(); });
    if (waiting.empty()) return;
    std::string text = std::move(waiting.front());
    waiting.pop_front();
    if (waiting.empty() && dropped > 0) {
      text += lines_of(join_message(std::exchange(dropped, 0),
                                    " notes were left out, because nobody read the output"));
    }
    is_writing = true;
    lock.unlock();
    write_text(fd, text);
    lock.lock();
    is_writing = false;
    changed.notify_all();
  }
}

SchedulerNotes::SchedulerNotes(int fd) : queue_(std::make_shared<Queue>(fd)) {
  // Signals are for the scheduler's own thread.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([queue = queue_] { queue->write_all(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SchedulerNotes::~SchedulerNotes() {
  constexpr std::chrono::seconds kPatience{2};
  std::unique_lock lock(queue_->mutex);
  queue_->is_over = true;
  queue_->changed.notify_all();
  queue_->changed.wait_for(lock, kPatience,
                           [&] { return queue_->waiting.empty() && !queue_->is_writing; });
}

void SchedulerNotes::add(std::string_view text) {
  const std::lock_guard lock(queue_->mutex);
  if (queue_->waiting.size() >= kMostWaiting) {
    ++queue_->dropped;
    return;
  }
  queue_->waiting.push_back(lines_of(text));
  queue_->changed.notify_all();
}

bool SchedulerNotes::add_limited(const std::string& cause, std::string_view text) {
  const std::int64_t count = ++counts_[cause];
  if (count > kMostOfCause) return false;
  add(shortened(text));
  if (count == kMostOfCause) add(join_message("says no more about this cause: ", cause));
  return true;
}

std::string SchedulerNotes::describe_counts() const {
  std::string text;
  for (const auto& [cause, count] : counts_) {
    text +=
        join_message(text.empty() ? "  " : "\n  ",
                     describe_count(static_cast<std::size_t>(count), "connection"), ": ", cause);
  }
  return text;
}

}  // namespace trireme::launch
