// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/mpi/mpi.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/comm/adapter/adapter_backend.h>
#include <trireme/comm/engines/mpi/load.h>
#include <trireme/comm/engines/mpi/mpi_connection.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <vector>

namespace trireme::comm {
namespace {

// Blocks until all ranks of the group are about to connect. From then on MPI blocks without a
// deadline.
void rendezvous(const EngineContext& context) {
  if (context.store->add("here", 1) == context.size) context.store->set("all here", "");
  context.store->wait({"all here"}, context.timeout);
}

// If its own launcher has not started MPI, every process is a world of one rank.
void check_world(const mpi::Module& module, int world_rank, int highest_rank) {
  if (module.world_size() > highest_rank && module.world_rank() == world_rank) return;
  throw ConfigError(
      join_message("engine mpi: ", module.library(), " says that this is rank ",
                   module.world_rank(), " of ", module.world_size(), ", expected rank ", world_rank,
                   " of ", highest_rank + 1, " or more"),
      "start the program by the mpirun of the MPI that Trireme was built with, or by srun with the "
      "--mpi plug-in that it supports (srun --mpi=list)");
}

c10::intrusive_ptr<c10d::Backend> connect_mpi(const EngineContext& context) {
  mpi::Module& module = mpi::load_module();
  mpi::check_launcher(module.family(), Environment::of_process());
  const std::vector<int>& world_ranks = context.world_ranks;
  rendezvous(context);
  mpi::Progress& progress = mpi::Progress::of(module);
  auto communicator = progress.exclusively([&] {
    module.begin();
    check_world(module, world_ranks[static_cast<std::size_t>(context.rank)],
                *std::ranges::max_element(world_ranks));
    return module.connect(world_ranks);
  });
  return c10::make_intrusive<AdapterBackend>(
      std::make_shared<mpi::MpiConnection>(
          std::make_shared<mpi::Connection>(progress, std::move(communicator)), context.rank,
          context.size),
      context.timeout);
}

}  // namespace

Engine mpi_engine() {
  return {.name = "mpi",
          .scope = Scope::kAnyHosts,
          .unavailable_because = mpi::why_module_is_missing,
          .connect = connect_mpi,
          // MPI chooses an algorithm by size. With two ranks the order does not matter, because
          // addition commutes.
          .summation_order = [](const EngineContext& context) {
            return context.size <= 2 ? SummationOrder::kRank : SummationOrder::kUnspecified;
          }};
}

}  // namespace trireme::comm
