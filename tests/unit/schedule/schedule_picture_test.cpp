// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/pictures/schedule_picture.h>

#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <tests/unit/schedule/parts.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace trireme::schedule {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string picture_of(const Schedule& schedule, const Times& times = {}) {
  return to_svg(schedule, simulate(schedule, times));
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t number = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++number;
  }
  return number;
}

TEST(Picture, HasABoxForEveryActionThatTakesTime) {
  const std::string svg = picture_of(with_steps(with_messages(one_forward_one_backward(3, 4))));
  EXPECT_THAT(svg, StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_EQ(count(svg, "<g><title>"), 3U * 4 * 2);
  EXPECT_EQ(count(svg, "<g>"), count(svg, "</g>"));
  EXPECT_THAT(svg, HasSubstr("<title>forward of micro-batch 2 in stage 0, 2 to 3 ms</title>"));
  EXPECT_THAT(svg, HasSubstr(">rank 2</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">rank 3</text>")));
}

// Programs other than browsers know no variables of CSS, and drew black on black.
TEST(Picture, HasConcreteColours) {
  const std::string svg = picture_of(zero_bubble_v(2, 2));
  EXPECT_THAT(svg, Not(HasSubstr("var(")));
  EXPECT_THAT(svg, HasSubstr(".back { fill: #ffffff; }"));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
}

TEST(Picture, SaysWhatTheScheduleComesTo) {
  const std::string svg = picture_of(one_forward_one_backward(4, 8));
  EXPECT_THAT(svg, HasSubstr(">1f1b: 4 ranks, 8 micro-batches<"));
  EXPECT_THAT(svg, HasSubstr("step 33 ms, bubble 27.27 %, a rank keeps at most 4 micro-batches"));
}

TEST(Picture, NamesOnlyWhatIsInIt) {
  const std::string whole = picture_of(gpipe(2, 2));
  EXPECT_THAT(whole, HasSubstr(">backward</text>"));
  EXPECT_THAT(whole, Not(HasSubstr(">weight backward</text>")));
  EXPECT_THAT(whole, Not(HasSubstr(">chunk 0</text>")));
  const std::string split = picture_of(zero_bubble_v(2, 2));
  EXPECT_THAT(split, HasSubstr(">weight backward</text>"));
  EXPECT_THAT(split, Not(HasSubstr(">backward</text>")));
  EXPECT_THAT(split, HasSubstr("class=\"forward chunk1\""));
  EXPECT_THAT(split, HasSubstr(">chunk 1</text>"));
  EXPECT_THAT(picture_of(interleaved(2, 2, 6)), HasSubstr(">chunk 3 and later</text>"));
}

TEST(Picture, StaysReadableForLongSchedules) {
  const std::string svg = picture_of(gpipe(2, 1000), times_of_all(0.001, 1, 1));
  EXPECT_THAT(svg, HasSubstr("width=\"6000\""));
  EXPECT_LT(count(svg, "class=\"number\" x="), 4000U);  // none where there is no room
}

TEST(Picture, EscapesTheNameAndNeedsNoTime) {
  Schedule schedule = gpipe(1, 1);
  schedule.name = "<a&b>";
  const std::string svg = picture_of(schedule, times_of_all(0, 0, 0));
  EXPECT_THAT(svg, HasSubstr("&lt;a&amp;b&gt;: 1 ranks"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

// Made anew by the command that docs/design/schedules.md names.
TEST(Picture, IsTheOneOfTheDocumentation) {
  const std::string folder = std::string(std::getenv("TRIREME_SOURCE")) + "/docs/design/pictures/";
  for (const std::string_view kind : kKinds) {
    const Schedule schedule = with_messages(generate(kind, 4, 8));
    const double share = static_cast<double>(schedule.num_ranks()) / schedule.num_stages();
    EXPECT_EQ(picture_of(schedule, times_of_all(share, share, share)),
              test::read_file(folder + std::string(kind) + ".svg"))
        << kind;
  }
}

TEST(Picture, IsTheSameForTheSameSchedule) {
  EXPECT_EQ(picture_of(zero_bubble_h2(3, 5)), picture_of(zero_bubble_h2(3, 5)));
}

}  // namespace
}  // namespace trireme::schedule
