// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/store/start_role.h>

#include <trireme/base/machine.h>
#include <trireme/launch/role.h>
#include <trireme/launch/scheduler/program_file.h>
#include <trireme/launch/scheduler/scheduler.h>
#include <trireme/launch/scheduler/worker_process.h>
#include <trireme/launch/secret.h>
#include <trireme/launch/store/store_server.h>
#include <trireme/launch/tls/tls_files.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

namespace trireme::launch {
namespace {

[[noreturn]] void be_scheduler(const Role& role, const std::string& secret,
                               const std::optional<TlsFiles>& tls,
                               std::chrono::milliseconds timeout) {
  const bool is_native = role.variable.starts_with("TRIREME");
  const int code = run_scheduler(
      {.place = role.scheduler,
       .host_source = is_native ? "TRIREME_SCHEDULER" : "MS_SCHED_HOST",
       .port_source = is_native ? "port in TRIREME_SCHEDULER" : "MS_SCHED_PORT",
       .workers = *role.workers,
       .timeout = timeout,
       .files_of_rank = 3,
       .secret = secret,
       .tls = tls,
       .start_store = serve_in_this_process([](StoreAddress place) {
         return std::unique_ptr<RunStore>(std::make_unique<StoreServer>(std::move(place)));
       })});
  std::cout.flush();
  std::fflush(nullptr);
  // Destructors and exit handlers of the program expect a training that has taken place.
  std::_Exit(code);
}

// Divides the cores of the host among its ranks, as `trireme run` does.
void divide_cores(const Environment& environment, int local_world_size) {
  if (environment.has("OMP_NUM_THREADS")) return;
  at::set_num_threads(std::max(1, available_cores() / local_world_size));
}

}  // namespace

void start_role(const Environment& environment, std::chrono::milliseconds timeout) {
  const auto role = read_role(environment);
  if (!role) return;
  const std::string secret = environment.find(kSecretVariable).value_or("");
  const auto tls = read_tls_files(environment);
  if (role->kind == Role::Kind::kScheduler) be_scheduler(*role, secret, tls, timeout);
  WorkerConnection connection({.scheduler = role->scheduler,
                               .secret = secret,
                               .workers = role->workers,
                               .node_id = role->node_id,
                               .program = describe_own_program(),
                               .tls = tls,
                               .timeout = timeout});
  set_rank_variables(connection);
  divide_cores(environment, connection.place().local_world_size);
  follow_scheduler(std::move(connection));
}

}  // namespace trireme::launch
