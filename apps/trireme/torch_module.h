// SPDX-License-Identifier: Apache-2.0
// What the shared object with LibTorch exports to the program. Both are built together, so that C++
// types may pass.
#pragma once

#include <trireme/launch/run/run.h>

#include <apps/trireme/checkpoint_tools.h>
#include <apps/trireme/comm_benchmark.h>

extern "C" {
/// Fills `observer`, which keeps the store until it is destroyed. Throws ConfigError.
__attribute__((visibility("default"))) void trireme_host_store(
    trireme::UniqueFd& listening_socket, int port, trireme::launch::ExitObserver& observer);
/// See doctor in torch_parts.h.
__attribute__((visibility("default"))) int trireme_doctor(bool as_rank);
/// See measure_collective in comm_benchmark.h.
__attribute__((visibility("default"))) void trireme_bench_comm(
    const trireme::apps::CommBenchmark& benchmark);
/// See do_checkpoint_task in checkpoint_tools.h.
__attribute__((visibility("default"))) int trireme_checkpoint_task(
    const trireme::apps::CheckpointTask& task);
}
