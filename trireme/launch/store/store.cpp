// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/store/store.h>

#include <trireme/base/broken_pipe_guard.h>
#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/unique_fd.h>
#include <trireme/base/warning.h>
#include <trireme/launch/port_owner.h>
#include <trireme/launch/store/passed_store.h>
#include <trireme/launch/store/sealed_store.h>
#include <trireme/launch/store/torch_log_silencer.h>
#include <trireme/launch/tls/tls_files.h>

#include <fcntl.h>
#include <netdb.h>
#include <sys/stat.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

namespace trireme::launch {
namespace {

// Waits until the host name of rank 0 resolves: the name of a container may appear after this
// process has started. Throws ConfigError if it does not resolve; a connection attempt would only
// report a timeout.
void wait_for_name(const std::string& host, std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongest = std::chrono::seconds(30);
  constexpr std::chrono::milliseconds kPause(200);
  const auto started = Clock::now();
  const auto deadline = started + std::min(timeout, kLongest);
  while (true) {
    addrinfo* found = nullptr;
    const int failure = ::getaddrinfo(host.c_str(), nullptr, nullptr, &found);
    if (failure == 0) return ::freeaddrinfo(found);
    if (Clock::now() + kPause > deadline) {
      const std::chrono::duration<double> waited = Clock::now() - started;
      throw ConfigError(join_message("the host '", host, "' in MASTER_ADDR does not resolve: ",
                                     ::gai_strerror(failure), ", for ", waited.count(), " s"),
                        "give the name or the address of rank 0's host as this host knows it; "
                        "`getent hosts NAME` tells");
    }
    std::this_thread::sleep_for(kPause);
  }
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

// `trireme run` prints a warning of its own. The first of several hosts may call itself localhost.
void warn_of_open_store(const Identity& identity) {
  const bool is_for_this_host =
      is_loopback(*identity.master_address) && identity.local_world_size == identity.world_size;
  if (!identity.secret.empty() || identity.rank != 0 || identity.launcher == "trireme" ||
      is_for_this_host) {
    return;
  }
  warn("no TRIREME_SECRET is set, so that anybody who reaches the store at ",
       *identity.master_address, ":", *identity.master_port,
       " can write what the ranks believe. hint: export TRIREME_SECRET=$(openssl rand -hex 16) "
       "where the ranks are started, the same on all hosts");
}

// Only a scheduler of Trireme encrypts. `trireme run` refuses variables of TLS itself.
void warn_of_no_encryption(const Identity& identity) {
  if (identity.rank != 0 || identity.launcher == "trireme" ||
      identity.local_world_size == identity.world_size ||
      !read_tls_files(Environment::of_process())) {
    return;
  }
  warn("TRIREME_TLS is set, but ranks that ", identity.launcher,
       " has started encrypt nothing. hint: start them by trireme scheduler and trireme worker, or "
       "unset TRIREME_TLS, its single files and MS_ENABLE_SSL");
}

c10::intrusive_ptr<c10d::Store> make_tcp_store(const Identity& identity,
                                               std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(*identity.master_port);
  options.isServer = identity.rank == 0 && !identity.launcher_hosts_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  const std::string place = join_message(*identity.master_address, ":", *identity.master_port);
  wait_for_name(*identity.master_address, timeout);
  const TorchLogSilencer quiet;
  // The thread that serves the store writes to connections whose ranks may have been killed.
  const BrokenPipeGuard guard;
  try {
    return c10::make_intrusive<c10d::TCPStore>(*identity.master_address, options);
  } catch (const std::exception& failure) {
    if (options.isServer) {
      const auto owner = describe_port_owner(*identity.master_port);
      throw ConfigError(
          join_message("rank 0 cannot serve the store on MASTER_PORT ", *identity.master_port,
                       owner.empty() ? join_message(": ", message_of(failure))
                                     : ": the port is in use by " + owner),
          "set MASTER_PORT to a free port, the same on all ranks");
    }
    throw CommError(
        join_message("rank ", identity.rank, " could not reach the store at ", place, " within ",
                     static_cast<double>(timeout.count()) / 1000, " s: ", message_of(failure)),
        identity.launcher_hosts_store
            ? "the launcher that hosts it ended or cannot be reached from this host"
            : "check MASTER_ADDR and MASTER_PORT, and that rank 0 runs there");
  }
}

// Creates the file if it is missing, and checks its owner. The name is predictable, so in a shared
// folder another user could create the file first and mislead the ranks.
void check_own_file(const std::filesystem::path& file) {
  const UniqueFd opened(
      ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat status = {};
  const bool is_there = opened && ::fstat(opened.get(), &status) == 0;
  if (is_there && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && status.st_nlink == 1 &&
      (status.st_mode & (S_IWGRP | S_IWOTH)) == 0) {
    return;
  }
  throw ConfigError(
      join_message("the file ", file.string(), ", where the ranks are to meet, ",
                   is_there ? "is not this user's alone" : "cannot be opened: ",
                   is_there ? std::string() : describe_errno(errno)),
      "set TMPDIR to a folder that only you may write to, or MASTER_ADDR and MASTER_PORT");
}

c10::intrusive_ptr<c10d::Store> make_file_store(const Identity& identity,
                                                std::chrono::milliseconds timeout) {
  if (!identity.job || identity.local_world_size != identity.world_size) {
    throw ConfigError(
        join_message("rank ", identity.rank, " of ", identity.world_size, ", with ",
                     identity.local_world_size, " ranks on this host as the variables of ",
                     identity.launcher, " say, has no address where the ranks meet"),
        "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there on all ranks "
        "(mpirun -x MASTER_ADDR=host0 -x MASTER_PORT=29500), or use trireme run, which sets both");
  }
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     join_message("trireme-", ::getuid(), "-", *identity.job);
  check_own_file(file);
  auto store = c10::make_intrusive<c10d::FileStore>(file.string(), identity.world_size);
  store->setTimeout(timeout);
  return store;
}

c10::intrusive_ptr<c10d::Store> make_base_store(const Identity& identity,
                                                std::chrono::milliseconds timeout) {
  if (identity.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  if (identity.master_address && identity.master_port) {
    check_secret(identity.secret);
    warn_of_open_store(identity);
    warn_of_no_encryption(identity);
    return seal(make_tcp_store(identity, timeout), identity.secret);
  }
  if (identity.local_world_size != identity.world_size) return make_passed_store(identity, timeout);
  return make_file_store(identity, timeout);  // needs no seal: no other user can write to it
}

}  // namespace

std::string key_prefix(std::int64_t attempt) { return join_message("trireme/", attempt); }

c10::intrusive_ptr<c10d::Store> make_store(const Identity& identity, std::int64_t attempt,
                                           std::chrono::milliseconds timeout) {
  return c10::make_intrusive<c10d::PrefixStore>(key_prefix(attempt),
                                                make_base_store(identity, timeout));
}

}  // namespace trireme::launch
