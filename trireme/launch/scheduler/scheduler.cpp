// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/scheduler.h>

#include <trireme/base/broken_pipe_guard.h>
#include <trireme/base/error.h>
#include <trireme/base/warning.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/scheduler/scheduler_loop.h>
#include <trireme/launch/scheduler/scheduler_state.h>
#include <trireme/launch/secret.h>
#include <trireme/launch/status/run_monitor.h>

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <csignal>
#include <cstddef>
#include <optional>
#include <utility>

namespace trireme::launch {
namespace {

AddressNames names_of(const SchedulerOptions& options) {
  return {.address = options.host_source,
          .port = options.port_source,
          .not_of_this_host =
              "give an address of the host on which the scheduler runs, as workers "
              "reach it; 0.0.0.0 listens at all of them",
          .port_in_use = ", the same for the scheduler and all workers"};
}

bool is_loopback_name(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Returns true if only processes of this host can connect to a socket.
bool is_at_loopback(const ListeningSocket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  ::getsockname(socket.fd.get(), reinterpret_cast<sockaddr*>(&address), &length);
  if (address.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  const auto host = ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr);
  return host >> IN_CLASSA_NSHIFT == IN_LOOPBACKNET;
}

void warn_of(const SchedulerOptions& options, const ListeningSocket& socket) {
  const bool is_loopback = is_at_loopback(socket);
  if (is_loopback && !is_loopback_name(options.place.host)) {
    warn(options.host_source, " is '", options.place.host,
         "', which is a loopback address here, so that other hosts cannot reach it. hint: give "
         "an address of this host, or correct /etc/hosts");
  }
  if (!is_loopback && options.secret.empty() && !options.tls) {
    warn("whoever reaches ", text_of(options.place),
         " can take part in the run. hint: set TRIREME_SECRET to the same random text for the "
         "scheduler and all workers, for instance from: openssl rand -hex 16");
  }
}

// Workers that dial the address at which this scheduler listens will not trust it.
void warn_of_other_host(const SchedulerOptions& options, const TlsContext& tls) {
  const std::string& host = options.place.host;
  if (host == "0.0.0.0" || host == "::" || tls.is_for(host)) return;
  warn("the certificate ", options.tls->certificate.string(), " is for ", tls.hosts(),
       ", and not for ", host,
       ", where this scheduler listens. hint: give workers a name that it "
       "is for as the scheduler's address, or make a certificate for this name too: trireme "
       "certificates make --replace");
}

// Raises the limit of open files for this process and that of the store, which is started later.
void raise_open_files(const SchedulerOptions& options) {
  constexpr std::size_t kForStrangers = 300;
  constexpr std::size_t kForStatus = 160;
  const std::size_t needed =
      kForStrangers + (options.monitor.status ? kForStatus : 0) +
      static_cast<std::size_t>(options.workers) * static_cast<std::size_t>(options.files_of_rank);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (needed > files.rlim_max) {
    throw ConfigError(
        join_message("a scheduler of ", options.workers, " ranks needs ", needed,
                     " open files in one process, the hard limit is ", files.rlim_max),
        "raise it (ulimit -Hn, LimitNOFILE, limits.conf), or start fewer ranks");
  }
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

// Returns the state of a run that another scheduler has left behind.
std::optional<SchedulerState> find_run(const SchedulerOptions& options) {
  if (options.state_file.empty()) return std::nullopt;
  auto state = read_scheduler_state(options.state_file);
  if (!state) return std::nullopt;
  const std::string name =
      join_message("the run ", state->run, " in ", options.state_file.string());
  if (state->attempt >= options.restarts) {
    throw ConfigError(
        join_message(name, " has had ", state->attempt, " restarts, and --restarts is ",
                     options.restarts),
        join_message("taking it up needs one more: give --restarts ", state->attempt + 1,
                     " or more, or remove the file to begin another run"));
  }
  if (!options.secret.empty() && options.secret != state->secret) {
    throw ConfigError(
        join_message(name, " has another secret than TRIREME_SECRET"),
        "unset TRIREME_SECRET to take up the run, or remove the file to begin another "
        "one");
  }
  if (state->is_encrypted != options.tls.has_value()) {
    throw ConfigError(
        join_message(name, state->is_encrypted ? " is encrypted (TLS), and this scheduler is not"
                                               : " is not encrypted (TLS), and this scheduler is"),
        state->is_encrypted ? "give --tls as before, or remove the file to begin another run"
                            : "leave --tls and TRIREME_TLS out as before, or remove the file to "
                              "begin another run");
  }
  return state;
}

// At the limit of the size of a file, the journal counts the lines that it loses.
void ignore_file_size_limit() {
  struct sigaction action{};
  if (::sigaction(SIGXFSZ, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &action, nullptr);
}

}  // namespace

int run_scheduler(const SchedulerOptions& given) {
  const auto state = find_run(given);
  SchedulerOptions options = given;
  if (state) options.secret = state->secret;
  check_secret(options.secret);
  std::optional<TlsContext> tls;
  if (options.tls) tls.emplace(*options.tls);
  raise_open_files(options);
  // Whoever reads the output, or is connected to the store, may go.
  const BrokenPipeGuard guard;
  ignore_file_size_limit();
  // The process of the store of a scheduler that was killed has its ports a little longer.
  const auto patience = state ? std::chrono::seconds{5} : std::chrono::seconds{0};
  ListeningSocket listening =
      listen_within(patience, options.place.host, options.place.port, names_of(options));
  RunMonitor monitor(options.monitor, {.tls = tls ? &*tls : nullptr,
                                       .folder = options.folder,
                                       .token = state ? state->status_token : "",
                                       .port = state ? state->status_port : 0,
                                       .patience = patience});
  ListeningSocket store = listen_at(options.place.host, std::nullopt, names_of(options));
  warn_of(options, listening);
  if (tls) warn_of_other_host(options, *tls);
  return SchedulerLoop(options, std::move(listening), std::move(store), tls ? &*tls : nullptr,
                       monitor, state)
      .run();
}

}  // namespace trireme::launch
