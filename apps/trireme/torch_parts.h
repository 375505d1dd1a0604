// SPDX-License-Identifier: Apache-2.0
// The parts of the program that need LibTorch. They are in a shared object that is loaded on first
// use, because loading LibTorch takes a quarter of a second. `trireme run` loads it while its ranks
// load theirs.
#pragma once

#include <trireme/launch/run/run.h>

#include <apps/trireme/calibrate_tools.h>
#include <apps/trireme/checkpoint_tools.h>
#include <apps/trireme/comm_benchmark.h>
#include <apps/trireme/plan_tools.h>
#include <apps/trireme/predict_tools.h>
#include <apps/trireme/text_data_tools.h>

#include <string>

namespace trireme::apps {

/// Returns the function that opens the store of a run. Calling it loads the shared object. Returns
/// an empty function in a build without LibTorch.
launch::StoreOpener store_opener();

/// Examines the machine and this build, prints the findings and returns the exit code: 0 if
/// everything is in order.
/// @param as_rank runs as one of the two processes of the self-test instead.
int doctor(bool as_rank);

/// Runs as one rank of `trireme bench comm`; see measure_collective() in comm_benchmark.h.
void time_collective(const CommBenchmark& benchmark);

/// Runs as one rank of `trireme calibrate`; see do_calibrate() in calibrate_tools.h.
void calibrate_host(const CalibrateTask& task);

/// Returns how many accelerators of a type this machine has; see count_accelerators() in
/// calibrate_tools.h.
int accelerators_of_host(const std::string& device);

/// Executes a task of `trireme checkpoint`; see do_checkpoint_task() in checkpoint_tools.h.
int checkpoint_task(const CheckpointTask& task);

/// Executes a task of `trireme plan`; see do_plan_task() in plan_tools.h.
int plan_task(const PlanTask& task);

/// Executes a task of `trireme predict`; see do_predict_task() in predict_tools.h.
int predict_task(const PredictTask& task);

/// Executes a task of `trireme data` with text; see do_text_data_task() in text_data_tools.h.
void text_data_task(const TextDataTask& task);

}  // namespace trireme::apps
