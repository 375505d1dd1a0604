// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/module/tensor_lines.h>

#include <trireme/base/text.h>

#include <cstddef>

namespace trireme::detail {

// Names come last because they may contain blanks.
std::string to_lines(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  TextWriter text;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    text << static_cast<int>(tensor.scalar_type()) << " " << tensor.dim();
    for (const std::int64_t size : tensor.sizes()) text << " " << size;
    text << "\t" << name << "\n";
  }
  return text.str();
}

std::vector<TensorLine> parse_lines(const std::string& text) {
  std::vector<TensorLine> all;
  TextReader lines(text);
  int type = 0;
  std::size_t num_dims = 0;
  while (lines >> type >> num_dims) {
    TensorLine& line = all.emplace_back();
    line.type = static_cast<at::ScalarType>(type);
    line.sizes.resize(num_dims);
    for (std::int64_t& size : line.sizes) lines >> size;
    lines.get();
    std::getline(lines, line.name);
  }
  return all;
}

}  // namespace trireme::detail
