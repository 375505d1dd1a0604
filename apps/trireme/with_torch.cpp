// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/store/store_server.h>

#include <apps/trireme/data_command.h>
#include <apps/trireme/doctor_command.h>
#include <apps/trireme/torch_parts.h>

#include <memory>

namespace trireme::apps {

void add_torch_commands(CLI::App& app) {
  add_data_command(app);
  add_doctor_command(app);
}

launch::StoreHost store_host() {
  return [](UniqueFd listening_socket, int port) -> launch::ExitObserver {
    auto server = std::make_shared<launch::StoreServer>(std::move(listening_socket), port);
    return [server](int rank, std::string_view how) { server->publish_exit(rank, how); };
  };
}

}  // namespace trireme::apps
