// SPDX-License-Identifier: Apache-2.0
// Joins the run and sums one number over all ranks; prints the time of day at which that was done.
// The runner (bench/cases/start.py) knows when it started the command. bench/peers/start.py is the
// same in Python.
#include <trireme/comm/collectives.h>
#include <trireme/comm/world.h>

#include <ATen/ops/ones.h>

#include <chrono>
#include <exception>
#include <iomanip>
#include <iostream>

int main() try {
  const auto world = trireme::init();
  const at::Tensor value = at::ones({1});
  trireme::comm::all_reduce(value, world.group);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  if (world.is_first()) {
    std::cout << std::fixed << std::setprecision(6) << R"({"done_at": )" << now.count() << "}\n";
  }
  return value.item<float>() == static_cast<float>(world.size) ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
