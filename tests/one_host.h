// SPDX-License-Identifier: Apache-2.0
// A cluster of one host whose links are as fast as a test wants, and a variable of the environment
// for the time of one test.
#pragma once

#include <trireme/cluster/cluster.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace trireme::test {

/// Returns four devices of one host, whose links reach all of their bandwidth.
inline cluster::Cluster one_host(double gb_per_s, double latency_us = 2) {
  return {
      .name = "test",
      .devices = {{.name = "gpu",
                   .teraflops = {.float32 = 10},
                   .memory_gib = 16,
                   .memory_gb_per_s = 500,
                   .efficiency = {.link = 1}}},
      .hosts = {{.count = 1, .devices = 4, .device = "gpu"}},
      .links = {
          {.level = cluster::LinkLevel::kHost, .latency_us = latency_us, .gb_per_s = gb_per_s}}};
}

/// Sets TRIREME_CLUSTER while it lives.
class ClusterInEnvironment {
 public:
  explicit ClusterInEnvironment(const std::string& name) {
    ::setenv("TRIREME_CLUSTER", name.c_str(), 1);
  }
  ~ClusterInEnvironment() { ::unsetenv("TRIREME_CLUSTER"); }
  ClusterInEnvironment(const ClusterInEnvironment&) = delete;
  ClusterInEnvironment& operator=(const ClusterInEnvironment&) = delete;
};

}  // namespace trireme::test
