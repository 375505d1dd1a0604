// SPDX-License-Identifier: Apache-2.0
// The parts of the program that need LibTorch. They are a shared object of their own, loaded when
// they are first needed: LibTorch takes a quarter of a second to load, which `trireme run` spends
// while its ranks load theirs.
#pragma once

#include <trireme/launch/run/run.h>

#include <apps/trireme/checkpoint_tools.h>
#include <apps/trireme/comm_benchmark.h>

namespace trireme::apps {

/// Returns what opens a run's store; calling it loads the shared object. Empty in a build without
/// LibTorch.
launch::StoreOpener store_opener();

/// Examines this machine and this build and prints what it finds; returns the exit code: 0 where
/// everything is in order.
/// @param as_rank be one of the two processes of the self-test instead.
int doctor(bool as_rank);

/// Is one rank of `trireme bench comm`: see measure_collective in comm_benchmark.h.
void time_collective(const CommBenchmark& benchmark);

/// Does one task of `trireme checkpoint`: see do_checkpoint_task in checkpoint_tools.h.
int checkpoint_task(const CheckpointTask& task);

}  // namespace trireme::apps
