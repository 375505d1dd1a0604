// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/group.h>

#include <trireme/base/error.h>
#include <trireme/comm/engine.h>
#include <trireme/comm/monitor/dump.h>
#include <trireme/comm/monitor/failure_report.h>
#include <trireme/comm/monitor/recorder.h>
#include <trireme/comm/shm_backend/shared_memory_backend.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>

namespace trireme::comm {

struct Group::State {
  c10::intrusive_ptr<c10d::Backend> backend;
  shm::Communicator* shared_memory = nullptr;  // lives as long as the backend
  Engine engine = {};
  EngineContext context = {.store = {}, .rank = 0, .size = 1, .group_name = "self"};
  SummationOrder order = SummationOrder::kRank;
  // Relaxed is enough: collectives of one group start on one thread at a time, and the numbers only
  // label them.
  std::atomic<std::uint64_t> sequence_number{0};
  std::atomic<std::uint64_t> num_subgroups{0};
  Recorder recorder;
};

Group::Group() : state_(std::make_shared<State>()) {}

Group::Group(c10::intrusive_ptr<c10d::Backend> backend, const Engine& engine,
             const EngineContext& context)
    : Group() {
  state_->engine = engine;
  state_->context = context;
  state_->order = engine.summation_order(context);
  if (const auto* shared = dynamic_cast<const SharedMemoryBackend*>(backend.get())) {
    state_->shared_memory = shared->communicator().get();
  }
  state_->backend = std::move(backend);
}

int Group::rank() const noexcept { return state_->context.rank; }
int Group::size() const noexcept { return state_->context.size; }
const std::string& Group::name() const noexcept { return state_->context.group_name; }
std::string Group::engine() const {
  return state_->backend ? state_->backend->getBackendName() : "none";
}
SummationOrder Group::summation_order() const noexcept { return state_->order; }
std::chrono::milliseconds Group::timeout() const noexcept { return state_->context.timeout; }
const c10::intrusive_ptr<c10d::Backend>& Group::backend() const noexcept { return state_->backend; }
shm::Communicator* Group::shared_memory() const noexcept { return state_->shared_memory; }
std::uint64_t Group::next_sequence_number() const noexcept {
  return state_->sequence_number.fetch_add(1, std::memory_order_relaxed) + 1;
}

Recorder& Group::recorder() const noexcept { return state_->recorder; }

void Group::dump(const std::string& error) const {
  const EngineContext& context = state_->context;
  if (context.dump_folder.empty()) return;
  write_dump(context.dump_folder, {.group = context.group_name,
                                   .rank = context.rank,
                                   .size = context.size,
                                   .error = error,
                                   .operations = state_->recorder.records()});
}

std::string Group::report_failure(const std::string& error) const {
  const EngineContext& context = state_->context;
  const std::vector<OperationRecord> records = state_->recorder.records();
  dump(error);
  constexpr std::chrono::seconds kPatience{2};
  const std::string own =
      records.empty() ? std::string("nothing yet")
                      : join_message(records.back().finished.count() == 0 ? "is in " : "has done ",
                                     describe(records.back()));
  return exchange_last_operations(*context.store, context.rank, context.size, context.world_ranks,
                                  own, kPatience);
}

Group Group::subgroup(std::span<const int> ranks) const {
  const EngineContext& all = state_->context;
  const std::uint64_t number = ++state_->num_subgroups;
  EngineContext context = all;
  context.group_name = join_message(all.group_name, "/", number);
  context.rank = -1;
  context.size = static_cast<int>(ranks.size());
  context.world_ranks.clear();
  context.machines.clear();
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
  }
  if (ranks.empty()) {
    throw UsageError("subgroup without ranks", "name at least one rank");
  }
  if (context.rank < 0 || context.size == 1) {
    Group group;
    group.state_->context = std::move(context);
    return group;
  }
  context.store =
      c10::make_intrusive<c10d::PrefixStore>(join_message("subgroup/", number), all.store);
  // An engine for several hosts may be out of place inside one, and the other way round.
  const bool one_host = context.is_one_host();
  const bool fits = (state_->engine.scope != Scope::kOneHost || one_host) &&
                    (state_->engine.scope != Scope::kSeveralHosts || !one_host);
  return connect(fits ? state_->engine : choose_engine("auto", one_host), context);
}

}  // namespace trireme::comm
