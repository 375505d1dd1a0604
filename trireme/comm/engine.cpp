// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engine.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/format_ranks.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/gloo/gloo.h>
#include <trireme/comm/hierarchy/hierarchy.h>
#include <trireme/comm/monitor/watchdog.h>
#include <trireme/comm/mpi/mpi.h>
#include <trireme/comm/nccl/nccl.h>
#include <trireme/comm/shm_backend/shm.h>
#include <trireme/launch/store/torch_log_silencer.h>

#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <array>

namespace trireme::comm {
namespace {

// LibTorch's Gloo is built from another checkout than the headers we compile against; a mismatch
// must show here, not in the gradients.
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

std::string unsuitable_because(const Engine& engine, bool one_host) {
  if (engine.scope == Scope::kOneHost && !one_host) return "the ranks are on several hosts";
  if (engine.scope == Scope::kSeveralHosts && one_host) return "all ranks are on one host";
  return engine.unavailable_because();
}

}  // namespace

bool EngineContext::is_one_host() const {
  return std::all_of(machines.begin(), machines.end(),
                     [&](const std::string& machine) { return machine == machines.front(); });
}

int EngineContext::world_rank_of(int group_rank) const {
  return world_ranks.empty() ? group_rank : world_ranks[static_cast<std::size_t>(group_rank)];
}

std::span<const Engine> engines() {
  static const std::array all = {shm_engine(), hierarchical_engine(), gloo_engine(), mpi_engine(),
                                 nccl_engine()};
  return all;
}

const Engine& choose_engine(std::string_view name, bool one_host) {
  std::string reasons;
  for (const Engine& engine : engines()) {
    if (name != "auto" && name != engine.name) {
      reasons += join_message("\n    ", engine.name);
      continue;
    }
    const std::string reason = unsuitable_because(engine, one_host);
    if (reason.empty()) return engine;
    reasons += join_message("\n    ", engine.name, ": ", reason);
  }
  throw ConfigError(
      join_message("no communication engine '", name, "'; this build knows:", reasons),
      "choose one of them by TRIREME_ENGINE or InitOptions::engine; `trireme doctor` shows which "
      "work here");
}

void check_engine_name(std::string_view name) {
  std::string names = "auto";
  for (const Engine& known : engines()) {
    if (name == known.name) return;
    names += join_message(", ", known.name);
  }
  if (name == "auto") return;
  throw ConfigError(
      join_message("no communication engine '", name, "', expected one of ", names),
      "correct TRIREME_ENGINE, TRIREME_ENGINE_ACROSS or InitOptions::engine, or leave "
      "it out");
}

Group connect(const Engine& engine, const EngineContext& context) {
  const launch::TorchLogSilencer quiet;
  // It answers those that are done before this rank; shared memory needs no answers.
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

}  // namespace trireme::comm
