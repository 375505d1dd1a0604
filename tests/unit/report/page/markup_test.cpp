// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/markup.h>

#include <gtest/gtest.h>

#include <string>

namespace trireme::report {
namespace {

TEST(Escaped, StaysText) {
  EXPECT_EQ(escaped("<script>alert(\"1\" & '2')</script>"),
            "&lt;script&gt;alert(&quot;1&quot; &amp; &#39;2&#39;)&lt;/script&gt;");
  EXPECT_EQ(escaped("plain \xC3\xBC\n\ttext"), "plain \xC3\xBC\n\ttext");
}

TEST(Escaped, ReplacesWhatIsNoCharacterOfAPage) {
  EXPECT_EQ(escaped("a\xff"
                    "b"),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(escaped(std::string("a\0b\x1b[31m\x7f", 9)),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD[31m\xEF\xBF\xBD");
  EXPECT_EQ(escaped("\xEF\xBF\xBE \xEF\xBF\xBF"), "\xEF\xBF\xBD \xEF\xBF\xBD") << "none of XML";
}

TEST(ScriptSafe, CannotEndTheScript) {
  EXPECT_EQ(script_safe(json_text("</script><!--")), "\"\\u003c/script>\\u003c!--\"");
}

// The vectors of RFC 4648, section 10.
TEST(Base64, PadsToGroupsOfFour) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64(std::string("\xff\x00\xfb", 3)), "/wD7");
}

TEST(DefinitionTable, EscapesBothColumns) {
  EXPECT_EQ(definition_table({}), "");
  const std::string table =
      definition_table({{"<a>", "b & c"}, {"plan", "stage    1\nwire     fp16"}});
  EXPECT_NE(table.find("<th scope=\"row\">&lt;a&gt;</th><td>b &amp; c</td>"), std::string::npos);
  EXPECT_NE(table.find("<td class=\"code\">stage    1\n"), std::string::npos);
}

}  // namespace
}  // namespace trireme::report
