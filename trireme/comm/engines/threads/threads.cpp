// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/threads/threads.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/adapter/adapter_backend.h>
#include <trireme/comm/engines/threads/group_state.h>
#include <trireme/comm/engines/threads/threads_connection.h>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace trireme::comm {
namespace {

using threads::GroupState;

// The groups of this process, by the number that rank 0 writes into the store.
class GroupStates {
 public:
  std::uint64_t add(const std::shared_ptr<GroupState>& state) {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
    groups_[++last_] = state;
    return last_;
  }
  std::shared_ptr<GroupState> find(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = groups_.find(number);
    return found == groups_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<GroupState>> groups_;
  std::uint64_t last_ = 0;
};

GroupStates& groups_of_process() {
  static GroupStates groups;
  return groups;
}

// Returns a name for this process. Process identifiers are unique within a host or container only,
// so a random number is added.
std::string process_name() {
  static const std::uint64_t chance = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
  }();
  return join_message(::getpid(), " (", std::hex, chance, ")");
}

// Every rank writes its process, so that all of them notice if one is in another process.
void check_processes(const EngineContext& context) {
  const auto key = [](int rank) { return join_message("threads/process/", rank); };
  const std::string own = process_name();
  context.store->set(key(context.rank), own);
  std::vector<std::string> keys;
  for (int rank = 0; rank < context.size; ++rank) keys.push_back(key(rank));
  context.store->wait(keys, context.timeout);
  const std::string first = context.store->get_to_str(key(0));
  for (int rank = 1; rank < context.size; ++rank) {
    const std::string other = context.store->get_to_str(key(rank));
    if (other == first) continue;
    throw ConfigError(join_message("engine threads: rank ", rank, " of '", context.group_name,
                                   "' is in process ", other, ", rank 0 in process ", first,
                                   "; its ranks are threads of one process"),
                      "take engine shm or gloo between processes");
  }
}

c10::intrusive_ptr<c10d::Backend> connect_threads(const EngineContext& context) {
  check_processes(context);
  const std::string key = "threads/group";
  std::shared_ptr<GroupState> state;
  if (context.rank == 0) {
    state = std::make_shared<GroupState>(context.group_name, context.size, context.world_ranks);
    context.store->set(key, std::to_string(groups_of_process().add(state)));
  } else {
    context.store->wait({key}, context.timeout);
    state = groups_of_process().find(
        parse_number<std::uint64_t>(context.store->get_to_str(key)).value());
  }
  if (!state) {
    throw CommError(join_message("rank 0 of '", context.group_name, "' has left before rank ",
                                 context.rank, " could connect"),
                    "its own message says why");
  }
  return c10::make_intrusive<AdapterBackend>(
      std::make_shared<ThreadsConnection>(std::move(state), context.rank, context.size),
      context.timeout);
}

}  // namespace

Engine threads_engine() {
  return {.name = "threads",
          .scope = Scope::kOneHost,
          .unavailable_because = []() -> std::string { return ""; },
          .connect = connect_threads,
          .summation_order = [](const EngineContext&) { return SummationOrder::kRank; }};
}

}  // namespace trireme::comm
