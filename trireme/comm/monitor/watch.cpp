// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/monitor/watch.h>

#include <trireme/base/error.h>
#include <trireme/base/listed_ranks.h>
#include <trireme/base/text.h>
#include <trireme/launch/store/quiet_torch.h>
#include <trireme/launch/store/rendezvous.h>

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iostream>
#include <iterator>

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kNoticed{300};   // a wait that others are asked about
constexpr milliseconds kIdleTick{300};  // between looks while nothing takes long
constexpr milliseconds kFastTick{200};
constexpr milliseconds kSilent{1200};
constexpr milliseconds kHangs{1500};  // without processor time
constexpr seconds kLate{30};          // when a rank that computes is named
// All ranks of a large group read nothing but the answers of all: these tell for the others.
constexpr int kLookers = 8;

constexpr const char* kAsked = "watch/asked";
std::string answer_key(int world_rank) { return join_message("watch/", world_rank); }

double in_seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(std::chrono::round<milliseconds>(duration)).count();
}

milliseconds processor_time() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return std::chrono::duration_cast<milliseconds>(seconds(used.tv_sec) +
                                                  std::chrono::nanoseconds(used.tv_nsec));
}

// The letter that /proc has for it; 0 where there is no such process, and `?` where this one cannot
// look, having no descriptor left for instance: that must not pass for a process that has ended.
char state_of(std::int64_t process) {
  errno = 0;
  std::ifstream file(join_message("/proc/", process, "/stat"));
  if (!file && errno != ENOENT && errno != ESRCH) return '?';
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= text.size() ? '\0' : text[name_end + 2];
}

// A line of an answer: where a rank is in a group's calls.
struct Line {
  std::uint64_t last_collective = 0;
  bool is_waiting = false;
  std::string group;
  std::string operation;
};

std::vector<Line> lines_of(const std::string& answer) {
  TextReader text(answer);
  std::string line;
  std::getline(text, line);  // processor time
  std::vector<Line> lines;
  while (std::getline(text, line)) {
    TextReader words(line);
    Line& one = lines.emplace_back();
    words >> one.last_collective >> one.is_waiting >> std::ws;
    std::getline(words, one.group, '\t');
    std::getline(words, one.operation);
  }
  return lines;
}

}  // namespace

Watch::Watch(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<Rank> ranks,
             int store_host)
    : store_(std::move(store)),
      rank_(rank),
      ranks_(std::move(ranks)),
      store_host_(store_host),
      process_(::getpid()) {}

Watch::~Watch() {
  if (is_fork()) {
    // It has no such thread, but its locks as that thread left them: locking may never succeed, and
    // a condition variable is only destroyed once nobody waits for it.
    if (thread_.joinable()) thread_.detach();
    static_cast<void>(wake_.release());
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  wake_->notify_one();
  if (thread_.joinable()) thread_.join();
}

bool Watch::is_fork() const { return ::getpid() != process_; }

void Watch::follow(const Group& group) {
  start();
  const std::lock_guard lock(mutex_);
  groups_.insert(&group);
}

void Watch::start() {
  const std::lock_guard lock(mutex_);
  if (thread_.joinable()) return;
  // The program's signal handlers run on the program's threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Watch::forget(const Group& group) {
  if (is_fork()) return;  // nobody follows it there
  const std::lock_guard lock(mutex_);
  groups_.erase(&group);
}

void Watch::set_report(std::function<void(const std::string&)> report) {
  const std::lock_guard lock(mutex_);
  report_ = std::move(report);
}

void Watch::run() {
  // A connection of its own: the rank may be waiting on the other one.
  c10::intrusive_ptr<c10d::Store> store;
  std::unique_lock lock(mutex_);
  while (!is_ending_) {
    Places places;
    for (const Group* group : groups_) places.emplace_back(*group, group->recorder->place());
    lock.unlock();
    bool is_lost = false;
    try {
      const launch::QuietTorch quiet;
      if (!store) store = store_->clone();
      tick(*store, places);
    } catch (const std::exception&) {
      is_lost = true;  // whoever hosts the store has ended: there is nobody to ask
    }
    lock.lock();
    if (is_lost) return;
    const milliseconds pause = waited_ < kNoticed                  ? kIdleTick
                               : waited_ < seconds(5)              ? kFastTick
                               : waited_ < std::chrono::minutes(1) ? milliseconds(seconds(1))
                                                                   : milliseconds(seconds(5));
    wake_->wait_for(lock, pause, [this] { return is_ending_; });
  }
}

void Watch::tick(c10d::Store& store, const Places& places) {
  const auto now = Clock::now();
  waited_ = {};
  std::pair<std::string, Recorder::Serial> about;
  for (const auto& [group, place] : places) {
    if (!place.waiting || now - place.waiting->since <= waited_) continue;
    waited_ = now - place.waiting->since;
    about = {group.name, place.waiting->serial};
  }
  const bool can_use = can_ask();
  const bool asks = waited_ >= kNoticed && can_use;
  if (asks) store.set(kAsked, join_message(rank_, '.', ++num_asked_));
  if (asks) {
    const std::lock_guard lock(mutex_);
    patience_ = kSilent + waited_ / 4;  // the others are asked less often by and by
    if (std::exchange(asks_about_, about) != about) answers_.clear();
  }
  if (can_use) {
    const std::string asked = store.check({kAsked}) ? store.get_to_str(kAsked) : std::string();
    if (std::exchange(last_asked_, asked) != asked) publish(store, places);
  }
  for (const auto& [group, place] : places) {
    if (!place.waiting || now - place.waiting->since < kNoticed || group.rank >= kLookers) continue;
    if (asks) read_answers(store, group);
    tell(asks ? &store : nullptr, group, *place.waiting);
  }
}

void Watch::publish(c10d::Store& store, const Places& places) {
  const auto now = std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch());
  std::string text =
      join_message(++num_published_, ' ', now.count(), ' ', processor_time().count(), '\n');
  for (const auto& [group, place] : places) {
    text +=
        join_message(place.last_collective, ' ', place.waiting.has_value(), ' ', group.name, '\t',
                     place.waiting ? describe(place.waiting->operation) : place.last, '\n');
  }
  store.set(answer_key(rank_), text);
}

void Watch::read_answers(c10d::Store& store, const Group& group) {
  for (const int other : group.world_ranks) {
    if (other == rank_) continue;
    const std::string key = answer_key(other);
    std::string text = store.check({key}) ? store.get_to_str(key) : std::string();
    const std::lock_guard lock(mutex_);
    const auto [place, is_first] = answers_.try_emplace(other);
    Answer& answer = place->second;
    if (is_first) {  // an old one, if any
      answer.changed = Clock::now();
      answer.text = std::move(text);
      continue;
    }
    if (text == answer.text) continue;
    TextReader words(text);
    std::uint64_t number = 0;
    std::int64_t at = 0;
    std::int64_t used = 0;
    words >> number >> at >> used;
    answer.last_at = milliseconds(at);
    answer.last_used = milliseconds(used);
    if (answer.first_at == milliseconds(0)) {
      answer.first_at = answer.last_at;
      answer.first_used = answer.last_used;
    }
    answer.changed = Clock::now();
    answer.text = std::move(text);
  }
}

std::string Watch::place_of(int world_rank) const {
  const Rank& rank = ranks_[static_cast<std::size_t>(world_rank)];
  return join_message(" (process ", rank.process, " on host ", rank.host, ")");
}

bool Watch::can_ask() const {
  if (store_host_ < 0 || !ranks_[static_cast<std::size_t>(store_host_)].is_near) return true;
  const char state = state_of(ranks_[static_cast<std::size_t>(store_host_)].process);
  return state != 'T' && state != 't' && state != '\0';
}

Finding Watch::look_at(int world_rank) const {
  return look_from(can_ask() ? store_.get() : nullptr, world_rank);
}

Finding Watch::look_at(const Group& group, int rank, std::uint64_t number) const {
  return look_from(can_ask() ? store_.get() : nullptr, group, rank, number);
}

Finding Watch::look_from(c10d::Store* store, int world_rank) const {
  try {
    const launch::QuietTorch quiet;
    const std::string key = launch::exit_key(world_rank);
    if (store != nullptr && store->check({key})) {
      return {Fate::kEnded, store->get_to_str(key) + place_of(world_rank)};
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): its host has ended
  }
  const Rank& rank = ranks_[static_cast<std::size_t>(world_rank)];
  if (!rank.is_near) return {};
  switch (state_of(rank.process)) {
    case '\0':
    case 'Z':
    case 'X':
      return {Fate::kEnded, "has ended" + place_of(world_rank)};
    case 'T':
    case 't':
      return {Fate::kStopped, "is stopped by a signal or a debugger" + place_of(world_rank)};
    default:
      return {};
  }
}

Finding Watch::look_from(c10d::Store* store, const Group& group, int rank,
                         std::uint64_t number) const {
  if (rank == group.rank) return {.fate = Fate::kArrived, .text = {}};
  const int world_rank = group.world_ranks[static_cast<std::size_t>(rank)];
  if (Finding plain = look_from(store, world_rank); plain.fate != Fate::kUnknown) return plain;
  const std::lock_guard lock(mutex_);
  const auto found = answers_.find(world_rank);
  if (found == answers_.end()) return {};
  const Answer& answer = found->second;
  const auto silent = Clock::now() - answer.changed;
  if (silent > patience_) {
    return {Fate::kSilent, join_message("does not answer", place_of(world_rank),
                                        ": it is stopped, or its host cannot be reached")};
  }
  if (answer.first_at == milliseconds(0)) return {};
  std::string last = "nothing yet";
  std::string waits_in;
  for (const Line& line : lines_of(answer.text)) {
    if (line.group == group.name) {
      if (number != 0 && line.last_collective >= number) return {Fate::kArrived, ""};
      last = line.operation;
    }
    if (line.is_waiting) waits_in = join_message(line.operation, " of group '", line.group, "'");
  }
  if (!waits_in.empty()) return {Fate::kWaits, "waits itself in " + waits_in};
  const milliseconds span = answer.last_at - answer.first_at;
  const milliseconds used = answer.last_used - answer.first_used;
  const std::string figures =
      join_message(" (it used ", in_seconds(used), " s of processor time in ", in_seconds(span),
                   " s; its last operation there: ", last, ")");
  if (span >= kNoticed && used < span / 20) {
    return {Fate::kIdle, "hangs, or waits for something else" + figures};
  }
  return {Fate::kComputes, "still computes" + figures};
}

void Watch::tell(c10d::Store* store, const Group& group, const Recorder::Waiting& waiting) {
  const auto waited = Clock::now() - waiting.since;
  const bool is_collective = waiting.peer < 0;
  std::string gone;
  std::string late;
  for (int rank = 0; rank < static_cast<int>(group.world_ranks.size()); ++rank) {
    if (!is_collective && rank != waiting.peer) continue;
    const Finding found =
        look_from(store, group, rank, is_collective ? waiting.operation.number : 0);
    if (found.fate == Fate::kArrived || found.fate == Fate::kUnknown) continue;
    const bool is_gone = found.fate <= Fate::kSilent;
    if (!is_gone && waited < kLate && (found.fate != Fate::kIdle || waited < kHangs)) continue;
    std::string& list = is_gone ? gone : late;
    list += join_message(list.empty() ? "" : "; ", listed_ranks({&rank, 1}, group.world_ranks), " ",
                         found.text);
  }
  Told& told = told_[group.name];
  const auto now = Clock::now();
  const bool tells_gone = !gone.empty() && told.who_is_gone != waiting.serial;
  const bool tells_late = !late.empty() && (!told.who_is_late || now - *told.who_is_late >= kLate);
  if (!tells_gone && !tells_late) return;
  if (tells_gone) told.who_is_gone = waiting.serial;
  if (tells_late) told.who_is_late = now;
  const std::string line = join_message(
      "group '", group.name, "': rank ", group.rank, " has waited ", in_seconds(waited), " s in ",
      describe(waiting.operation), ": ", gone, gone.empty() || late.empty() ? "" : "; ", late);
  const std::lock_guard lock(mutex_);
  if (report_) {
    report_(line);
  } else {
    std::cerr << "trireme: " + line + "\n" << std::flush;
  }
}

}  // namespace trireme::comm
