// SPDX-License-Identifier: Apache-2.0
// The program in the guide is the one that is compiled and run as an example.
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace {

TEST(Guide, ShowsTheExampleThatRuns) {
  const char* const source = std::getenv("TRIREME_SOURCE");
  ASSERT_NE(source, nullptr) << "set TRIREME_SOURCE to the sources' folder, as ctest does";
  const std::filesystem::path root = source;
  const std::string guide = trireme::test::read_file(root / "docs/guide/configuration.md");
  const std::string example = trireme::test::read_file(root / "examples/configuration/main.cpp");
  ASSERT_FALSE(example.empty());
  EXPECT_NE(guide.find("```cpp\n" + example + "```"), std::string::npos)
      << "copy examples/configuration/main.cpp into docs/guide/configuration.md";
}

}  // namespace
