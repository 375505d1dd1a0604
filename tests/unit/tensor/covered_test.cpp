// SPDX-License-Identifier: Apache-2.0
// The page of covered operators, which is generated here: TRIREME_WRITE_PAGES=1 writes it anew.
#include <trireme/tensor/rules/covered.h>

#include <gtest/gtest.h>
#include <torch/version.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace trireme::tensor {
namespace {

TEST(Covered, SixHundredOverloadsHaveRules) { EXPECT_GE(coverage().num_covered(), 600); }

TEST(Covered, ThePageIsUpToDate) {
  const char* source = std::getenv("TRIREME_SOURCE");
  ASSERT_NE(source, nullptr) << "run by ctest, or set TRIREME_SOURCE to the checkout";
  const std::filesystem::path page = std::filesystem::path(source) / "docs" / "operators.md";
  const std::string generated = to_markdown(coverage());
  if (std::getenv("TRIREME_WRITE_PAGES") != nullptr) std::ofstream(page) << generated;
  std::ifstream file(page);
  const std::string written(std::istreambuf_iterator<char>(file), {});
  if (written.find(TORCH_VERSION) == std::string::npos) {
    // Made with another LibTorch, whose operators are others.
    EXPECT_FALSE(written.empty());
    return;
  }
  EXPECT_EQ(written, generated) << "docs/operators.md is out of date; TRIREME_WRITE_PAGES=1 "
                                   "unit_tensor_covered writes it anew";
}

}  // namespace
}  // namespace trireme::tensor
