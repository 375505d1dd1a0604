// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/threads/threads.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/threads/room.h>
#include <trireme/comm/threads/threads_backend.h>

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

using threads::Room;

// The rooms of this process, by the number that rank 0 writes into the store.
class Rooms {
 public:
  std::uint64_t add(const std::shared_ptr<Room>& room) {
    const std::lock_guard lock(mutex_);
    std::erase_if(rooms_, [](const auto& entry) { return entry.second.expired(); });
    rooms_[++last_] = room;
    return last_;
  }
  std::shared_ptr<Room> find(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = rooms_.find(number);
    return found == rooms_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<Room>> rooms_;
  std::uint64_t last_ = 0;
};

Rooms& rooms_of_process() {
  static Rooms rooms;
  return rooms;
}

// Process identifiers are those of a host or container; two with the same one differ by chance.
std::string process_name() {
  static const std::uint64_t chance = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
  }();
  return join_message(::getpid(), " (", std::hex, chance, ")");
}

// Written by every rank, so that all of them see whether one is elsewhere.
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
  const std::string key = "threads/room";
  std::shared_ptr<Room> room;
  if (context.rank == 0) {
    room = std::make_shared<Room>(context.group_name, context.size, context.world_ranks);
    context.store->set(key, std::to_string(rooms_of_process().add(room)));
  } else {
    context.store->wait({key}, context.timeout);
    room = rooms_of_process().find(
        parse_number<std::uint64_t>(context.store->get_to_str(key)).value());
  }
  if (!room) {
    throw CommError(join_message("rank 0 of '", context.group_name, "' has left before rank ",
                                 context.rank, " could connect"),
                    "its own message says why");
  }
  return c10::make_intrusive<ThreadsBackend>(std::move(room), context.rank, context.size,
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
