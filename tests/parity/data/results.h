// SPDX-License-Identifier: Apache-2.0
// Hands tensors to Python: the bytes of each in a file, their shapes as JSON on standard output.
#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace trireme::test {

class Results {
 public:
  explicit Results(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void add(const std::string& name, const at::Tensor& tensor) {
    const at::Tensor bytes = tensor.contiguous();
    std::ofstream(folder_ / name, std::ios::binary)
        .write(static_cast<const char*>(bytes.const_data_ptr()),
               static_cast<std::streamsize>(bytes.nbytes()));
    shapes_[name] = std::vector<std::int64_t>(tensor.sizes().begin(), tensor.sizes().end());
  }

  void print_shapes() const { std::cout << shapes_.dump() << '\n'; }

 private:
  std::filesystem::path folder_;
  nlohmann::json shapes_;
};

}  // namespace trireme::test
