// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/scheduler_loop.h>

#include <trireme/base/error.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/secret.h>
#include <trireme/version.h>

#include <fcntl.h>
#include <netdb.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::launch {
namespace {

// The limits of what strangers can use up.
constexpr std::size_t kMostStrangers = 256;
constexpr std::size_t kLongestHello = std::size_t{32} << 10;

bool is_any_address(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

std::string address_of(const sockaddr_storage& address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  const int failure = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length,
                                    text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  std::string found = failure == 0 ? text.data() : "unknown address";
  constexpr std::string_view kMapped = "::ffff:";  // an IPv4 client of an IPv6 socket
  return found.starts_with(kMapped) ? found.substr(kMapped.size()) : found;
}

}  // namespace

SchedulerLoop::SchedulerLoop(const SchedulerOptions& options, ListeningSocket listening,
                             ListeningSocket store, const TlsContext* tls, RunMonitor& monitor,
                             const std::optional<SchedulerState>& state)
    : options_(options),
      tls_(tls),
      secret_of_store_(tls == nullptr                          ? options.secret
                       : state && !state->store_secret.empty() ? state->store_secret
                                                               : make_secret()),
      monitor_(monitor),
      listening_(std::move(listening)),
      store_port_(store.port),
      store_(options.start_store(
          {.listening_socket = std::move(store.fd),
           .address = is_any_address(options.place.host) ? "localhost" : options.place.host,
           .port = store_port_,
           .timeout = options.timeout,
           .secret = secret_of_store_})),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      reserve_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      roster_(options.workers),
      deadline_(Clock::now() + options.timeout) {
  if (!epoll_ || !reserve_) {
    throw ConfigError(join_message("cannot open descriptors: ", describe_errno(errno)),
                      "check ulimit -n");
  }
  ::fcntl(listening_.fd.get(), F_SETFL, O_NONBLOCK);
  keeps_state_ = !options.state_file.empty();
  if (!state) return;
  run_name_ = state->run;
  attempt_ = state->attempt + 1;
  for (const HostState& host : state->hosts) {
    hosts_.insert_or_assign(host.machine, Host{.name = host.name,
                                               .failures = host.failures,
                                               .is_excluded = host.is_excluded,
                                               .reason = host.reason});
  }
  if (options.fewest_workers > 0) deadline_ = Clock::now() + options.replace_timeout;
}

int SchedulerLoop::run() {
  if (!watch(listening_.fd.get(), kListening, EPOLLIN, EPOLL_CTL_ADD) ||
      !watch(signals_.fd(), kSignals, EPOLLIN, EPOLL_CTL_ADD) ||
      (monitor_.fd() >= 0 && !watch(monitor_.fd(), kMonitor, EPOLLIN, EPOLL_CTL_ADD)) ||
      (store_->fd() >= 0 && !watch(store_->fd(), kStore, EPOLLIN, EPOLL_CTL_ADD))) {
    throw ConfigError(join_message("cannot poll descriptors: ", describe_errno(errno)),
                      "check /proc/sys/fs/epoll/max_user_watches");
  }
  say("the scheduler (process ", ::getpid(), ") listens at ", text_of(options_.place),
      " and waits for ", describe_count(static_cast<std::size_t>(options_.workers), "rank"),
      tls_ == nullptr ? "" : ", encrypted (TLS)");
  begin_monitoring();
  while (!is_finished()) {
    // The kernel returns descriptors in the order in which they became ready, so that the worker
    // that failed first is handled first.
    std::array<epoll_event, 64> events{};
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   milliseconds_to_wait());
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events.at(static_cast<std::size_t>(i));
      handle(event.data.u64, event.events);
    }
    handle_deadlines();
    begin_if_all_are_there();
    update_watches();
    lose_broken();
  }
  remove_state();
  report_end();
  return code_;
}

void SchedulerLoop::handle(std::uint64_t tag, std::uint32_t events) {
  switch (tag) {
    case kListening:
      return accept_all();
    case kStore:
      return handle_store();
    case kSignals:
      return handle_signals();
    case kMonitor:
      return handle_monitor();
    default:
      return handle_peer(tag, events);
  }
}

void SchedulerLoop::accept_all() {
  // Workers that are connected already are handled in between.
  constexpr int kMostAtOnce = 64;
  for (int i = 0; i < kMostAtOnce; ++i) {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    UniqueFd socket(::accept4(listening_.fd.get(), reinterpret_cast<sockaddr*>(&address), &length,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      accept_one(std::move(socket), address_of(address, length));
    } else if (errno == EMFILE || errno == ENFILE) {
      reserve_.reset();
      const UniqueFd refused(::accept4(listening_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (refused) {
        rlimit files{};
        ::getrlimit(RLIMIT_NOFILE, &files);
        notes_.add_limited(
            "no free descriptor",
            join_message("dropped a connection: the scheduler may open ", files.rlim_cur,
                         " files at most (ulimit -n), and has them"));
      }
      reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    } else {
      return;
    }
  }
}

void SchedulerLoop::accept_one(UniqueFd socket, const std::string& address) {
  make_room();
  const Key key = next_key_++;
  const std::string nonce = make_secret();
  Peer& peer = peers_
                   .try_emplace(key,
                                Channel(std::move(socket), ChannelSide::kScheduler, options_.secret,
                                        kLongestHello, tls_ == nullptr ? nullptr : tls_->accept()),
                                address, nonce, Clock::now() + options_.patience)
                   .first->second;
  peer.channel.send(encode(Challenge{
      .version = TRIREME_VERSION, .nonce = nonce, .needs_secret = !options_.secret.empty()}));
  peer.channel.begin_session(nonce);
  peer.watched = EPOLLIN;
  if (!watch(peer.channel.fd(), key, EPOLLIN, EPOLL_CTL_ADD))
    drop_stranger(key, "not pollable", describe_errno(errno));
}

// Drops the oldest stranger if there are too many. A worker that is dropped tries again.
void SchedulerLoop::make_room() {
  const auto most = kMostStrangers + static_cast<std::size_t>(options_.workers);
  const auto is_stranger = [](const auto& one) {
    const Peer::State state = one.second.state;
    return state == Peer::State::kStranger || state == Peer::State::kRefused;
  };
  if (static_cast<std::size_t>(std::ranges::count_if(peers_, is_stranger)) < most) return;
  drop_stranger(std::ranges::find_if(peers_, is_stranger)->first, "too many at once");
}

void SchedulerLoop::handle_peer(Key key, std::uint32_t events) {
  const auto found = peers_.find(key);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  peer.channel.flush();
  if (peer.state != Peer::State::kRefused) return read_from(key);
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) peers_.erase(found);
}

// Reads what has come from a peer, 64 KiB at most: the others have their turn before the rest.
void SchedulerLoop::read_from(Key key) {
  constexpr int kMostReads = 4;
  Peer& peer = peers_.at(key);
  const auto is_heard = [&] { return peer.state != Peer::State::kRefused; };
  try {
    for (int i = 0; i < kMostReads && is_heard() && peer.channel.read_some(); ++i) {
      while (is_heard()) {
        const auto text = peer.channel.next();
        if (!text) break;
        handle_message(key, peer, decode(*text));
      }
    }
  } catch (const CommError& wrong) {
    if (peer.state == Peer::State::kStranger)
      return drop_stranger(key, "a wrong message", wrong.what());
    say("closes the connection of ", describe(peer.hello, peer.address), ": ", wrong.what());
    peer.channel.close();
  }
  if (peer.channel.end() != ChannelEnd::kNone) lose(key);
}

void SchedulerLoop::handle_message(Key key, Peer& peer, const Message& message) {
  if (const auto* hello = std::get_if<Hello>(&message);
      hello != nullptr && peer.state == Peer::State::kStranger) {
    introduce(key, peer, *hello);
  } else if (const auto* end = std::get_if<RankEnded>(&message);
             end != nullptr && peer.state == Peer::State::kMember) {
    handle_rank_ended(peer, *end);
  } else if (const auto* progress = std::get_if<Progress>(&message);
             progress != nullptr && peer.state == Peer::State::kMember) {
    handle_progress(peer, *progress);
  } else if (end != nullptr && peer.state == Peer::State::kLeaving) {
    note_left_rank(peer, *end);
  } else if (progress != nullptr && peer.state == Peer::State::kLeaving) {
    return;  // it was asked to end its ranks
  } else {
    throw CommError("a message came that a worker does not send at this time", "");
  }
}

void SchedulerLoop::drop_stranger(Key key, const std::string& cause, const std::string& why) {
  Peer& peer = peers_.at(key);
  const std::string text = why.empty() ? cause : why;
  if (notes_.add_limited(cause,
                         join_message("dropped a connection from ", peer.address, ": ", text)))
    monitor_.write("refuse", {{"address", peer.address}, {"cause", cause}, {"reason", text}});
  // A worker that has another secret cannot read this answer, and so learns that it has.
  if (peer.channel.end() == ChannelEnd::kWrongCode)
    peer.channel.send(encode(Refused{.reason = cause, .hint = ""}));
  peers_.erase(key);
}

void SchedulerLoop::handle_deadlines() {
  const auto now = Clock::now();
  std::vector<Key> late;
  for (const auto& [key, peer] : peers_) {
    const bool may_stay = peer.state == Peer::State::kMember || peer.state == Peer::State::kSpare;
    if (!may_stay && now >= peer.deadline) late.push_back(key);
  }
  for (const Key key : late) {
    if (Peer& peer = peers_.at(key); peer.state == Peer::State::kRefused) {
      peers_.erase(key);
    } else if (peer.state == Peer::State::kLeaving) {
      say(describe(peer.hello, peer.address), " did not end in time, and is not waited for");
      peers_.erase(key);
    } else {
      drop_stranger(
          key, "no introduction in time",
          join_message("it did not introduce itself within ", options_.patience.count(), " ms"));
    }
  }
  if (phase_ == Phase::kForming && now >= spares_join_) add_spares();
  if (phase_ == Phase::kForming && now >= deadline_) stop_waiting();
}

void SchedulerLoop::update_watches() {
  for (auto& [key, peer] : peers_) {
    std::uint32_t wanted = peer.state == Peer::State::kRefused ? EPOLLRDHUP : EPOLLIN;
    if (peer.channel.wants_to_write()) wanted |= EPOLLOUT;
    if (wanted == peer.watched || peer.channel.fd() < 0) continue;
    peer.watched = wanted;
    if (!watch(peer.channel.fd(), key, wanted, EPOLL_CTL_MOD)) peer.channel.close();
  }
}

// Handles connections that were closed because the other side did not read, or could not be polled.
// That may end the run, and so close others.
void SchedulerLoop::lose_broken() {
  const auto is_broken = [](const auto& one) { return one.second.channel.fd() < 0; };
  for (auto found = std::ranges::find_if(peers_, is_broken); found != peers_.end();
       found = std::ranges::find_if(peers_, is_broken)) {
    lose(found->first);
  }
}

int SchedulerLoop::milliseconds_to_wait() const {
  auto next = phase_ == Phase::kForming ? std::min(deadline_, spares_join_) : deadline_;
  for (const auto& [key, peer] : peers_) {
    const bool may_stay = peer.state == Peer::State::kMember || peer.state == Peer::State::kSpare;
    if (!may_stay) next = std::min(next, peer.deadline);
  }
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
}

bool SchedulerLoop::watch(int fd, std::uint64_t tag, std::uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  return ::epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
}

}  // namespace trireme::launch
