// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/shm_engine.h>

#include <trireme/comm/adapter/adapter_backend.h>
#include <trireme/comm/engines/shm/shm_connection.h>
#include <trireme/comm/monitor/dump.h>
#include <trireme/comm/monitor/watchdog.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace trireme::comm {
namespace {

class C10dRendezvousStore final : public shm::RendezvousStore {
 public:
  C10dRendezvousStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout)
      : store_(std::move(store)), timeout_(timeout) {}
  void set(const std::string& key, const std::string& value) override {
    store_->set("shm/" + key, value);
  }
  std::string get(const std::string& key) override {
    store_->wait({"shm/" + key}, timeout_);
    return store_->get_to_str("shm/" + key);
  }
  bool has(const std::string& key) override { return store_->check({"shm/" + key}); }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
};

std::vector<OperationRecord> records_of(const shm::Member& member, int rank) {
  std::vector<OperationRecord> records;
  for (const shm::RecordedOperation& recorded : member.recorded(rank)) {
    const shm::Kind kind = recorded.operation.kind;
    records.push_back({.number = recorded.operation.sequence,
                       .is_collective = kind != shm::Kind::kSend && kind != shm::Kind::kReceive,
                       .what = shm::describe(recorded.operation),
                       .label = recorded.label,
                       .started = recorded.started,
                       .finished = recorded.finished});
  }
  return records;
}

c10::intrusive_ptr<c10d::Backend> connect_shm(const EngineContext& context) {
  C10dRendezvousStore store(context.store, context.timeout);
  shm::Options options;
  options.name = context.group_name;
  options.world_ranks = context.world_ranks;
  options.timeout = context.timeout;
  options.cache_folder = context.cache_folder;
  if (context.watch) {
    options.look_at = [context](int rank) {
      const Finding found = context.watch->look_at(context.world_rank_of(rank));
      return found.fate <= RankStatus::kStopped ? found.text : std::string();
    };
  }
  if (!context.dump_folder.empty()) {
    // The records of all ranks are in shared memory. Each surviving rank writes all of them, so
    // that those of a killed rank are included.
    options.on_failure = [folder = context.dump_folder](const shm::Member& member,
                                                        const std::string& error) {
      for (int rank = 0; rank < member.size(); ++rank) {
        write_dump(folder, {.group = member.options().name,
                            .rank = rank,
                            .size = member.size(),
                            .error = error,
                            .operations = records_of(member, rank)});
      }
    };
  }
  return c10::make_intrusive<AdapterBackend>(
      std::make_shared<ShmConnection>(shm::Communicator::connect(
          context.rank, context.size, store, std::move(options), shm::SharedPages::of_process())),
      context.timeout);
}

}  // namespace

FlightRecorder::Place place_in(const shm::Member& member) {
  FlightRecorder::Place place;
  for (OperationRecord& record : records_of(member, member.rank())) {
    if (record.is_collective) place.last_collective = record.number;
    place.last = describe(record);
    if (place.waiting || record.finished.count() != 0) continue;
    place.waiting = {.operation = std::move(record), .peer = -1, .serial = 0, .since = {}};
  }
  return place;
}

Engine shm_engine() {
  return {.name = "shm",
          .scope = Scope::kOneHost,
          .unavailable_because = []() -> std::string { return ""; },
          .connect = connect_shm,
          .summation_order = [](const EngineContext&) { return SummationOrder::kRank; }};
}

}  // namespace trireme::comm
