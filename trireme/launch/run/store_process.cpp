// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/store_process.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/base/text.h>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <locale>

namespace trireme::launch {
namespace {

// A packet is a letter and a text. The supervisor sends exits and the request to finish. The
// store's process sends reports.
constexpr char kExit = 'x';
constexpr char kFinish = 'e';
constexpr std::size_t kLongestPacket = 1 << 14;

char letter_of(StoreProcess::Report::Kind kind) {
  return static_cast<char>('A' + static_cast<int>(kind));
}

// Returns std::nullopt at the end of the channel, and also if no packet is there yet; errno is
// EAGAIN in the second case.
std::optional<std::string> receive_packet(int channel, int flags) {
  std::string packet(kLongestPacket, '\0');
  ssize_t count = 0;
  do {
    count = ::recv(channel, packet.data(), packet.size(), flags);
  } while (count < 0 && errno == EINTR);
  if (count == 0) errno = 0;
  if (count <= 0) return std::nullopt;
  packet.resize(static_cast<std::size_t>(count));
  return packet;
}

// Limits the memory of this process. The store keeps everything that any client sends, but ranks
// need only little. Beyond a quarter of the free memory this process fails, before the whole
// machine does.
void bound_memory() {
  constexpr std::int64_t kLeast = std::int64_t{512} << 20;
  constexpr int kDataField =
      6;  // of statm, in pages: the memory that RLIMIT_DATA counts, and stack
  std::ifstream statm("/proc/self/statm");
  statm.imbue(std::locale::classic());
  std::int64_t pages = 0;
  for (int field = 0; field < kDataField; ++field) statm >> pages;
  if (!statm) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_DATA, &limit);
  const std::int64_t bytes = pages * ::sysconf(_SC_PAGESIZE) + std::max(kLeast, free_memory() / 4);
  limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(bytes));
  ::setrlimit(RLIMIT_DATA, &limit);
}

// The other side of StoreProcess, from the start to the end of the store's process.
class Server {
 public:
  Server(UniqueFd channel, const StoreOpener& open, StoreAddress place)
      : channel_(std::move(channel)), serves_(static_cast<bool>(place.listening_socket)) {
    using Kind = StoreProcess::Report::Kind;
    try {
      store_ = open(std::move(place));
      if (serves_) bound_memory();
      report(Kind::kOpen);
    } catch (const std::exception& failure) {
      // If another host serves the store, ranks that cannot reach it report that themselves.
      if (serves_) report(Kind::kFailed, failure.what());
    }
  }

  // Returns when the supervisor asks to finish, or is gone.
  void serve() {
    if (serves_ && store_ == nullptr) return;
    while (const auto packet = receive_packet(channel_.get(), 0)) {
      const std::string text = packet->substr(1);
      if (packet->front() == kFinish) return finish(parse_number<int>(text).value_or(0));
      publish(text);
    }
  }

 private:
  void report(StoreProcess::Report::Kind kind, std::string_view text = {}) {
    std::string packet(1, letter_of(kind));
    packet += text.substr(0, kLongestPacket - 1);
    ::send(channel_.get(), packet.data(), packet.size(), MSG_NOSIGNAL);
  }

  // Publishes an exit, given as `3 exited with code 1`.
  void publish(const std::string& text) {
    if (store_ == nullptr) return;
    const auto space = text.find(' ');
    const int rank = parse_number<int>(text.substr(0, space)).value_or(-1);
    try {
      store_->publish_exit(rank, text.substr(space + 1));
    } catch (const std::exception& failure) {
      // If another host serves the store, the store ends with the ranks of that host, and then
      // nobody needs to be told.
      if (!serves_) return;
      report(
          StoreProcess::Report::Kind::kComplaint,
          join_message("cannot tell the other ranks that rank ", rank, " ended: ", failure.what()));
    }
  }

  void finish(int linger_ms) {
    if (store_ == nullptr) return;
    try {
      const bool is_used = store_->is_used();
      report(is_used ? StoreProcess::Report::Kind::kUsed : StoreProcess::Report::Kind::kUnused);
    } catch (const std::exception&) {
      return;  // nothing is reported if it is not known
    }
    pollfd nothing{.fd = channel_.get(), .events = 0, .revents = 0};
    ::poll(&nothing, 1, linger_ms);
  }

  UniqueFd channel_;
  bool serves_;
  std::unique_ptr<RunStore> store_;
};

[[noreturn]] void be_store(UniqueFd channel, const StoreOpener& open, StoreAddress place,
                           pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
  ::prctl(PR_SET_NAME, "trireme-store");
  Server(std::move(channel), open, std::move(place)).serve();
  // _exit() skips the exit handlers of the program, which belong to the process that was forked.
  ::_exit(0);
}

}  // namespace

StoreProcess::StoreProcess(const StoreOpener& open, StoreAddress place) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw ConfigError(join_message("cannot make a pair of sockets: ", describe_errno(errno)),
                      "check ulimit -n");
  }
  channel_.reset(ends[0]);
  UniqueFd theirs(ends[1]);
  const pid_t supervisor = ::getpid();
  process_ = ::fork();
  if (process_ < 0) {
    throw ConfigError(join_message("cannot start a process: ", describe_errno(errno)),
                      "check ulimit -u");
  }
  if (process_ > 0) return;
  channel_.reset();
  be_store(std::move(theirs), open, std::move(place), supervisor);
}

void StoreProcess::publish_exit(int rank, std::string_view how) {
  unsent_.push_back(join_message(kExit, rank, ' ', how));
  flush();
}

void StoreProcess::finish(int linger_ms) {
  unsent_.push_back(join_message(kFinish, linger_ms));
  flush();
}

void StoreProcess::flush() {
  while (!unsent_.empty()) {
    const std::string& packet = unsent_.front();
    const ssize_t count =
        ::send(channel_.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0) return unsent_.clear();  // the store's process has ended
    unsent_.pop_front();
  }
}

std::optional<StoreProcess::Report> StoreProcess::receive() {
  const auto packet = receive_packet(channel_.get(), MSG_DONTWAIT);
  if (!packet) {
    is_closed_ = errno != EAGAIN;
    return std::nullopt;
  }
  const auto kind = static_cast<Report::Kind>(packet->front() - 'A');
  if (kind == Report::Kind::kOpen) is_open_ = true;
  return Report{.kind = kind, .text = packet->substr(1)};
}

}  // namespace trireme::launch
