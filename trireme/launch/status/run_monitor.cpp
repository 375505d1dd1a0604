// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/run_monitor.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/secret.h>
#include <trireme/launch/status/status_address.h>

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <exception>
#include <utility>

namespace trireme::launch {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

constexpr AddressNames kNames{.address = "--status",
                              .port = "--status",
                              .not_of_this_host = "give an address of this host, or only a port",
                              .port_in_use = ", or 0 for a free one"};

ListeningSocket listen_for_status(const HostAndPort& place, int preferred,
                                  std::chrono::milliseconds patience) {
  if (place.port > 0) return listen_within(patience, place.host, place.port, kNames);
  if (preferred > 0) {
    try {
      return listen_within(patience, place.host, preferred, kNames);
    } catch (const ConfigError&) {  // NOLINT(bugprone-empty-catch): somebody else has it now
    }
  }
  return listen_at(place.host, std::nullopt, kNames);
}

bool listens_everywhere(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

}  // namespace

RunMonitor::RunMonitor(const MonitorOptions& options, Setting setting)
    : options_(options), setting_(std::move(setting)) {
  tracker_.facts.began = seconds_now();
  if (!options.wants_anything()) return;
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  itimerspec every_second{};
  every_second.it_interval.tv_sec = 1;
  every_second.it_value.tv_sec = 1;
  const auto watch = [&](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  if (!epoll_ || !timer_ || ::timerfd_settime(timer_.get(), 0, &every_second, nullptr) != 0 ||
      !watch(timer_.get())) {
    throw ConfigError(
        join_message("cannot open descriptors for the status: ", describe_errno(errno)),
        "check ulimit -n");
  }
  if (options.journal) journal_.emplace(*options.journal);
  if (options.status) serve(*options.status);
  if (server_ && !watch(server_->fd())) {
    throw ConfigError(join_message("cannot poll the status: ", describe_errno(errno)),
                      "check ulimit -n");
  }
  next_progress_ = Clock::now() + options.journal_interval;
}

RunMonitor::~RunMonitor() {
  if (status_file_.empty()) return;
  try {
    // Another run in the same folder may have written its own address since.
    if (url_of(read_status_address(status_file_)) != status_url_) return;
    std::error_code ignored;
    std::filesystem::remove(status_file_, ignored);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): somebody has removed it
  }
}

void RunMonitor::serve(const HostAndPort& place) {
  const bool is_encrypted = setting_.tls != nullptr;
  if (is_encrypted) setting_.token.clear();
  if (!is_encrypted && setting_.token.empty()) setting_.token = make_secret();
  StatusServerOptions options;
  options.listening = listen_for_status(place, setting_.port, setting_.patience);
  options.tls = setting_.tls;
  options.token = setting_.token;
  server_.emplace(std::move(options), [this] { return status(); });
  StatusAddress address{.place = {.host = listens_everywhere(place.host) ? host_name() : place.host,
                                  .port = server_->port()},
                        .is_encrypted = is_encrypted,
                        .token = setting_.token};
  const std::filesystem::path file = setting_.folder / kStatusFile;
  status_url_ = url_of(address);
  write_private_file(file, status_url_ + "\n");
  status_file_ = file;
  const bool is_loopback =
      place.host.starts_with("127.") || place.host == "::1" || place.host == "localhost";
  if (!is_encrypted && !is_loopback) {
    lines_.push_back(join_message("warning: the status at ", text_of(address.place),
                                  " is not encrypted, so that others on the network can read its "
                                  "token. hint: use it on networks that you trust; a scheduler "
                                  "with --tls encrypts it"));
  }
  // Whoever reads a log must not learn the token.
  if (::isatty(STDERR_FILENO) != 1) address.token.clear();
  lines_.push_back(join_message("the status is at ", url_of(address), "; trireme status ",
                                setting_.folder.string(), " shows it"));
}

void RunMonitor::handle() {
  std::uint64_t expirations = 0;
  const bool is_due =
      ::read(timer_.get(), &expirations, sizeof(expirations)) == sizeof(expirations);
  if (server_) server_->handle();
  if (is_due) tick();
}

void RunMonitor::tick() {
  if (server_) server_->drop_late();
  if (options_.slow_factor > 0) {
    for (const SlowRank& slow : tracker_.find_slow(options_.slow_factor)) {
      lines_.push_back(describe(slow));
      write(slow.is_slow ? "slow" : "not_slow", {{"rank", std::int64_t{slow.rank}},
                                                 {"host", slow.host},
                                                 {"process", slow.process},
                                                 {"own_seconds_per_step", slow.own_seconds},
                                                 {"others_seconds_per_step", slow.others_seconds}});
      if (slow.is_slow) slow_.push_back(slow);
    }
  }
  if (journal_ && tracker_.facts.state == RunState::kRunning && Clock::now() >= next_progress_)
    write_progress();
}

void RunMonitor::write_progress() {
  next_progress_ = Clock::now() + options_.journal_interval;
  const RunStatus now = status();
  JournalFields fields{{"step", now.step}};
  if (now.of_steps > 0) fields.emplace_back("of_steps", now.of_steps);
  if (now.epoch > 0) fields.emplace_back("epoch", now.epoch);
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) fields.emplace_back(name, *value);
  };
  add("steps_per_second", now.steps_per_second);
  add("samples_per_second", now.samples_per_second);
  add("tokens_per_second", now.tokens_per_second);
  add("expected_end", now.expected_end);
  if (now.memory_bytes > 0) fields.emplace_back("memory_bytes", now.memory_bytes);
  write("progress", fields);
}

RunStatus RunMonitor::status() const {
  RunStatus now = tracker_.status(Clock::now(), seconds_now());
  if (server_) {
    now.answered = server_->answered();
    now.refused = server_->refused();
  }
  return now;
}

void RunMonitor::begin(std::vector<WorkerStatus> workers) {
  const auto worker_count = static_cast<std::int64_t>(workers.size());
  tracker_.begin(std::move(workers));
  const RunStatus& facts = tracker_.facts;
  write("start", {{"run", facts.run},
                  {"attempt", std::int64_t{facts.restarts}},
                  {"world_size", std::int64_t{facts.world_size}},
                  {"workers", worker_count}});
}

void RunMonitor::take(const RankProgress& progress) { tracker_.take(progress, Clock::now()); }

void RunMonitor::rank_ended(int rank, int code, const std::string& how) {
  tracker_.rank_ended(rank, how);
  write("rank_end", {{"rank", std::int64_t{rank}}, {"code", std::int64_t{code}}, {"how", how}});
}

void RunMonitor::fail(std::optional<int> rank, const std::string& host, int code,
                      const std::string& cause) {
  tracker_.add_failure({.time = seconds_now(),
                        .attempt = tracker_.facts.restarts,
                        .rank = rank,
                        .host = host,
                        .code = code,
                        .cause = cause});
  JournalFields fields{{"attempt", std::int64_t{tracker_.facts.restarts}},
                       {"code", std::int64_t{code}},
                       {"cause", cause}};
  if (rank) fields.emplace_back("rank", std::int64_t{*rank});
  if (!host.empty()) fields.emplace_back("host", host);
  write("failure", fields);
}

void RunMonitor::rank_lost(int rank, const std::string& how) { tracker_.rank_ended(rank, how); }

void RunMonitor::restart() {
  tracker_.end_attempt("was ended for a restart");
  tracker_.facts.workers.clear();
  ++tracker_.facts.restarts;
  tracker_.facts.state = RunState::kForming;
  tracker_.facts.came = 0;
  write("restart", {{"attempt", std::int64_t{tracker_.facts.restarts}},
                    {"of", std::int64_t{tracker_.facts.restarts_allowed}}});
}

void RunMonitor::end(int code) {
  tracker_.end_attempt("was ended");
  tracker_.facts.state = RunState::kEnded;
  tracker_.facts.code = code;
  if (journal_) write_progress();
  write("end", {{"code", std::int64_t{code}}});
}

void RunMonitor::write(const std::string& event, const JournalFields& fields) {
  if (!journal_) return;
  journal_->write(event, fields);
  if (const int error_number = journal_->take_error(); error_number != 0) {
    lines_.push_back(join_message("warning: cannot write to the journal ",
                                  journal_->path().string(), ": ", describe_errno(error_number),
                                  "; the number of lost lines is written later"));
  }
}

}  // namespace trireme::launch
