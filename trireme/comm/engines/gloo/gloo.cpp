// SPDX-License-Identifier: Apache-2.0
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO  // LibTorch's headers ask for it; its CMake target sets it only in some
                       // versions
#endif

#include <trireme/comm/engines/gloo/gloo.h>

#include <trireme/base/broken_pipe_guard.h>
#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/adapter/data_encryption.h>
#include <trireme/launch/tls/tls_files.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/GlooDeviceFactory.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdlib>
#include <string>

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

// Makes Gloo encrypt its connections by TLS, if LibTorch was built with that. c10d reads the
// variables when the first device is made.
void encrypt_connections() {
  const Environment environment = Environment::of_process();
  const auto files = launch::read_tls_files(environment);
  if (!files) {
    throw ConfigError(
        "environment variable TRIREME_TLS_DATA is '1', but nothing names the "
        "certificate of this host, its key and the authority",
        "set TRIREME_TLS to the folder of this host's certificate");
  }
  constexpr const char* kTransport = "TCP_TLS";
  if (!c10d::GlooDeviceRegistry()->Has(kTransport)) {
    throw ConfigError(
        "environment variable TRIREME_TLS_DATA is '1', but the Gloo in this LibTorch "
        "was built without TLS (USE_GLOO_WITH_OPENSSL)",
        "unset TRIREME_TLS_DATA; where others can read the network, use an encrypted "
        "one, such as WireGuard, or a LibTorch that was built with it");
  }
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), /*replace=*/1);  // NOLINT(concurrency-mt-unsafe): as in init()
  };
  set("GLOO_DEVICE_TRANSPORT", kTransport);
  set("GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY", files->key.string());
  set("GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT", files->certificate.string());
  set("GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE", files->authority.string());
}

std::shared_ptr<::gloo::transport::Device> make_device(const EngineContext& context) {
  if (must_encrypt_data()) encrypt_connections();
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
