// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engine.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/format_ranks.h>
#include <trireme/comm/adapter/data_encryption.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/engines/gloo/gloo.h>
#include <trireme/comm/engines/hierarchy/hierarchy.h>
#include <trireme/comm/engines/mpi/mpi.h>
#include <trireme/comm/engines/nccl/nccl.h>
#include <trireme/comm/engines/shm/shm_engine.h>
#include <trireme/comm/monitor/watchdog.h>
#include <trireme/launch/store/torch_log_silencer.h>

#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <array>

namespace trireme::comm {
namespace {

// The Gloo in LibTorch may be built from another revision than the headers we compile against. This
// detects a mismatch before it corrupts gradients.
void prove(const Group& group, at::DeviceType device) {
  const at::Tensor sum = at::full({1}, group.rank() + 1, at::TensorOptions(device).dtype(at::kInt));
  all_reduce(sum, group);
  const int expected = group.size() * (group.size() + 1) / 2;
  const int got = sum.item<int>();
  if (got != expected) {
    throw CommError(join_message("engine ", group.engine(), " adds wrongly: the ranks 1 to ",
                                 group.size(), " sum to ", expected, ", it says ", got),
                    "the engine does not fit this LibTorch; `trireme doctor` tells more");
  }
}

}  // namespace

std::span<const Engine> engines() {
  static const std::array all = {shm_engine(), hierarchical_engine(), gloo_engine(), mpi_engine(),
                                 nccl_engine()};
  return all;
}

namespace {

Group connect_one(const Engine& engine, const EngineContext& context) {
  if (!engine.has_other_ranks) return {engine.connect(context), engine, context};
  check_encryption(engine);
  const launch::TorchLogSilencer quiet;
  // The watchdog must answer ranks that finish connecting before this one. Shared memory needs no
  // answers.
  if (context.watch != nullptr && engine.scope != Scope::kOneHost) context.watch->start();
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = engine.connect(context);
  } catch (const std::exception& failure) {
    if (dynamic_cast<const Error*>(&failure) != nullptr) throw;
    const std::string place =
        join_message("engine ", engine.name, " could not connect rank ", context.rank, " of ",
                     context.size, " of group '", context.group_name, "' within ",
                     static_cast<double>(context.timeout.count()) / 1000, " s: ");
    const std::string cause = message_of(failure);
    for (int rank = 0; context.watch != nullptr && rank < context.size; ++rank) {
      const Finding found = context.watch->look_at(context.world_rank_of(rank));
      if (rank == context.rank || found.fate > RankStatus::kStopped) continue;
      throw CommError(join_message(place, format_ranks({&rank, 1}, context.world_ranks), " ",
                                   found.text, " (the engine says: ", cause, ")"),
                      found.fate == RankStatus::kStopped
                          ? "let it go on (kill -CONT), or end the run"
                          : "its own log or exit status says why",
                      {.rank = context.rank, .peer = rank, .operation = "connect"});
    }
    throw CommError(
        place + cause,
        "check that all ranks come here and reach each other; TRIREME_INTERFACE chooses "
        "the network interface");
  }
  Group group(std::move(backend), engine, context);
  prove(group, engine.device);
  return group;
}

}  // namespace

Group connect(const Engine& engine, const EngineContext& context) {
  Group group = connect_one(engine, context);
  if (context.device_engine == nullptr) return group;
  const Engine& device_engine = *context.device_engine;
  EngineContext on_devices = context;
  on_devices.device_engine = nullptr;
  on_devices.group_name = join_message(context.group_name, " (", device_engine.name, ")");
  on_devices.store = c10::make_intrusive<c10d::PrefixStore>("device", context.store);
  group.set_device_carrier(connect_one(device_engine, on_devices));
  return group;
}

}  // namespace trireme::comm
