// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/staging.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

namespace trireme::comm {
namespace {

bool is_on_host(const Buffer& buffer) {
  return !buffer.whole().defined() || buffer.whole().is_cpu();
}

// Operations are made with blocks of equal pieces only (collectives.cpp).
Buffer on_host(const Buffer& buffer, bool is_read) {
  const at::Tensor& tensor = buffer.whole();
  const at::Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(),
                                            tensor.options().device(at::kCPU).pinned_memory(true));
  if (is_read) copy.copy_(tensor);
  return Buffer(copy, buffer.num_pieces());
}

// Returns whether the engine reads the output of an operation.
bool reads_output(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduce ||
         kind == OperationKind::kBroadcast;
}

}  // namespace

Staging Staging::replace(Operation& operation) {
  const at::NoGradGuard no_grad;
  Staging staging;
  if (!is_on_host(operation.input)) operation.input = on_host(operation.input, /*is_read=*/true);
  if (!is_on_host(operation.output)) {
    const at::Tensor on_device = operation.output.whole();
    operation.output = on_host(operation.output, reads_output(operation.kind));
    staging.results_.emplace_back(on_device, operation.output.whole());
  }
  return staging;
}

void Staging::copy_back() const {
  const at::NoGradGuard no_grad;
  for (const auto& [on_device, on_host] : results_) {
    on_device.copy_(on_host, /*non_blocking=*/true);
  }
}

}  // namespace trireme::comm
