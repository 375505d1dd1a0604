// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/worker_control.h>

#include <utility>

namespace trireme::launch {

RunPlace place_of(const WorkerConnection& connection) {
  const Assignment& place = connection.place();
  return {.first_rank = place.first_rank,
          .world_size = place.world_size,
          .first_local_rank = place.first_local_rank,
          .local_world_size = place.local_world_size,
          .node_rank = place.node_rank,
          .nodes = place.nodes,
          .store_address = connection.scheduler().host,
          .store_port = place.store_port,
          .run_id = place.run_id,
          .secret = place.secret,
          .restart = place.restart,
          .restarts = place.restarts};
}

WorkerControl::WorkerControl(WorkerConnection connection) : connection_(std::move(connection)) {}

std::optional<StopOrder> WorkerControl::receive() {
  const auto request = connection_.receive();
  if (!request) return std::nullopt;
  return StopOrder{.reason = request->reason, .code = request->code, .restarts = request->restarts};
}

void WorkerControl::rank_ended(const EndedRank& rank) {
  connection_.say_ended({.rank = rank.rank,
                         .process = rank.process,
                         .code = rank.code,
                         .how = rank.how,
                         .log = rank.log,
                         .report = rank.report});
}

}  // namespace trireme::launch
