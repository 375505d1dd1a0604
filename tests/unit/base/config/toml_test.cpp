// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/config/toml.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <string>

namespace trireme::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const std::string& text) {
  return test::message_of<ConfigError>([&] { parse_toml(text, "train.toml"); });
}

std::string repeated(const std::string& part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

TEST(Toml, TellsTextThatTheParserAssertsNeverComes) {
  for (const std::string text : {"[[[", "[\xc3\xa9]", "[a]\n[[a.b]]\n[[[", "x.\xc3\xa9 = 1"})
    EXPECT_THAT(error_of(text), HasSubstr("not TOML: ")) << text;
  EXPECT_THAT(error_of("a = 1\n[[["), HasSubstr("train.toml:2:3: not TOML"));
}

TEST(Toml, RefusesDottedKeysThatNoConfigurationHas) {
  for (const std::string parts : {"a.", "\"a\" . ", "'a'."}) {
    const std::string key = repeated(parts, 20'000) + "a";
    EXPECT_THAT(error_of("\n" + key + " = 1"),
                AllOf(HasSubstr("train.toml:2:1: "), HasSubstr("more than 64 parts")));
    EXPECT_THAT(error_of("[" + key + "]"), HasSubstr("more than 64 parts"));
    EXPECT_THAT(error_of("x = {" + key + " = 1}"), HasSubstr("more than 64 parts"));
  }
}

TEST(Toml, DotsInTextsAndCommentsAreNoKeys) {
  const std::string dots(1'000, '.');
  std::string text = "# " + dots + "\n";
  text += "a = \"" + dots + "\"\n";
  text += "b = '" + dots + "'\n";
  text += "c = \"\"\"\n\"" + dots + "\\\" \"\"\"\n";
  text += "d = '''\n" + dots + "'''\n";
  text += "e = [" + repeated("1.5, ", 200) + "]\n";
  text += "[f.g.h]\nx.y = 1.5\n";
  const Value value = parse_toml(text, "train.toml");
  const auto* const table = value.get<Value::Table>();
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->size(), 6U);
}

TEST(Toml, RefusesValuesNestedDeeperThanRecursionCanFollow) {
  const std::string key = repeated("a.", 60) + "a";
  std::string text = "1";
  for (int i = 0; i < 100; ++i) text = "{" + key + " = " + text + "}";
  EXPECT_THAT(error_of("x = " + text), HasSubstr("nested in more than 256 tables and lists"));
  EXPECT_THAT(error_of("x = " + repeated("[", 20'000)), HasSubstr("train.toml:1:"));
}

}  // namespace
}  // namespace trireme::config
