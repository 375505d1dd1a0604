// SPDX-License-Identifier: Apache-2.0
// Replaces mpi.cpp if CMake found no MPI.
#include <trireme/base/error.h>
#include <trireme/comm/engines/mpi/mpi.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trireme::comm {
namespace {

std::string missing() {
  return "built without MPI: install libopenmpi-dev or libmpich-dev and build again";
}

}  // namespace

Engine mpi_engine() {
  return {.name = "mpi",
          .scope = Scope::kAnyHosts,
          .unavailable_because = missing,
          .connect = [](const EngineContext&) -> c10::intrusive_ptr<c10d::Backend> {
            throw ConfigError("engine mpi is not in this build", missing());
          },
          .summation_order = [](const EngineContext&) { return SummationOrder::kUnspecified; }};
}

}  // namespace trireme::comm
