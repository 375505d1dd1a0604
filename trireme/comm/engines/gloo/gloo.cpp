// SPDX-License-Identifier: Apache-2.0
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO  // LibTorch's headers ask for it; its CMake target sets it only in some
                       // versions
#endif

#include <trireme/comm/engines/gloo/gloo.h>

#include <trireme/base/broken_pipe_guard.h>
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace trireme::comm {
namespace {

using c10d::ProcessGroupGloo;

// Gloo writes with writev(). If the peer has been killed, the first write may come before Gloo has
// noticed, and SIGPIPE would end this process without a message. Collectives write on the threads
// of the group, which are started under a guard. Messages write on the calling thread.
class GlooBackend : public ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer,
                                      int tag) override {
    const BrokenPipeGuard guard;
    return ProcessGroupGloo::send(tensors, peer, tag);
  }
  // A receiver tells the sender that it is ready, so it writes as well.
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer,
                                      int tag) override {
    const BrokenPipeGuard guard;
    return ProcessGroupGloo::recv(tensors, peer, tag);
  }
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override {
    const BrokenPipeGuard guard;
    return ProcessGroupGloo::recvAnysource(tensors, tag);
  }
};

std::shared_ptr<::gloo::transport::Device> make_device(const EngineContext& context) {
  if (!context.interface.empty()) {
    try {
      return ProcessGroupGloo::createDeviceForInterface(context.interface);
    } catch (const std::exception& failure) {
      throw ConfigError(join_message("engine gloo cannot use network interface '",
                                     context.interface, "': ", message_of(failure)),
                        "set TRIREME_INTERFACE to a name that `ip address` lists, or unset it");
    }
  }
  if (context.is_one_host()) return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return ProcessGroupGloo::createDefaultDevice();
}

c10::intrusive_ptr<c10d::Backend> connect_gloo(const EngineContext& context) {
  const BrokenPipeGuard guard;  // the threads that start here keep SIGPIPE blocked
  auto options = ProcessGroupGloo::Options::create(context.timeout);
  options->devices.push_back(make_device(context));
  // With two threads, the all-reduce of one bucket can wait for a peer while the next one moves
  // data.
  options->threads = 2;
  return c10::make_intrusive<GlooBackend>(context.store, context.rank, context.size, options);
}

}  // namespace

Engine gloo_engine() {
  return {.name = "gloo",
          .unavailable_because = []() -> std::string { return ""; },
          .connect = connect_gloo,
          // Gloo's ring and halving-doubling algorithms begin each slice at another rank. With two
          // ranks the order does not matter, because addition commutes.
          .summation_order =
              [](const EngineContext& context) {
                return context.size <= 2 ? SummationOrder::kRank : SummationOrder::kUnspecified;
              }};
}

}  // namespace trireme::comm
