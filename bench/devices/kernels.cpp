// SPDX-License-Identifier: Apache-2.0
// Measures what an accelerator can do: matrix products and copies by size, copies from and to the
// host, and the time of an empty operator. Prints one line of JSON (tools/gpu/run).
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <bench/multi/beside.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <iostream>
#include <vector>

namespace {

at::Device accelerator() {
  const auto type = at::getAccelerator();
  return type ? at::Device(*type, 0) : at::Device(at::kCPU);
}

void wait_for(at::Device device) {
  if (!device.is_cpu()) {
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
}

// The least seconds of one call, of three stretches of about 20 ms each.
double least_seconds(at::Device device, const std::function<void()>& call) {
  const auto many = [&](int calls) {
    return bench::seconds_of(
        [&] {
          for (int i = 0; i < calls; ++i) call();
          wait_for(device);
        },
        1);
  };
  many(3);
  const double once = std::max(many(3) / 3, 1e-6);
  const int calls = std::clamp(static_cast<int>(0.02 / once), 3, 2000);
  double least = many(calls) / calls;
  for (int stretch = 1; stretch < 3; ++stretch) least = std::min(least, many(calls) / calls);
  return least;
}

nlohmann::json products(at::Device device, at::ScalarType type) {
  nlohmann::json list = nlohmann::json::array();
  // Square ones, and thin ones as in transformers: rows of tokens times weights.
  const std::vector<std::vector<std::int64_t>> shapes = {
      {256, 256, 256},    {512, 512, 512},    {1024, 1024, 1024}, {2048, 2048, 2048},
      {4096, 4096, 4096}, {8192, 8192, 8192}, {8192, 768, 768},   {8192, 3072, 768},
      {8192, 768, 3072},  {4096, 8192, 2048}, {64, 8192, 8192},   {16, 4096, 4096}};
  for (const auto& shape : shapes) {
    if (device.is_cpu() && shape[0] * shape[1] * shape[2] > (std::int64_t{1} << 30)) continue;
    const auto options = torch::device(device).dtype(type);
    const auto a = torch::randn({shape[0], shape[2]}, options);
    const auto b = torch::randn({shape[2], shape[1]}, options);
    auto c = torch::empty({shape[0], shape[1]}, options);
    const double seconds = least_seconds(device, [&] { at::mm_out(c, a, b); });
    const double operations = 2.0 * static_cast<double>(shape[0] * shape[1] * shape[2]);
    list.push_back({{"rows", shape[0]},
                    {"columns", shape[1]},
                    {"inner", shape[2]},
                    {"seconds", seconds},
                    {"teraflops", operations / seconds * 1e-12}});
  }
  return list;
}

nlohmann::json copies(at::Device device) {
  nlohmann::json list = nlohmann::json::array();
  const int largest = device.is_cpu() ? 26 : 30;
  for (int power = 12; power <= largest; power += 3) {
    const auto from = torch::ones({std::int64_t{1} << (power - 2)}, torch::device(device));
    auto to = torch::empty_like(from);
    const double seconds = least_seconds(device, [&] { to.copy_(from, true); });
    const double add = least_seconds(device, [&] { at::add_out(to, from, from); });
    const auto bytes = static_cast<double>(std::int64_t{1} << power);
    list.push_back({{"bytes", std::int64_t{1} << power},
                    {"seconds", seconds},
                    {"gigabytes_read_and_written_per_second", 2 * bytes / seconds * 1e-9},
                    {"add_seconds", add}});
  }
  return list;
}

nlohmann::json host_copies(at::Device device) {
  nlohmann::json list = nlohmann::json::array();
  if (device.is_cpu()) return list;
  for (const bool is_pinned : {true, false}) {
    for (const int power : {16, 22, 28}) {
      auto host = torch::ones({std::int64_t{1} << (power - 2)});
      if (is_pinned) host = host.pin_memory();
      auto there = torch::empty(host.sizes(), torch::device(device));
      const auto bytes = static_cast<double>(std::int64_t{1} << power);
      const double in = least_seconds(device, [&] { there.copy_(host, true); });
      const double out = least_seconds(device, [&] { host.copy_(there, true); });
      list.push_back({{"bytes", std::int64_t{1} << power},
                      {"pinned", is_pinned},
                      {"to_device_gigabytes_per_second", bytes / in * 1e-9},
                      {"from_device_gigabytes_per_second", bytes / out * 1e-9}});
    }
  }
  return list;
}

}  // namespace

int main() try {
  const at::Device device = accelerator();
  const auto one = torch::ones({1}, torch::device(device));
  const torch::NoGradGuard no_grad;
  nlohmann::json record = {{"device", device.str()}};
  record["empty_operator_seconds"] = least_seconds(device, [&] { static_cast<void>(one.add(1)); });
  record["products_fp32"] = products(device, at::kFloat);
  at::globalContext().setAllowTF32CuBLAS(true);
  record["products_tf32"] = products(device, at::kFloat);
  at::globalContext().setAllowTF32CuBLAS(false);
  record["products_bf16"] = products(device, at::kBFloat16);
  if (!device.is_cpu()) record["products_fp16"] = products(device, at::kHalf);
  record["copies"] = copies(device);
  record["host_copies"] = host_copies(device);
  std::cout << record << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
