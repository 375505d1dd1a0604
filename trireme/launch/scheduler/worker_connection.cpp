// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/worker_connection.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/launch/connect.h>
#include <trireme/launch/machine_identity.h>
#include <trireme/launch/secret.h>
#include <trireme/version.h>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace trireme::launch {
namespace {

using WorkerClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kAnswerPatience{10};
constexpr std::chrono::milliseconds kBetweenAttempts{100};
constexpr std::int64_t kDefaultGraceMs = 5'000;

[[noreturn]] void refuse_stranger(const HostAndPort& place) {
  throw ConfigError(join_message("the program that listens at ", text_of(place),
                                 " is no scheduler of Trireme, or one of another version"),
                    "check TRIREME_SCHEDULER, or MS_SCHED_HOST and MS_SCHED_PORT, or --scheduler");
}

[[noreturn]] void refuse_secret(const HostAndPort& place, std::string_view what) {
  throw ConfigError(join_message("the scheduler at ", text_of(place), " ", what),
                    "set TRIREME_SECRET to the same text for the scheduler and all workers");
}

Message decode_from(const HostAndPort& place, const std::string& text) {
  try {
    return decode(text);
  } catch (const CommError&) {
    refuse_stranger(place);
  }
}

}  // namespace

WorkerConnection::WorkerConnection(const WorkerOptions& options)
    : scheduler_(options.scheduler),
      deadline_(WorkerClock::now() + options.timeout),
      channel_(UniqueFd(), ChannelSide::kWorker, options.secret) {
  check_secret(options.secret);
  std::optional<TlsContext> tls;
  if (options.tls) tls.emplace(*options.tls);
  int attempts = 0;
  std::string problem;
  while (true) {
    ++attempts;
    UniqueFd socket = try_connect(scheduler_, deadline_, problem);
    if (socket) {
      channel_ = Channel(std::move(socket), ChannelSide::kWorker, options.secret, kLongestMessage,
                         tls ? tls->connect(scheduler_.host) : nullptr);
      if (join(options, problem) == Step::kPlaced) return;
    }
    const bool is_over = WorkerClock::now() + kBetweenAttempts > deadline_;
    if (is_over) break;
    wait_for(-1, 0, WorkerClock::now() + kBetweenAttempts);
    // An attempt without any time left would hide what the last one found.
    if (WorkerClock::now() >= deadline_) break;
  }
  const std::chrono::duration<double> waited = options.timeout;
  throw CommError(
      join_message("no scheduler answered at ", text_of(scheduler_), " within ", waited.count(),
                   " s, in ", attempts, attempts == 1 ? " attempt" : " attempts",
                   "; the last one: ", problem),
      "start the scheduler there (trireme scheduler, or the program with TRIREME_ROLE=scheduler or "
      "MS_ROLE=MS_SCHED), check its host, its port and firewalls between; TRIREME_TIMEOUT sets the "
      "deadline in seconds");
}

// Waits for a message. Returns false if the connection was closed or the time is over.
bool WorkerConnection::await_message(WorkerClock::time_point until, std::string& message) {
  while (true) {
    channel_.flush();
    if (auto received = channel_.next()) {
      message = std::move(*received);
      return true;
    }
    switch (channel_.end()) {
      case ChannelEnd::kNone:
        break;
      case ChannelEnd::kClosed:
        return false;
      case ChannelEnd::kNotEncrypted:
      case ChannelEnd::kUntrusted:
        refuse_encryption();
      case ChannelEnd::kEncrypted:
      case ChannelEnd::kOtherProtocol:
      case ChannelEnd::kWrongLength:
        refuse_stranger(scheduler_);
      case ChannelEnd::kWrongCode:
        refuse_secret(scheduler_, "has another secret (TRIREME_SECRET) than this worker");
    }
    // What comes all the time without ever being a message must not last beyond the deadline.
    if (channel_.read_some() && WorkerClock::now() < until) continue;
    if (!wait_for(channel_.fd(), POLLIN, until)) return false;
  }
}

void WorkerConnection::refuse_encryption() const {
  const std::string scheduler = "the scheduler at " + text_of(scheduler_);
  if (channel_.end() == ChannelEnd::kNotEncrypted) {
    throw ConfigError(scheduler + " does not encrypt its connections (TLS), and this worker does",
                      "give the scheduler a certificate too (TRIREME_TLS or --tls), or unset "
                      "TRIREME_TLS and MS_ENABLE_SSL here");
  }
  const TlsFailure& failure = channel_.tls_failure();
  throw ConfigError(
      join_message("the encryption (TLS) with ", scheduler, " has failed: ", failure.text),
      hint_of(failure.cause));
}

void WorkerConnection::answer_challenge(const WorkerOptions& options, const std::string& message) {
  const Message first = decode_from(scheduler_, message);
  // A scheduler that encrypts says so to a worker that does not.
  if (const auto* refused = std::get_if<Refused>(&first)) {
    throw ConfigError(join_message("the scheduler at ", text_of(scheduler_),
                                   " refused this worker: ", refused->reason),
                      refused->hint);
  }
  const auto* const challenge = std::get_if<Challenge>(&first);
  if (challenge == nullptr) refuse_stranger(scheduler_);
  if (challenge->protocol != kSchedulerProtocol || challenge->version != TRIREME_VERSION) {
    throw ConfigError(
        join_message("the scheduler at ", text_of(scheduler_), " has version ", challenge->version,
                     " of Trireme with protocol ", challenge->protocol, ", this worker has ",
                     TRIREME_VERSION, " with protocol ", kSchedulerProtocol),
        "build the scheduler and all workers with one version");
  }
  if (challenge->needs_secret && options.secret.empty())
    refuse_secret(scheduler_, "has a secret (TRIREME_SECRET), and this worker has none");
  if (!challenge->needs_secret && !options.secret.empty())
    refuse_secret(scheduler_, "has no secret, and this worker has one (TRIREME_SECRET)");
  const std::string nonce = make_secret();
  channel_.begin_session(challenge->nonce);
  channel_.send(encode(Hello{.version = TRIREME_VERSION,
                             .nonce = nonce,
                             .host = host_name(),
                             .machine = machine_identity(),
                             .process = ::getpid(),
                             .node_id = options.node_id,
                             .ranks = options.ranks,
                             .workers = options.workers,
                             .run = options.run,
                             .program = options.program}));
  channel_.begin_session(challenge->nonce + nonce);
}

WorkerConnection::Step WorkerConnection::join(const WorkerOptions& options, std::string& problem) {
  std::string text;
  const auto until = std::min(deadline_, WorkerClock::now() + kAnswerPatience);
  const auto fail = [&](std::string_view if_closed, std::string_view if_silent) {
    problem = join_message("the connection was accepted, but ",
                           channel_.end() == ChannelEnd::kClosed ? if_closed : if_silent);
    return Step::kTryAgain;
  };
  if (!await_message(until, text))
    return fail("closed before the scheduler said anything", "the scheduler said nothing");
  answer_challenge(options, text);
  bool is_accepted = false;
  bool returns = false;
  auto latest = until;
  while (await_message(latest, text)) {
    const Message message = decode_from(scheduler_, text);
    if (const auto* refused = std::get_if<Refused>(&message)) {
      const std::string all = join_message(
          "the scheduler at ", text_of(scheduler_),
          is_accepted ? " has ended the run: " : " refused this worker: ", refused->reason);
      if (is_accepted) throw CommError(all, refused->hint);
      throw ConfigError(all, refused->hint);
    }
    if (const auto* accepted = std::get_if<Accepted>(&message)) {
      is_accepted = true;
      returns = accepted->returns;
      latest =
          std::max(deadline_, WorkerClock::now() + std::chrono::milliseconds(accepted->wait_ms) +
                                  kAnswerPatience);
      continue;
    }
    const auto* const place = std::get_if<Assignment>(&message);
    if (place == nullptr || place->first_rank + options.ranks > place->world_size)
      refuse_stranger(scheduler_);
    place_ = *place;
    if (!options.tls) place_.secret.clear();
    return Step::kPlaced;
  }
  if (!is_accepted)
    return fail("closed before the scheduler answered", "the scheduler did not answer");
  if (channel_.end() != ChannelEnd::kClosed) {
    throw CommError(join_message("the scheduler at ", text_of(scheduler_),
                                 " is connected but did not say in time who takes part"),
                    "its process is stopped, or its host is overloaded");
  }
  if (returns) {
    problem = "the scheduler that had accepted this worker has ended before the world was complete";
    deadline_ = WorkerClock::now() + options.timeout;
    return Step::kTryAgain;
  }
  throw CommError(join_message("the scheduler at ", text_of(scheduler_),
                               " has ended before the world was complete"),
                  "its own output says why; start the run again");
}

std::optional<EndRequest> WorkerConnection::receive() {
  channel_.flush();
  try {
    while (const auto text = channel_.receive()) {
      const Message message = decode(*text);
      if (const auto* request = std::get_if<EndRequest>(&message)) return *request;
    }
  } catch (const CommError&) {
    channel_.close();
  }
  if (channel_.end() == ChannelEnd::kNone) return std::nullopt;
  return EndRequest{
      .reason = join_message("the scheduler at ", text_of(scheduler_),
                             " has ended or cannot be reached any more",
                             place_.returns ? "; the ranks start again when it is back" : ""),
      .code = 1,
      .grace_ms = kDefaultGraceMs,
      .restarts = place_.returns};
}

void WorkerConnection::leave() {
  if (channel_.fd() >= 0) ::shutdown(channel_.fd(), SHUT_RDWR);
  channel_.close();
}

void WorkerConnection::say_progress(const std::vector<RankProgress>& ranks) {
  channel_.flush();
  for (std::size_t i = 0; i < ranks.size(); i += kMostRanksOfProgress) {
    if (channel_.fd() < 0 || channel_.wants_to_write()) return;
    const auto begin = ranks.begin() + static_cast<std::ptrdiff_t>(i);
    const auto count = std::min(kMostRanksOfProgress, ranks.size() - i);
    channel_.send(encode(Progress{.ranks = {begin, begin + static_cast<std::ptrdiff_t>(count)}}));
  }
}

void WorkerConnection::say_ended(const RankEnded& end) {
  channel_.send(encode(end));
  const auto until = WorkerClock::now() + std::chrono::seconds(1);
  while (channel_.wants_to_write() && channel_.fd() >= 0) {
    pollfd writable{.fd = channel_.fd(), .events = POLLOUT, .revents = 0};
    if (WorkerClock::now() > until || ::poll(&writable, 1, 100) < 0) return;
    channel_.flush();
  }
}

}  // namespace trireme::launch
