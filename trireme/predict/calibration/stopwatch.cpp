// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/calibration/stopwatch.h>

#include <trireme/comm/collectives.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

namespace trireme::predict {

void synchronize(const c10::Device& device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

double median_time(const std::function<void()>& work, const c10::Device& device,
                   const comm::Group& group, int repetitions) {
  work();
  synchronize(device);
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    comm::barrier(group);
    const auto began = std::chrono::steady_clock::now();
    work();
    synchronize(device);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    times.push_back(took.count());
  }
  return median_of(times);
}

}  // namespace trireme::predict
