// SPDX-License-Identifier: Apache-2.0
// Replaces gloo.cpp if the headers of Gloo were not found.
#include <trireme/base/error.h>
#include <trireme/comm/engines/gloo/gloo.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trireme::comm {
namespace {

std::string missing() {
  return "built without Gloo's headers: install libgloo-dev and build again";
}

}  // namespace

Engine gloo_engine() {
  return {.name = "gloo",
          .unavailable_because = missing,
          .connect = [](const EngineContext&) -> c10::intrusive_ptr<c10d::Backend> {
            throw ConfigError("engine gloo is not in this build", missing());
          },
          .summation_order = [](const EngineContext&) { return SummationOrder::kUnspecified; }};
}

}  // namespace trireme::comm
