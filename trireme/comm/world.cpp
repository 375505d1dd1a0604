// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/world.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/comm/engine.h>
#include <trireme/comm/tensor_memory.h>
#include <trireme/comm/torch_version.h>
#include <trireme/launch/launcher_environment.h>
#include <trireme/launch/store/rendezvous.h>
#include <trireme/launch/store/store.h>

#include <ATen/Context.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <mutex>

namespace trireme {
namespace {

at::Device take_device(int local_rank) {
  const auto devices = static_cast<int>(at::getNumGPUs());
  if (devices == 0) return at::kCPU;
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(local_rank % devices));
  c10::impl::getDeviceGuardImpl(at::kCUDA)->setDevice(device);
  return device;
}

comm::Group connect_world(const launch::Identity& identity, const Environment& environment,
                          const Settings& settings) {
  const auto attempt =
      environment.find_integer("TORCHELASTIC_RESTART_COUNT", 0, INT32_MAX).value_or(0);
  const auto store = launch::make_store(identity, attempt, settings.timeout);
  const auto all =
      launch::meet(*store, identity, launch::own_attendance(identity), settings.timeout);
  comm::EngineContext context = {.store = c10::make_intrusive<c10d::PrefixStore>("world", store),
                                 .rank = identity.rank,
                                 .size = identity.world_size,
                                 .group_name = "world",
                                 .interface = settings.interface,
                                 .engine_across = settings.engine_across,
                                 .leaders = settings.leaders,
                                 .dump_folder = settings.dump_folder,
                                 .cache_folder = settings.cache_folder,
                                 .timeout = settings.timeout};
  for (int rank = 0; rank < identity.world_size; ++rank) {
    context.world_ranks.push_back(rank);
    context.machines.push_back(all[static_cast<std::size_t>(rank)].machine);
  }
  return comm::connect(comm::choose_engine(settings.engine, context.is_one_host()), context);
}

World make_world(const InitOptions& options) {
  comm::check_torch_version();
  const Environment environment = Environment::of_process();
  Settings settings = Settings::from(environment);
  settings.engine = options.engine.value_or(settings.engine);
  settings.timeout = options.timeout.value_or(settings.timeout);
  if (settings.timeout <= std::chrono::milliseconds::zero()) {
    throw UsageError(join_message("init was given a timeout of ", settings.timeout.count(), " ms"),
                     "give more than 0; every blocking call has a deadline");
  }
  const launch::Identity identity = launch::read_identity(environment);
  comm::choose_tensor_memory(options.tensor_memory.value_or(settings.tensor_memory));

  World world;
  world.rank = identity.rank;
  world.size = identity.world_size;
  world.local_rank = identity.local_rank;
  world.local_size = identity.local_world_size;
  world.host = host_name();
  world.launcher = identity.launcher;
  world.device = take_device(identity.local_rank);
  if (identity.world_size > 1) world.group = connect_world(identity, environment, settings);
  return world;
}

}  // namespace

World init(const InitOptions& options) {
  // The connection itself is remembered weakly: it closes when the program drops its last handle,
  // not after main.
  static std::mutex mutex;
  static World last;
  static std::weak_ptr<comm::Group::State> connection;
  const std::lock_guard lock(mutex);
  if (auto state = connection.lock()) {
    World again = last;
    again.group.state_ = std::move(state);
    return again;
  }
  World world = make_world(options);
  connection = world.group.state_;
  last = world;
  last.group = {};
  return world;
}

}  // namespace trireme
