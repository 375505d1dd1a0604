// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/group.h>

#include <trireme/base/error.h>
#include <trireme/base/format_ranks.h>
#include <trireme/comm/adapter/adapter_backend.h>
#include <trireme/comm/device_monitor.h>
#include <trireme/comm/engine.h>
#include <trireme/comm/engines/shm/shm_connection.h>
#include <trireme/comm/engines/shm/shm_engine.h>
#include <trireme/comm/monitor/dump.h>
#include <trireme/comm/monitor/failure_report.h>
#include <trireme/comm/monitor/flight_recorder.h>
#include <trireme/comm/monitor/termination.h>
#include <trireme/comm/monitor/watchdog.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <set>

namespace trireme::comm {

struct Group::State {
  ~State();
  FlightRecorder::Place place() const {
    return shared_memory == nullptr ? recorder.place() : place_in(shared_memory->member());
  }

  c10::intrusive_ptr<c10d::Backend> backend;
  EngineConnection* connection = nullptr;  // both pointers live as long as the backend
  shm::Communicator* shared_memory = nullptr;
  bool is_empty = false;
  Engine engine = {};
  EngineContext context = {.store = {}, .rank = 0, .size = 1, .group_name = "self"};
  SummationOrder order = SummationOrder::kRank;
  std::optional<Group> device_carrier;  // carries tensors on accelerators; nothing: staged
  // Relaxed order is enough: collectives of one group start on one thread at a time, and the
  // numbers only label them.
  std::atomic<std::uint64_t> sequence_number{0};
  std::atomic<std::uint64_t> message_number{0};
  std::atomic<std::uint64_t> num_subgroups{0};
  FlightRecorder recorder;
  std::optional<Watchdog::Group> watched;  // followed by context.watch
  const pid_t process = ::getpid();        // the process that made the group
  // Last, so that its thread ends first. For an engine for accelerators only.
  std::optional<DeviceMonitor> monitor;
};

namespace {

// The groups of this process that write a dump when SIGTERM ends it. Never destroyed, because
// groups may outlive static objects.
struct Dumped {
  std::mutex mutex;
  std::set<const void*> groups;
};

Dumped& dumped() {
  static Dumped& all = *new Dumped;
  return all;
}

}  // namespace

Group::State::~State() {
  monitor.reset();
  // Only groups that dump are in the list. A forked child must not lock: another thread of the
  // parent may have held the lock during the fork. It has no thread that writes dumps either.
  if (!context.dump_folder.empty() && ::getpid() == process) {
    const std::lock_guard lock(dumped().mutex);
    dumped().groups.erase(this);
  }
  if (watched) context.watch->forget(*watched);
}

// All empty groups share one state, because every owner of a group begins with an empty one. Never
// destroyed.
Group::Group() {
  static const std::shared_ptr<State>& empty = *[] {
    auto* state = new std::shared_ptr<State>(std::make_shared<State>());
    (*state)->is_empty = true;
    return state;
  }();
  state_ = empty;
}

Group Group::self() {
  Group group;
  group.state_ = std::make_shared<State>();
  return group;
}

Group::Group(c10::intrusive_ptr<c10d::Backend> backend, const Engine& engine,
             const EngineContext& context)
    : Group(self()) {
  state_->engine = engine;
  state_->context = context;
  state_->order = engine.summation_order(context);
  if (const auto* adapter = dynamic_cast<const AdapterBackend*>(backend.get())) {
    state_->connection = &adapter->connection();
  }
  if (const auto* shared = dynamic_cast<const ShmConnection*>(state_->connection)) {
    state_->shared_memory = &shared->communicator();
  }
  state_->backend = std::move(backend);
  if (context.watch != nullptr) {
    const bool is_shared = state_->shared_memory != nullptr;
    Watchdog::Group& watched = state_->watched.emplace(
        Watchdog::Group{.name = context.group_name,
                        .rank = context.rank,
                        .world_ranks = {},
                        .place = [state = state_.get()] { return state->place(); },
                        .engine_names_late_ranks = is_shared});
    for (int rank = 0; rank < context.size; ++rank) {
      watched.world_ranks.push_back(context.world_rank_of(rank));
    }
    context.watch->follow(watched);
  }
  if (engine.device != at::kCPU) {
    state_->monitor.emplace(
        context.timeout,
        DeviceMonitor::Callbacks{
            .on_end = [state = state_.get()](auto serial) { state->recorder.end(serial); },
            .find_failure = [group = unowned()] { return group.find_ended_rank(); },
            .abort = [group = unowned()](const auto& reason) { group.abort(reason); }});
  }
  if (!context.dump_folder.empty()) {
    const std::lock_guard lock(dumped().mutex);
    dumped().groups.insert(state_.get());
    dump_at_termination(dump_all);
  }
}

void Group::set_device_carrier(const Group& carrier) { state_->device_carrier = carrier; }

const Group& Group::carrier(at::DeviceType device) const noexcept {
  return device != at::kCPU && state_->device_carrier ? *state_->device_carrier : *this;
}

bool Group::stages(at::DeviceType device) const noexcept {
  if (device == at::kCPU || state_->context.size == 1 || state_->device_carrier) return false;
  if (state_->connection != nullptr) return state_->connection->form() != TensorForm::kAny;
  return state_->engine.device != device;
}

bool Group::is_empty() const noexcept { return state_->is_empty; }
int Group::rank() const noexcept { return state_->context.rank; }
int Group::size() const noexcept { return state_->context.size; }
const std::string& Group::name() const noexcept { return state_->context.group_name; }
std::string Group::engine() const {
  return state_->backend ? state_->backend->getBackendName() : "none";
}
SummationOrder Group::summation_order() const noexcept { return state_->order; }
std::chrono::milliseconds Group::timeout() const noexcept { return state_->context.timeout; }
const c10::intrusive_ptr<c10d::Backend>& Group::backend() const noexcept { return state_->backend; }
EngineConnection* Group::connection() const noexcept { return state_->connection; }
void Group::abort(const std::string& reason) const {
  if (state_->device_carrier) state_->device_carrier->abort(reason);
  if (state_->connection != nullptr) {
    state_->connection->abort(reason);
  } else if (state_->backend) {
    state_->backend->abort();
  }
}
DeviceMonitor* Group::device_monitor() const noexcept {
  return state_->monitor ? &*state_->monitor : nullptr;
}

Group Group::unowned() const {
  Group group;
  group.state_ = std::shared_ptr<State>(std::shared_ptr<void>(), state_.get());
  return group;
}

std::string Group::find_ended_rank() const {
  const EngineContext& context = state_->context;
  for (int rank = 0; context.watch != nullptr && rank < context.size; ++rank) {
    if (rank == context.rank) continue;
    const Finding found = context.watch->look_at(context.world_rank_of(rank));
    if (found.fate == RankStatus::kEnded) {
      return join_message(format_ranks({&rank, 1}, context.world_ranks), " ", found.text);
    }
  }
  return "";
}

shm::Communicator* Group::shared_memory() const noexcept { return state_->shared_memory; }
std::uint64_t Group::next_sequence_number() const noexcept {
  return state_->sequence_number.fetch_add(1, std::memory_order_relaxed) + 1;
}
std::uint64_t Group::next_message_number() const noexcept {
  return state_->message_number.fetch_add(1, std::memory_order_relaxed) + 1;
}

FlightRecorder& Group::recorder() const noexcept { return state_->recorder; }

bool Group::is_watched() const noexcept {
  return state_->watched && !state_->watched->engine_names_late_ranks;
}

void Group::dump(const State& state, const std::string& error) {
  const EngineContext& context = state.context;
  if (context.dump_folder.empty()) return;
  if (state.shared_memory != nullptr) {
    const shm::Member& member = state.shared_memory->member();
    if (member.options().on_failure) member.options().on_failure(member, error);
    return;
  }
  write_dump(context.dump_folder, {.group = context.group_name,
                                   .rank = context.rank,
                                   .size = context.size,
                                   .error = error,
                                   .operations = state.recorder.records()});
}

void Group::dump_all() {
  const std::lock_guard lock(dumped().mutex);
  for (const void* state : dumped().groups) {
    dump(*static_cast<const State*>(state), "ended by SIGTERM");
  }
}

void Group::dump(const std::string& error) const { dump(*state_, error); }

FailureReport Group::report_failure(const std::string& error, std::uint64_t number) const {
  const EngineContext& context = state_->context;
  const std::vector<OperationRecord> records = state_->recorder.records();
  dump(error);
  constexpr std::chrono::seconds kPatience{2};
  const std::string own =
      records.empty() ? std::string("nothing yet")
                      : join_message(records.back().finished.count() == 0 ? "is in " : "has done ",
                                     describe(records.back()));
  if (state_->watched) context.watch->read_answers(*state_->watched);
  const bool can_ask = context.watch == nullptr || context.watch->can_ask();
  // A message involves two ranks only. What other ranks do is not the reason for its failure.
  const auto waiting = state_->recorder.place().waiting;
  const int peer = number == 0 && waiting ? waiting->peer : -1;
  return exchange_last_operations(
      can_ask ? context.store.get() : nullptr, context.rank, context.size, context.world_ranks, own,
      kPatience, [&](int rank) {
        Finding found =
            state_->watched ? context.watch->look_at(*state_->watched, rank, number) : Finding();
        if (peer >= 0 && rank != peer) found.fate = RankStatus::kArrived;
        return found;
      });
}

Group Group::subgroup(std::span<const int> ranks) const {
  check_given(*this, "subgroup");
  const EngineContext& all = state_->context;
  const std::uint64_t number = ++state_->num_subgroups;
  EngineContext context = all;
  context.group_name = join_message(all.group_name, "/", number);
  context.rank = -1;
  context.size = static_cast<int>(ranks.size());
  context.world_ranks.clear();
  context.machines.clear();
  context.devices.clear();
  for (std::size_t index = 0; index < ranks.size(); ++index) {
    const int rank = ranks[index];
    if (rank < 0 || rank >= all.size ||
        std::find(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(index), rank) !=
            ranks.begin() + static_cast<std::ptrdiff_t>(index)) {
      throw UsageError(join_message("subgroup with rank ", rank, " of group '", all.group_name,
                                    "', which has ranks 0 to ", all.size - 1),
                       "name each rank once, and only ranks of the group");
    }
    if (rank == all.rank) context.rank = static_cast<int>(index);
    const auto at = static_cast<std::size_t>(rank);
    context.world_ranks.push_back(all.world_ranks.empty() ? rank : all.world_ranks[at]);
    if (!all.machines.empty()) context.machines.push_back(all.machines[at]);
    if (!all.devices.empty()) context.devices.push_back(all.devices[at]);
  }
  if (ranks.empty()) {
    throw UsageError("subgroup without ranks", "name at least one rank");
  }
  if (context.rank < 0 || context.size == 1) {
    Group group = self();
    group.state_->context = std::move(context);
    return group;
  }
  context.store =
      c10::make_intrusive<c10d::PrefixStore>(join_message("subgroup/", number), all.store);
  // The engine of this group may not fit the new one: an engine for several hosts may not work on
  // one host, and the other way round.
  const bool one_host = context.is_one_host();
  const bool fits = (state_->engine.scope != Scope::kOneHost || one_host) &&
                    (state_->engine.scope != Scope::kSeveralHosts || !one_host);
  return connect(fits ? state_->engine : choose_engine("auto", one_host), context);
}

void check_given(const Group& group, std::string_view user) {
  if (!group.is_empty()) return;
  throw UsageError(
      join_message(user, " was given an empty group"),
      "pass world.group of `auto world = trireme::init();`, or comm::Group::self() for "
      "this process alone");
}

}  // namespace trireme::comm
