// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/store/store_server.h>

#include <trireme/base/error.h>
#include <trireme/launch/store/quiet_torch.h>
#include <trireme/launch/store/rendezvous.h>
#include <trireme/launch/store/store.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace trireme::launch {

StoreServer::StoreServer(UniqueFd listening_socket, int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listening_socket.get();
  try {
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception& failure) {
    throw ConfigError(
        join_message("cannot host the store on port ", port, ": ", message_of(failure)),
        "check that connections to 127.0.0.1 are allowed here");
  }
  static_cast<void>(listening_socket.release());  // the store closes it
}

StoreServer::~StoreServer() = default;

void StoreServer::publish_exit(int rank, std::string_view how) {
  // A launcher of ours does not restart ranks, so its attempt is always the first.
  c10d::Store& store = *store_;
  store.set(join_message(key_prefix(0), "/", exit_key(rank)), std::string(how));
}

}  // namespace trireme::launch
