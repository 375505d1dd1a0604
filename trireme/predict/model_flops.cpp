// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/model_flops.h>

#include <trireme/parallel/record/module_record.h>

namespace trireme::predict {

double model_flops(ModuleRef module, const std::function<at::Tensor()>& forward) {
  double flops = 0;
  for (const OperatorCall& call : record_module(module, Plan{}, forward).calls) {
    flops += call.work.flops;
  }
  return flops;
}

}  // namespace trireme::predict
