// SPDX-License-Identifier: Apache-2.0
#include <python/native/connect.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/comm/engine.h>
#include <trireme/comm/monitor/watchdog.h>
#include <trireme/comm/tensor_memory.h>
#include <trireme/comm/torch_version.h>
#include <trireme/launch/store/rendezvous.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <mutex>
#include <utility>

namespace trireme::python {
namespace {

using Peers = std::vector<launch::PeerInfo>;

// The key under which the Gloo of LibTorch publishes the address of a rank. A group has the same
// store whichever backend it gets.
std::string gloo_key(int rank) { return join_message("0/", rank); }

void look_for_gloo(c10d::Store& store, const std::vector<int>& missing, int rank) {
  for (const int other : missing) {
    if (!store.check({gloo_key(other)})) continue;
    throw ConfigError(
        join_message("rank ", other, " connects by PyTorch's Gloo, rank ", rank, " by Trireme"),
        "import trireme.torch in every rank before init_process_group, with the same "
        "TRIREME_REPLACE, or in none");
  }
}

// Returns how often this rank has connected over this store before. Groups that are destroyed and
// made again get the same store again.
int next_round(c10d::Store& store, int rank) {
  return static_cast<int>(store.add(join_message("trireme/rounds/", rank), 1)) - 1;
}

// Returns the watchdog of the world. Groups made later use it too, as long as the world lives.
std::shared_ptr<comm::Watchdog> watchdog_of(const GroupRequest& request,
                                            const c10::intrusive_ptr<c10d::Store>& store,
                                            const Peers& peers) {
  static std::mutex mutex;
  static std::weak_ptr<comm::Watchdog>& world = *new std::weak_ptr<comm::Watchdog>;
  const std::lock_guard lock(mutex);
  if (!request.world_ranks.empty()) return world.lock();
  const launch::PeerInfo& own = peers[static_cast<std::size_t>(request.rank)];
  std::vector<comm::Watchdog::Rank> ranks;
  for (const launch::PeerInfo& peer : peers) {
    ranks.push_back({.process = peer.process_id,
                     .host = peer.host,
                     .is_near = peer.machine == own.machine && !own.process_space.empty() &&
                                peer.process_space == own.process_space});
  }
  auto watch = std::make_shared<comm::Watchdog>(store, request.rank, std::move(ranks));
  world = watch;
  return watch;
}

}  // namespace

comm::Group connect_group(const GroupRequest& request) {
  comm::check_torch_version();
  const Settings settings = Settings::from(Environment::of_process());
  comm::choose_tensor_memory(settings.tensor_memory);  // for tensors that are made from now on
  const int round = next_round(*request.store, request.rank);
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>(join_message("trireme/", round, "/"), request.store);
  const launch::Identity identity = {.rank = request.rank, .world_size = request.size};
  const Peers peers = launch::rendezvous(
      *store, identity, launch::own_peer_info(identity), request.timeout, 0,
      {.call = request.call, .look_at_missing = [&](const std::vector<int>& missing) {
         look_for_gloo(*request.store, missing, request.rank);
       }});
  comm::EngineContext context = {.store = store,
                                 .rank = request.rank,
                                 .size = request.size,
                                 .group_name = request.name,
                                 .world_ranks = request.world_ranks,
                                 .interface = settings.interface,
                                 .engine_across = settings.engine_across,
                                 .leaders = settings.leaders,
                                 .dump_folder = settings.dump_folder,
                                 .cache_folder = settings.cache_folder,
                                 .timeout = request.timeout,
                                 .watch = watchdog_of(request, store, peers)};
  for (int rank = 0; rank < request.size; ++rank) {
    if (request.world_ranks.empty()) context.world_ranks.push_back(rank);
    context.machines.push_back(peers[static_cast<std::size_t>(rank)].machine);
  }
  const auto names = comm::EngineNames::parse(settings.engine);
  return comm::connect(comm::choose_engine(names.cpu, context.is_one_host()), context);
}

}  // namespace trireme::python
