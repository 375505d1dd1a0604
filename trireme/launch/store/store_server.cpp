// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/store/store_server.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/launch/store/rendezvous.h>
#include <trireme/launch/store/sealed_store.h>
#include <trireme/launch/store/store.h>
#include <trireme/launch/store/torch_log_silencer.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <utility>

namespace trireme::launch {

StoreServer::StoreServer(StoreAddress place)
    : secret_(std::move(place.secret)), attempt_(place.attempt) {
  const bool serves = static_cast<bool>(place.listening_socket);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = place.timeout;
  if (serves) options.masterListenFd = place.listening_socket.get();
  const TorchLogSilencer quiet;
  try {
    store_ = c10::make_intrusive<c10d::TCPStore>(place.address, options);
  } catch (const std::exception& failure) {
    throw ConfigError(
        join_message("cannot ", serves ? "host" : "join", " the store at ", place.address, ":",
                     place.port, ": ", message_of(failure)),
        join_message("check that connections to ", place.address, " are allowed here"));
  }
  static_cast<void>(place.listening_socket.release());  // the store closes it
}

StoreServer::~StoreServer() = default;

void StoreServer::publish_exit(int rank, std::string_view how) {
  seal(store_, secret_)
      ->set(join_message(key_prefix(attempt_), "/", exit_key(rank)), std::string(how));
  ++own_keys_;
}

bool StoreServer::is_used() {
  // The TCPStore may have one key of its own. Ranks that meet write several keys each.
  return static_cast<c10d::Store&>(*store_).getNumKeys() > own_keys_ + 1;
}

}  // namespace trireme::launch
