// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/world.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/machine.h>
#include <trireme/base/warning.h>
#include <trireme/comm/engine.h>
#include <trireme/comm/engines/assumed/assumed.h>
#include <trireme/comm/engines/nccl/nccl.h>
#include <trireme/comm/monitor/watchdog.h>
#include <trireme/comm/tensor_memory.h>
#include <trireme/comm/torch_version.h>
#include <trireme/launch/launcher_environment.h>
#include <trireme/launch/network_interfaces.h>
#include <trireme/launch/store/rendezvous.h>
#include <trireme/launch/store/start_role.h>
#include <trireme/launch/store/store.h>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unistd.h>

#include <algorithm>
#include <mutex>

namespace trireme {
namespace {

// Returns the accelerator of the local rank and makes it current, or the CPU. Ranks share
// accelerators in turn if there are fewer.
at::Device take_device(int local_rank) {
  const std::optional<at::DeviceType> type = at::getAccelerator(/*checked=*/false);
  if (!type) return at::kCPU;
  const at::DeviceIndex devices = at::accelerator::deviceCount();
  if (devices == 0) return at::kCPU;
  const at::Device device(*type, static_cast<at::DeviceIndex>(local_rank % devices));
  c10::impl::getDeviceGuardImpl(*type)->setDevice(device);
  return device;
}

// What outlives a world. A program that has dropped all handles may call init again, and the ranks
// then meet over the same store. A forked child makes its own.
struct Run {
  c10::intrusive_ptr<c10d::Store> store;
  launch::Identity identity;
  pid_t process = 0;
  int rounds = 0;  // how often its ranks have met
};

// Destroys the run only in the process that made it. Otherwise a forked child that exits would
// count as a rank that has finished, and the last one deletes the file of a store.
class KeptRun {
 public:
  KeptRun() = default;
  ~KeptRun() {
    if (run.process != ::getpid()) static_cast<void>(run.store.release());
  }
  KeptRun(const KeptRun&) = delete;
  KeptRun& operator=(const KeptRun&) = delete;

  Run run;
};

bool is_same_run(const launch::Identity& a, const launch::Identity& b) {
  return a.rank == b.rank && a.world_size == b.world_size && a.launcher == b.launcher &&
         a.master_address == b.master_address && a.master_port == b.master_port && a.job == b.job;
}

Run& join_run(const launch::Identity& identity, const Environment& environment,
              const Settings& settings) {
  static KeptRun kept;
  Run& run = kept.run;
  if (run.process == ::getpid() && is_same_run(run.identity, identity)) return run;
  if (run.process != ::getpid()) static_cast<void>(run.store.release());  // the parent's
  const auto attempt =
      environment.find_integer("TORCHELASTIC_RESTART_COUNT", 0, INT32_MAX).value_or(0);
  run = {};
  run = {.store = launch::make_store(identity, attempt, settings.timeout),
         .identity = identity,
         .process = ::getpid()};
  return run;
}

std::shared_ptr<comm::Watchdog> watch_over(const Run& run, const std::vector<launch::PeerInfo>& all,
                                           int round) {
  const launch::Identity& identity = run.identity;
  const launch::PeerInfo& own = all[static_cast<std::size_t>(identity.rank)];
  std::vector<comm::Watchdog::Rank> ranks;
  for (const launch::PeerInfo& entry : all) {
    ranks.push_back({.process = entry.process_id,
                     .host = entry.host,
                     .is_near = entry.machine == own.machine && !own.process_space.empty() &&
                                entry.process_space == own.process_space});
  }
  const bool rank_0_serves = (identity.master_address && !identity.launcher_hosts_store) ||
                             identity.local_world_size != identity.world_size;
  return std::make_shared<comm::Watchdog>(run.store, identity.rank, std::move(ranks),
                                          rank_0_serves ? 0 : -1, round);
}

// Tells the user that ranks compete for an accelerator. Said once, by the first of such ranks.
void warn_of_shared_devices(const comm::EngineContext& context, at::Device device) {
  const auto ranks = context.ranks_on_one_device();
  if (!ranks || ranks->first != context.rank) return;
  warn("ranks ", ranks->first, " and ", ranks->second, " share ", device, " of host ", host_name(),
       ": they compete for its memory and time",
       context.device_engine == nullptr
           ? ", and collectives of its tensors are copied through the memory of the host"
           : "",
       ". Start one rank for each accelerator to avoid that");
}

comm::Group connect_world(const launch::Identity& identity, const Environment& environment,
                          const Settings& settings, at::Device device) {
  Run& run = join_run(identity, environment, settings);
  const int round = run.rounds++;
  launch::PeerInfo own = launch::own_peer_info(identity);
  if (!device.is_cpu()) own.device = comm::identity_of(device);
  const auto all = launch::rendezvous(*run.store, identity, own, settings.timeout, round);
  comm::EngineContext context = {
      .store = c10::make_intrusive<c10d::PrefixStore>(join_message("world/", round), run.store),
      .rank = identity.rank,
      .size = identity.world_size,
      .group_name = "world",
      .interface = settings.interface,
      .engine_across = settings.engine_across,
      .leaders = settings.leaders,
      .dump_folder = settings.dump_folder,
      .cache_folder = settings.cache_folder,
      .timeout = settings.timeout,
      .watch = watch_over(run, all, round)};
  for (int rank = 0; rank < identity.world_size; ++rank) {
    context.world_ranks.push_back(rank);
    context.machines.push_back(all[static_cast<std::size_t>(rank)].machine);
    context.devices.push_back(all[static_cast<std::size_t>(rank)].device);
  }
  // Engines would bind to loopback where that is all that the name of the host leads to.
  if (context.interface.empty() && !context.is_one_host()) {
    context.interface = launch::interface_for_other_hosts(identity.master_address);
  }
  const auto names = comm::EngineNames::parse(settings.engine);
  context.device_engine = comm::choose_device_engine(names.device, context);
  warn_of_shared_devices(context, device);
  return comm::connect(comm::choose_engine(names.cpu, context.is_one_host()), context);
}

Settings settings_of(const InitOptions& options, const Environment& environment) {
  Settings settings = Settings::from(environment);
  settings.engine = options.engine.value_or(settings.engine);
  settings.timeout = options.timeout.value_or(settings.timeout);
  settings.tensor_memory = options.tensor_memory.value_or(settings.tensor_memory);
  if (settings.timeout <= std::chrono::milliseconds::zero()) {
    throw UsageError(join_message("init was given a timeout of ", settings.timeout.count(), " ms"),
                     "give more than 0; every blocking call has a deadline");
  }
  static_cast<void>(comm::EngineNames::parse(settings.engine));
  static_cast<void>(comm::EngineNames::parse("cpu:" + settings.engine_across));
  return settings;
}

// Checks the options of a call that is made while the world of an earlier call lives.
void check_same_options(const InitOptions& options, const Settings& earlier,
                        const comm::Group& group) {
  std::string differences;
  const auto compare = [&](const char* name, const auto& asked, const auto& has) {
    if (asked == has) return;
    differences +=
        join_message(differences.empty() ? "" : ", ", name, " ", asked, " where it has ", has);
  };
  if (options.engine && *options.engine != group.engine()) {
    compare("engine", *options.engine, earlier.engine);
  }
  if (options.timeout) compare("timeout (ms)", options.timeout->count(), earlier.timeout.count());
  if (options.tensor_memory) {
    compare("tensor_memory", *options.tensor_memory, earlier.tensor_memory);
  }
  if (differences.empty()) return;
  throw UsageError(
      join_message("init was called again, while the world of an earlier call lives, with other "
                   "options: ",
                   differences),
      "give the options in the first call; init() without options returns the same world. To "
      "connect anew, drop every World and Group first (hvd::shutdown())");
}

void (*after_predicted_world)() = nullptr;

// A world of ranks that are only assumed. Tensors are on the CPU, where they need no values.
void assume_world(const launch::Identity& identity, const Settings& settings, World& world) {
  world.device = at::kCPU;
  comm::EngineContext context = {.store = {},
                                 .rank = identity.rank,
                                 .size = identity.world_size,
                                 .group_name = "world",
                                 .timeout = settings.timeout};
  for (int rank = 0; rank < identity.world_size; ++rank) context.world_ranks.push_back(rank);
  if (identity.world_size > 1) world.group = comm::connect(comm::assumed_engine(), context);
  if (after_predicted_world != nullptr) after_predicted_world();
}

World make_world(const Environment& environment, const Settings& settings) {
  comm::check_torch_version();
  const launch::Identity identity = launch::read_identity(environment);
  comm::choose_tensor_memory(settings.tensor_memory);

  World world;
  world.rank = identity.rank;
  world.size = identity.world_size;
  world.local_rank = identity.local_rank;
  world.local_size = identity.local_world_size;
  world.host = host_name();
  world.launcher = identity.launcher;
  if (!settings.predict_folder.empty()) {
    assume_world(identity, settings, world);
    return world;
  }
  world.device = take_device(identity.local_rank);
  if (identity.world_size > 1)
    world.group = connect_world(identity, environment, settings, world.device);
  return world;
}

}  // namespace

World init(const InitOptions& options) {
  show_uncaught_exceptions();
  // The connection is remembered by a weak pointer only. So it closes when the program drops its
  // last handle, not after main.
  static std::mutex mutex;
  static World last;
  static Settings settings;
  static std::weak_ptr<comm::Group::State> connection;
  const std::lock_guard lock(mutex);
  if (auto state = connection.lock()) {
    World again = last;
    again.group.state_ = std::move(state);
    check_same_options(options, settings, again.group);
    return again;
  }
  const Environment environment = Environment::of_process();
  settings = settings_of(options, environment);
  launch::start_role(environment, settings.timeout);
  // A worker finds its rank in variables that start_role() has set.
  World world = make_world(Environment::of_process(), settings);
  connection = world.group.state_;
  last = world;
  last.group = {};
  return world;
}

bool on_predicted_world(void (*call)()) {
  after_predicted_world = call;
  return true;
}

comm::Group group_or_self(const comm::Group& group, std::string_view user) {
  if (!group.is_empty()) return group;
  const launch::Identity identity = launch::read_identity(Environment::of_process());
  if (identity.world_size > 1) {
    throw UsageError(join_message(user, " was given no group in rank ", identity.rank, " of ",
                                  identity.world_size, ", which ", identity.launcher,
                                  " has started: each rank would train alone"),
                     "give it world.group of `auto world = trireme::init();`, or "
                     "comm::Group::self() where each rank is to train alone");
  }
  return comm::Group::self();
}

}  // namespace trireme
