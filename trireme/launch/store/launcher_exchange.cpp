// SPDX-License-Identifier: Apache-2.0
// The wire protocol of PMI version 1 is a line of `name=value` words for each request and each
// answer. "PMI: A Scalable Parallel Process-Management Interface for Extreme-Scale Systems"
// (Balaji et al., EuroMPI 2010) describes its calls.
#include <trireme/launch/store/launcher_exchange.h>

#include <trireme/base/broken_pipe_guard.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace trireme::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::string_view kKey = "trireme-store";

std::optional<ino_t> socket_of(int fd) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 ? std::optional(status.st_ino) : std::nullopt;
}

// The connection to the process manager, which the launcher has opened for this process.
class Pmi {
 public:
  Pmi(int fd, Clock::time_point deadline) : fd_(fd), deadline_(deadline) {}

  // Sends a request and returns the answer. Throws CommError if it is not the expected one.
  std::string ask(const std::string& request, std::string_view expected) {
    send(request + "\n");
    const std::string answer = read_line(request);
    const std::string code = word(answer, "rc");
    if (word(answer, "cmd") == expected && (code.empty() || code == "0")) return answer;
    fail(request, join_message("it answered '", answer, "'"));
  }

  static std::string word(const std::string& line, const std::string& name) {
    TextReader words(line);
    for (std::string one; words >> one;) {
      if (one.starts_with(name + "=")) return one.substr(name.size() + 1);
    }
    return {};
  }

 private:
  [[noreturn]] void fail(const std::string& request, const std::string& why) const {
    throw CommError(
        join_message("the launcher did not pass on where rank 0 is: PMI_FD is ", fd_, ", and to '",
                     request.substr(0, request.find(" value")), "' ", why),
        "every rank must call trireme::init(); otherwise set MASTER_ADDR and "
        "MASTER_PORT to a free port of rank 0's host on all ranks");
  }

  void send(std::string_view text) {
    const BrokenPipeGuard guard;
    while (!text.empty()) {
      const ssize_t written = ::write(fd_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail(std::string(text.substr(0, text.size() - 1)), describe_errno(errno));
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  std::string read_line(const std::string& request) {
    std::string line;
    while (true) {
      const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now()).count();
      pollfd readable{.fd = fd_, .events = POLLIN, .revents = 0};
      const int ready =
          left <= 0 ? 0 : ::poll(&readable, 1, static_cast<int>(std::min<long>(left, INT_MAX)));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) fail(request, "nothing came before the deadline (TRIREME_TIMEOUT)");
      char byte = 0;
      const ssize_t count = ::read(fd_, &byte, 1);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail(request, "the connection was closed");
      if (byte == '\n') return line;
      line += byte;
    }
  }

  int fd_;
  Clock::time_point deadline_;
};

// What the end of the process needs: the launcher takes a connection that closes without it for a
// crash.
int signed_on = -1;
ino_t signed_on_socket = 0;

void sign_off() noexcept {
  constexpr std::chrono::seconds kPatience{5};
  // MPI has closed it where the program uses MPI too.
  if (socket_of(signed_on) != std::optional(signed_on_socket)) return;
  try {
    Pmi(signed_on, Clock::now() + kPatience).ask("cmd=finalize", "finalize_ack");
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the launcher is gone
  }
}

std::string pass_by_pmi(int fd, int rank, const std::function<std::string()>& make,
                        Clock::time_point deadline) {
  const auto socket = socket_of(fd);
  if (!socket) {
    throw ConfigError(join_message("environment variable PMI_FD is ", fd,
                                   ", which is no open file of this process"),
                      "start the program itself by mpiexec, not by a script that closes its files; "
                      "or set MASTER_ADDR and MASTER_PORT on all ranks");
  }
  Pmi pmi(fd, deadline);
  pmi.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init");
  const std::string space = Pmi::word(pmi.ask("cmd=get_my_kvsname", "my_kvsname"), "kvsname");
  const std::string key = join_message("kvsname=", space, " key=", kKey);
  if (rank == 0) pmi.ask(join_message("cmd=put ", key, " value=", make()), "put_result");
  pmi.ask("cmd=barrier_in", "barrier_out");
  const std::string value = Pmi::word(pmi.ask("cmd=get " + key, "get_result"), "value");
  // Not after a failure: the launcher then ends the other ranks.
  if (signed_on < 0) std::atexit(sign_off);
  signed_on = fd;
  signed_on_socket = *socket;
  return value;
}

}  // namespace

std::string pass_from_rank_0(const Environment& environment, const Identity& identity,
                             const std::function<std::string()>& make, milliseconds timeout) {
  if (const auto fd = environment.find_integer("PMI_FD", 0, INT_MAX)) {
    return pass_by_pmi(static_cast<int>(*fd), identity.rank, make, Clock::now() + timeout);
  }
  if (environment.has("PMIX_NAMESPACE") && environment.has("PMIX_RANK")) {
    return pass_by_pmix(environment, identity.rank, make, timeout);
  }
  throw ConfigError(
      join_message("rank ", identity.rank, " of ", identity.world_size, ", with ",
                   identity.local_world_size, " ranks on this host as the variables of ",
                   identity.launcher,
                   " say, has no address where the ranks meet, and this launcher passes none on: "
                   "neither PMI_FD (PMI) nor PMIX_NAMESPACE and PMIX_RANK (PMIx) are set"),
      "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there on all ranks "
      "(mpirun -x MASTER_ADDR=host0 -x MASTER_PORT=29500), or use trireme run, which sets both");
}

}  // namespace trireme::launch
