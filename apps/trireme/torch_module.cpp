// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/torch_module.h>

#include <trireme/launch/store/store_server.h>

#include <apps/trireme/doctor.h>

#include <memory>
#include <string>

void trireme_open_store(trireme::launch::StoreAddress& place,
                        std::unique_ptr<trireme::launch::RunStore>& store) {
  store = std::make_unique<trireme::launch::StoreServer>(std::move(place));
}

int trireme_doctor(bool as_rank) {
  if (!as_rank) return trireme::apps::examine();
  trireme::apps::act_as_rank();
  return 0;
}

void trireme_bench_comm(const trireme::apps::CommBenchmark& benchmark) {
  trireme::apps::measure_collective(benchmark);
}

void trireme_calibrate(const trireme::apps::CalibrateTask& task) {
  trireme::apps::do_calibrate(task);
}

int trireme_count_accelerators(const std::string& device) {
  return trireme::apps::count_accelerators(device);
}

int trireme_checkpoint_task(const trireme::apps::CheckpointTask& task) {
  return trireme::apps::do_checkpoint_task(task);
}

int trireme_plan_task(const trireme::apps::PlanTask& task) {
  return trireme::apps::do_plan_task(task);
}

int trireme_predict_task(const trireme::apps::PredictTask& task) {
  return trireme::apps::do_predict_task(task);
}

void trireme_text_data_task(const trireme::apps::TextDataTask& task) {
  trireme::apps::do_text_data_task(task);
}
