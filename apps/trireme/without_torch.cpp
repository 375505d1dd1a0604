// SPDX-License-Identifier: Apache-2.0
// Replaces with_torch.cpp in a build without LibTorch. Every function that needs it throws
// ConfigError.
#include <trireme/base/error.h>

#include <apps/trireme/torch_parts.h>

#include <string>

namespace trireme::apps {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("this program was built without LibTorch",
                    "build it with LibTorch: make build");
}

}  // namespace

launch::StoreOpener store_opener() { return {}; }

int doctor(bool /*as_rank*/) { refuse(); }

void time_collective(const CommBenchmark& /*benchmark*/) { refuse(); }

void calibrate_host(const CalibrateTask& /*task*/) { refuse(); }

int accelerators_of_host(const std::string& /*device*/) { refuse(); }

int checkpoint_task(const CheckpointTask& /*task*/) { refuse(); }

int plan_task(const PlanTask& /*task*/) { refuse(); }

int predict_task(const PredictTask& /*task*/) { refuse(); }

void text_data_task(const TextDataTask& /*task*/) { refuse(); }

}  // namespace trireme::apps
