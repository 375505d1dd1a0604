// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/monitor/watchdog.h>

#include <trireme/base/error.h>
#include <trireme/base/format_ranks.h>
#include <trireme/base/text.h>
#include <trireme/base/traced_processes.h>
#include <trireme/comm/monitor/blocked_signals.h>
#include <trireme/launch/process_tree.h>
#include <trireme/launch/store/rendezvous.h>
#include <trireme/launch/store/torch_log_silencer.h>

#include <c10/util/ScopeExit.h>
#include <time.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kNoticed{300};   // other ranks are asked about a wait of this length
constexpr milliseconds kIdleTick{300};  // pause while no operation takes long
constexpr milliseconds kFastTick{200};
constexpr milliseconds kSlowTick{500};
constexpr milliseconds kSilent{1200};
constexpr milliseconds kHangs{1500};  // a rank that used no processor time for so long is reported
constexpr seconds kLate{30};          // when a rank that computes is reported
constexpr seconds kEnding{2};         // how long the destructor waits for the thread
// Attempts to open a connection. The process may have no file descriptor left for a while.
constexpr int kAttempts = 10;
// In a large group, only this many ranks read the answers of all others while they wait, and report
// for all. Otherwise the store would be busy with reads.
constexpr int kLookers = 8;

double in_seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(std::chrono::round<milliseconds>(duration)).count();
}

milliseconds processor_time() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return std::chrono::duration_cast<milliseconds>(seconds(used.tv_sec) +
                                                  std::chrono::nanoseconds(used.tv_nsec));
}

enum class ProcessState { kUnknown, kRuns, kStopped, kEnded };

// Returns the text of a key. Empty if it has none, or if a process without the secret has set it.
std::string value_of(c10d::Store& store, const std::string& key) {
  try {
    return store.check({key}) ? store.get_to_str(key) : std::string();
  } catch (const Error&) {
    return {};
  }
}

// What a rank does in a group, as a number in its answer.
enum Doing { kCalculates = 0, kWaitsThere = 1, kHasLeft = 2 };

// A line of an answer: how far a rank is in the calls of a group.
struct Line {
  std::uint64_t last_collective = 0;
  int doing = kCalculates;
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
    words >> one.last_collective >> one.doing >> std::ws;
    std::getline(words, one.group, '\t');
    std::getline(words, one.operation);
  }
  return lines;
}

}  // namespace

struct Watchdog::State {
  using Clock = std::chrono::steady_clock;
  using Places = std::vector<std::pair<Group, FlightRecorder::Place>>;
  // What a rank has answered since this rank asks.
  struct Answer {
    std::string text;
    Clock::time_point changed{};  // or when it was first asked
    milliseconds first_at{};      // the time of the first answer on the other rank's clock,
    milliseconds first_used{};    // and the processor time used until then
    milliseconds last_at{};
    milliseconds last_used{};
  };
  struct Told {
    FlightRecorder::Serial who_is_gone = 0;  // the operation that this was reported for
    std::optional<Clock::time_point> who_is_late{};
  };

  // How far this rank was in the calls of a group that has ended. Other ranks may still wait there.
  struct Place {
    std::uint64_t last_collective = 0;
    std::string last;
  };

  State(c10::intrusive_ptr<c10d::Store> run_store, int own_rank, std::vector<Rank> all,
        int serving_rank, int number)
      : store(std::move(run_store)),
        rank(own_rank),
        ranks(std::move(all)),
        host(serving_rank),
        round(number) {}

  void run();
  // These functions take a store that may be null. Then no rank is asked.
  void tick(c10d::Store* connection, const Places& places);
  void tell(c10d::Store* connection, const Group& group, const FlightRecorder::Waiting& waiting);
  Finding look_at(c10d::Store* connection, int world_rank);
  Finding look_at(c10d::Store* connection, const Group& group, int peer, std::uint64_t number);
  void publish(c10d::Store& connection, const Places& places);
  // Reads the answers of all ranks of the group, or of one.
  void read_answers(c10d::Store& connection, const Group& group, std::optional<int> only = {});
  // Returns whether the store seems to answer.
  bool can_ask();
  ProcessState state_of(std::int64_t process);
  std::string place_of(int world_rank) const;
  std::string asked_key() const { return join_message("watch/", round, "/asked"); }
  std::string answer_key(int world_rank) const {
    return join_message("watch/", round, '/', world_rank);
  }

  const c10::intrusive_ptr<c10d::Store> store;
  const int rank;
  const std::vector<Rank> ranks;
  const int host;   // the rank that serves the store, or -1
  const int round;  // of meetings; groups of earlier rounds may have had the same names
  const std::int64_t process = ::getpid();

  std::mutex mutex;
  std::condition_variable wake;
  bool is_ending = false;  // guarded by mutex, like the following fields
  bool has_ended = false;
  std::set<const Group*> groups;
  std::map<std::string, Place> ended;  // groups, by name
  std::map<int, Answer> answers;       // by rank of the world
  TracedProcesses traced;
  Clock::duration patience{};  // how old an answer may be
  std::function<void(const std::string&)> report;
  // When the thread began to wait for the store; 0 while it does not wait.
  std::atomic<Clock::rep> asks_since = 0;
  // The following fields belong to the thread:
  std::pair<std::string, FlightRecorder::Serial> asks_about;
  Clock::duration waited{};
  Clock::time_point next_question{};
  std::uint64_t num_asked = 0;
  std::uint64_t num_published = 0;
  std::string last_asked;
  std::map<std::string, Told> told;  // by group
};

Watchdog::Watchdog(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<Rank> ranks,
                   int store_host, int round)
    : state_(std::make_shared<State>(std::move(store), rank, std::move(ranks), store_host, round)) {
}

Watchdog::~Watchdog() {
  if (is_fork()) {
    // A forked child does not have the thread, but its locks as the thread left them. Locking them
    // may block for ever, and a condition variable must not be destroyed while a thread waits for
    // it. So the state is leaked.
    if (thread_.joinable()) thread_.detach();
    static_cast<void>(new std::shared_ptr<State>(std::move(state_)));
    return;
  }
  if (!thread_.joinable()) return;
  std::unique_lock lock(state_->mutex);
  state_->is_ending = true;
  state_->wake.notify_all();
  const bool has_ended = state_->wake.wait_for(lock, kEnding, [&] { return state_->has_ended; });
  lock.unlock();
  if (has_ended) {
    thread_.join();
  } else {
    thread_.detach();  // it ends once the store's host answers, or at the deadline of the store
  }
}

bool Watchdog::is_fork() const { return ::getpid() != state_->process; }

void Watchdog::follow(const Group& group) {
  if (is_fork()) return;
  if (!group.engine_names_late_ranks) start();
  const std::lock_guard lock(state_->mutex);
  state_->groups.insert(&group);
}

void Watchdog::start() {
  if (is_fork()) return;
  const std::lock_guard lock(state_->mutex);
  if (thread_.joinable()) return;
  const BlockedSignals blocked;
  thread_ = std::thread([state = state_] { state->run(); });
}

void Watchdog::forget(const Group& group) {
  if (is_fork()) return;  // a forked child watches no group
  const std::lock_guard lock(state_->mutex);
  if (state_->groups.erase(&group) == 0) return;
  const FlightRecorder::Place place = group.place();
  constexpr std::size_t kMostEnded = 64;
  if (state_->ended.size() >= kMostEnded) state_->ended.erase(state_->ended.begin());
  state_->ended[group.name] = {place.last_collective, place.last};
}

void Watchdog::read_answers(const Group& group) {
  if (group.rank < kLookers || !can_ask()) return;
  try {
    const launch::TorchLogSilencer quiet;
    // Limits the time, because many ranks may read from the store at this moment.
    const auto give_up = State::Clock::now() + seconds(1);
    for (int peer = 0; peer < static_cast<int>(group.world_ranks.size()); ++peer) {
      if (State::Clock::now() >= give_up) return;
      state_->read_answers(*state_->store, group, peer);
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): then nothing is known
  }
}

void Watchdog::set_report(std::function<void(const std::string&)> report) {
  const std::lock_guard lock(state_->mutex);
  state_->report = std::move(report);
}

bool Watchdog::can_ask() const { return !is_fork() && state_->can_ask(); }

Finding Watchdog::look_at(int world_rank) const {
  if (is_fork()) return {};
  return state_->look_at(can_ask() ? state_->store.get() : nullptr, world_rank);
}

Finding Watchdog::look_at(const Group& group, int rank, std::uint64_t number) const {
  if (is_fork()) return {};
  return state_->look_at(can_ask() ? state_->store.get() : nullptr, group, rank, number);
}

void Watchdog::State::run() {
  const auto ask = [this](const auto& question) {
    asks_since = Clock::now().time_since_epoch().count();
    const auto done = c10::make_scope_exit([this] { asks_since = 0; });
    const launch::TorchLogSilencer quiet;
    question();
  };
  // A connection of its own, because the rank may be blocked on the other one.
  c10::intrusive_ptr<c10d::Store> connection;
  int attempts_left = kAttempts;
  std::unique_lock lock(mutex);
  while (!is_ending) {
    Places places;
    for (const Group* group : groups) places.emplace_back(*group, group->place());
    lock.unlock();
    try {
      ask([&] {
        if (!connection && attempts_left > 0) {
          --attempts_left;
          connection = store->clone();
        }
        tick(connection.get(), places);
      });
    } catch (const std::exception&) {
      // The process that serves the store has ended, so there is nobody left to ask.
      if (connection) attempts_left = 0;
      connection.reset();
    }
    lock.lock();
    const milliseconds pause = waited < kNoticed     ? kIdleTick
                               : waited < seconds(5) ? kFastTick
                                                     : kSlowTick;
    wake.wait_for(lock, pause, [this] { return is_ending; });
  }
  lock.unlock();
  try {
    if (connection) ask([&] { publish(*connection, {}); });
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): then nobody is told
  }
  lock.lock();
  has_ended = true;
  wake.notify_all();
}

void Watchdog::State::tick(c10d::Store* connection, const Places& places) {
  const auto now = Clock::now();
  waited = {};
  std::pair<std::string, FlightRecorder::Serial> about;
  for (const auto& [group, place] : places) {
    if (group.engine_names_late_ranks || !place.waiting) continue;
    if (now - place.waiting->since <= waited) continue;
    waited = now - place.waiting->since;
    about = {group.name, place.waiting->serial};
  }
  if (!can_ask()) connection = nullptr;
  const bool is_new = asks_about != about;
  const bool asks = connection != nullptr && waited >= kNoticed && (is_new || now >= next_question);
  if (asks) {
    connection->set(asked_key(), join_message(rank, '.', ++num_asked));
    // A rank that has waited for long asks less often, because many ranks may do the same.
    next_question = now + (waited < seconds(5)                ? milliseconds(0)
                           : waited < std::chrono::minutes(1) ? seconds(1)
                                                              : seconds(5));
  }
  if (waited >= kNoticed) {
    const std::lock_guard lock(mutex);
    patience = kSilent + waited / 4;  // answers come less often the longer a rank waits
    asks_about = about;
    if (is_new || connection == nullptr) answers.clear();  // no rank is blamed for old answers
  }
  if (connection != nullptr) {
    const std::string asked = value_of(*connection, asked_key());
    if (std::exchange(last_asked, asked) != asked) publish(*connection, places);
  }
  for (const auto& [group, place] : places) {
    if (group.engine_names_late_ranks || !place.waiting) continue;
    if (now - place.waiting->since < kNoticed) continue;
    const bool is_collective = place.waiting->peer < 0;
    if (is_collective && group.rank >= kLookers) continue;
    if (connection != nullptr && !asks) continue;
    if (asks) {
      read_answers(*connection, group,
                   is_collective ? std::nullopt : std::optional(place.waiting->peer));
    }
    tell(connection, group, *place.waiting);
  }
}

void Watchdog::State::publish(c10d::Store& connection, const Places& places) {
  const auto now = std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch());
  std::string text =
      join_message(++num_published, ' ', now.count(), ' ', processor_time().count(), '\n');
  for (const auto& [group, place] : places) {
    text += join_message(place.last_collective, ' ', place.waiting ? kWaitsThere : kCalculates, ' ',
                         group.name, '\t',
                         place.waiting ? describe(place.waiting->operation) : place.last, '\n');
  }
  {
    const std::lock_guard lock(mutex);
    for (const auto& [name, place] : ended) {
      text += join_message(place.last_collective, ' ', static_cast<int>(kHasLeft), ' ', name, '\t',
                           place.last, '\n');
    }
  }
  connection.set(answer_key(rank), text);
}

void Watchdog::State::read_answers(c10d::Store& connection, const Group& group,
                                   std::optional<int> only) {
  for (int peer = 0; peer < static_cast<int>(group.world_ranks.size()); ++peer) {
    const int other = group.world_ranks[static_cast<std::size_t>(peer)];
    if (other == rank || (only && peer != *only)) continue;
    if (asks_since != 0) asks_since = Clock::now().time_since_epoch().count();
    std::string text = value_of(connection, answer_key(other));
    const std::lock_guard lock(mutex);
    const auto [place, is_first] = answers.try_emplace(other);
    Answer& answer = place->second;
    if (is_first) {  // it may be from before the question
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

std::string Watchdog::State::place_of(int world_rank) const {
  const Rank& place = ranks[static_cast<std::size_t>(world_rank)];
  return join_message(" (process ", place.process, " on host ", place.host, ")");
}

bool Watchdog::State::can_ask() {
  // The thread has waited long for an answer of the store.
  const Clock::rep since = asks_since;
  if (since != 0 && Clock::now().time_since_epoch() - Clock::duration(since) > kSilent) {
    return false;
  }
  if (host < 0 || !ranks[static_cast<std::size_t>(host)].is_near) return true;
  const ProcessState server = state_of(ranks[static_cast<std::size_t>(host)].process);
  return server != ProcessState::kStopped && server != ProcessState::kEnded;
}

ProcessState Watchdog::State::state_of(std::int64_t number) {
  std::optional<launch::Process> seen;
  try {
    seen = launch::read_process(std::to_string(number));
  } catch (const Error&) {
    return ProcessState::kUnknown;  // no file descriptor is left to read /proc with
  }
  if (!seen || seen->state == 'Z' || seen->state == 'X') return ProcessState::kEnded;
  const std::lock_guard lock(mutex);
  if (seen->state == 't') {
    return traced.is_held(number, seen->processor_ticks) ? ProcessState::kStopped
                                                         : ProcessState::kRuns;
  }
  traced.forget(number);
  return seen->state == 'T' ? ProcessState::kStopped : ProcessState::kRuns;
}

Finding Watchdog::State::look_at(c10d::Store* connection, int world_rank) {
  try {
    const launch::TorchLogSilencer quiet;
    const std::string key = launch::exit_key(world_rank);
    if (connection != nullptr && connection->check({key})) {
      return {RankStatus::kEnded, printable(connection->get_to_str(key)) + place_of(world_rank)};
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): its host has ended
  }
  const Rank& target = ranks[static_cast<std::size_t>(world_rank)];
  if (!target.is_near) return {};
  switch (state_of(target.process)) {
    case ProcessState::kEnded:
      return {RankStatus::kEnded, "has ended" + place_of(world_rank)};
    case ProcessState::kStopped:
      return {RankStatus::kStopped, "is stopped by a signal or a debugger" + place_of(world_rank)};
    case ProcessState::kRuns:
    case ProcessState::kUnknown:
      return {};
  }
  return {};
}

Finding Watchdog::State::look_at(c10d::Store* connection, const Group& group, int peer,
                                 std::uint64_t number) {
  if (peer == group.rank) return {.fate = RankStatus::kArrived, .text = {}};
  const int world_rank = group.world_ranks[static_cast<std::size_t>(peer)];
  const Finding plain = look_at(connection, world_rank);
  const bool is_gone = plain.fate == RankStatus::kEnded;
  if (plain.fate != RankStatus::kUnknown && !is_gone) return plain;
  const std::lock_guard lock(mutex);
  const auto found = answers.find(world_rank);
  if (found == answers.end()) return plain;
  const Answer& answer = found->second;
  std::string last = "nothing yet";
  std::string waits_in;
  for (const Line& line : lines_of(answer.text)) {
    if (line.group == group.name) {
      // A rank that has ended without leaving the group may have broken a connection that others
      // still need. Its answer does not count as an arrival.
      const bool counts = !is_gone || line.doing == kHasLeft;
      if (counts && number != 0 && line.last_collective >= number)
        return {RankStatus::kArrived, ""};
      last = line.operation;
    }
    if (line.doing == kWaitsThere) {
      waits_in = join_message(line.operation, " of group '", line.group, "'");
    }
  }
  if (is_gone) return plain;
  const auto silent = Clock::now() - answer.changed;
  // A rank that does not read answers while it waits has read each answer only once for a
  // collective. One answer is not enough to judge by.
  if (number != 0 && group.rank >= kLookers && answer.first_at == milliseconds(0)) return {};
  if (silent > patience) {
    return {RankStatus::kSilent, join_message("does not answer", place_of(world_rank),
                                              ": it is stopped, or its host cannot be reached")};
  }
  if (answer.first_at == milliseconds(0)) return {};
  if (!waits_in.empty()) return {RankStatus::kWaits, "waits itself in " + waits_in};
  const milliseconds span = answer.last_at - answer.first_at;
  const milliseconds used = answer.last_used - answer.first_used;
  const std::string figures =
      join_message(" (it used ", in_seconds(used), " s of processor time in ", in_seconds(span),
                   " s; its last operation there: ", last, ")");
  if (span >= kNoticed && used < span / 20) {
    return {RankStatus::kIdle, "hangs, or waits for something else" + figures};
  }
  return {RankStatus::kComputes, "still computes" + figures};
}

void Watchdog::State::tell(c10d::Store* connection, const Group& group,
                           const FlightRecorder::Waiting& waiting) {
  const auto duration = Clock::now() - waiting.since;
  const bool is_collective = waiting.peer < 0;
  std::string gone;
  std::string late;
  for (int peer = 0; peer < static_cast<int>(group.world_ranks.size()); ++peer) {
    if (!is_collective && peer != waiting.peer) continue;
    const Finding found =
        look_at(connection, group, peer, is_collective ? waiting.operation.number : 0);
    if (found.fate == RankStatus::kArrived || found.fate == RankStatus::kUnknown) continue;
    const bool is_gone = found.fate <= RankStatus::kSilent;
    if (!is_gone && duration < kLate && (found.fate != RankStatus::kIdle || duration < kHangs))
      continue;
    std::string& list = is_gone ? gone : late;
    list += join_message(list.empty() ? "" : "; ", format_ranks({&peer, 1}, group.world_ranks), " ",
                         found.text);
  }
  Told& last = told[group.name];
  const auto now = Clock::now();
  const bool tells_gone = !gone.empty() && last.who_is_gone != waiting.serial;
  const bool tells_late = !late.empty() && (!last.who_is_late || now - *last.who_is_late >= kLate);
  if (!tells_gone && !tells_late) return;
  if (tells_gone) last.who_is_gone = waiting.serial;
  if (tells_late) last.who_is_late = now;
  const std::string line = join_message(
      "group '", group.name, "': rank ", group.rank, " has waited ", in_seconds(duration), " s in ",
      describe(waiting.operation), ": ", gone, gone.empty() || late.empty() ? "" : "; ", late);
  const std::lock_guard lock(mutex);
  if (is_ending) return;  // the owner may be destroyed
  if (report) {
    report(line);
  } else {
    std::cerr << "trireme: " + line + "\n" << std::flush;
  }
}

}  // namespace trireme::comm
