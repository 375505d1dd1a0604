// SPDX-License-Identifier: Apache-2.0
// An engine for accelerators alone: as NCCL does, it refuses tensors of the CPU, and its works
// order streams. The engine between threads carries for it.
#pragma once

#include <trireme/base/error.h>
#include <trireme/comm/adapter/adapter_backend.h>
#include <trireme/comm/adapter/engine_connection.h>
#include <trireme/comm/engines/threads/threads.h>

#include <ATen/DeviceAccelerator.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <utility>

namespace trireme::testing {

class DeviceConnection final : public comm::EngineConnection {
 public:
  explicit DeviceConnection(c10::intrusive_ptr<c10d::Backend> carrier)
      : EngineConnection("device", carrier->getRank(), carrier->getSize()),
        carrier_(std::move(carrier)),
        connection_(dynamic_cast<comm::AdapterBackend&>(*carrier_).connection()) {}

  comm::TensorForm form() const override { return connection_.form(); }
  void check(const comm::Operation& operation) const override {
    for (const comm::Buffer* buffer : {&operation.input, &operation.output}) {
      if (buffer->whole().defined() && buffer->whole().is_cpu()) {
        throw InternalError("a tensor of the CPU came to an engine for accelerators", "test");
      }
    }
    connection_.check(operation);
  }
  WorkPtr submit(comm::Operation operation) override {
    return connection_.submit(std::move(operation));
  }
  void abort(const std::string& reason) override { connection_.abort(reason); }

 private:
  const c10::intrusive_ptr<c10d::Backend> carrier_;
  comm::EngineConnection& connection_;
};

/// For tensors on the accelerator of the tests.
inline const comm::Engine& device_engine() {
  static const comm::Engine engine = {
      .name = "device",
      .device = at::getAccelerator(true).value(),
      .unavailable_because = []() -> std::string { return ""; },
      .connect = [](const comm::EngineContext& context) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<comm::AdapterBackend>(
            std::make_shared<DeviceConnection>(comm::threads_engine().connect(context)),
            context.timeout);
      },
      .summation_order = [](const comm::EngineContext&) { return comm::SummationOrder::kRank; }};
  return engine;
}

}  // namespace trireme::testing
