// SPDX-License-Identifier: Apache-2.0
// The functions that the shared object with LibTorch exports to the program. Both are built
// together, so C++ types may be passed.
#pragma once

#include <trireme/launch/run/run.h>

#include <apps/trireme/calibrate_tools.h>
#include <apps/trireme/checkpoint_tools.h>
#include <apps/trireme/comm_benchmark.h>
#include <apps/trireme/plan_tools.h>
#include <apps/trireme/predict_tools.h>
#include <apps/trireme/text_data_tools.h>

#include <memory>
#include <string>

extern "C" {
/// Fills `store`: see StoreOpener in launch/run/run.h.
__attribute__((visibility("default"))) void trireme_open_store(
    trireme::launch::StoreAddress& place, std::unique_ptr<trireme::launch::RunStore>& store);
/// See doctor in torch_parts.h.
__attribute__((visibility("default"))) int trireme_doctor(bool as_rank);
/// See measure_collective in comm_benchmark.h.
__attribute__((visibility("default"))) void trireme_bench_comm(
    const trireme::apps::CommBenchmark& benchmark);
/// See do_calibrate in calibrate_tools.h.
__attribute__((visibility("default"))) void trireme_calibrate(
    const trireme::apps::CalibrateTask& task);
/// See count_accelerators in calibrate_tools.h.
__attribute__((visibility("default"))) int trireme_count_accelerators(const std::string& device);
/// See do_checkpoint_task in checkpoint_tools.h.
__attribute__((visibility("default"))) int trireme_checkpoint_task(
    const trireme::apps::CheckpointTask& task);
/// See do_plan_task in plan_tools.h.
__attribute__((visibility("default"))) int trireme_plan_task(const trireme::apps::PlanTask& task);
/// See do_predict_task in predict_tools.h.
__attribute__((visibility("default"))) int trireme_predict_task(
    const trireme::apps::PredictTask& task);
/// See do_text_data_task in text_data_tools.h.
__attribute__((visibility("default"))) void trireme_text_data_task(
    const trireme::apps::TextDataTask& task);
}
