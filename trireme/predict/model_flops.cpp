// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/model_flops.h>

#include <trireme/parallel/record/module_record.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <mutex>

namespace trireme::predict {
namespace {

// Operators on plain tensors alone run in a dry run, such as dropout of the input.
class KeptRandomNumbers {
 public:
  KeptRandomNumbers() : state_(state()) {}
  ~KeptRandomNumbers() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state_);
  }
  KeptRandomNumbers(const KeptRandomNumbers&) = delete;
  KeptRandomNumbers& operator=(const KeptRandomNumbers&) = delete;

 private:
  static at::Tensor state() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }

  at::Tensor state_;
};

}  // namespace

double model_flops(ModuleRef module, const std::function<at::Tensor()>& forward) {
  const KeptRandomNumbers kept;
  double flops = 0;
  for (const OperatorCall& call : record_module(module, Plan{}, forward).calls) {
    flops += call.work.flops;
  }
  return flops;
}

}  // namespace trireme::predict
