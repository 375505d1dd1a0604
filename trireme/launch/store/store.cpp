// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/store/store.h>

#include <trireme/base/error.h>
#include <trireme/launch/port_owner.h>
#include <trireme/launch/store/quiet_torch.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <filesystem>

namespace trireme::launch {
namespace {

c10::intrusive_ptr<c10d::Store> make_tcp_store(const Identity& identity,
                                               std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(*identity.master_port);
  options.isServer = identity.rank == 0 && !identity.launcher_hosts_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  const std::string place = join_message(*identity.master_address, ":", *identity.master_port);
  const QuietTorch quiet;
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

c10::intrusive_ptr<c10d::Store> make_file_store(const Identity& identity) {
  if (!identity.job || identity.local_world_size != identity.world_size) {
    throw ConfigError(
        join_message("rank ", identity.rank, " of ", identity.world_size, " was started by ",
                     identity.launcher, " with ", identity.local_world_size,
                     " ranks on this host, and no address says where the ranks meet"),
        "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there on all ranks, "
        "for "
        "instance mpirun -x MASTER_ADDR=host0 -x MASTER_PORT=29500");
  }
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     join_message("trireme-", ::getuid(), "-", *identity.job);
  return c10::make_intrusive<c10d::FileStore>(file.string(), identity.world_size);
}

c10::intrusive_ptr<c10d::Store> make_base_store(const Identity& identity,
                                                std::chrono::milliseconds timeout) {
  if (identity.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  if (identity.master_address && identity.master_port) return make_tcp_store(identity, timeout);
  return make_file_store(identity);
}

}  // namespace

std::string key_prefix(std::int64_t attempt) { return join_message("trireme/", attempt); }

c10::intrusive_ptr<c10d::Store> make_store(const Identity& identity, std::int64_t attempt,
                                           std::chrono::milliseconds timeout) {
  return c10::make_intrusive<c10d::PrefixStore>(key_prefix(attempt),
                                                make_base_store(identity, timeout));
}

}  // namespace trireme::launch
