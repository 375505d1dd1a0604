// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/pipeline_pictures.h>

#include "tests/unit/report/page/run_files.h"
#include <trireme/report/page/markup.h>
#include <trireme/report/page/page.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/pictures/schedule_picture.h>

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <regex>

namespace trireme::report {
namespace {

using test::write_run;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using trireme::test::TemporaryFolder;

constexpr const char* kEmptyPicture = "<svg xmlns=\"http://www.w3.org/2000/svg\">\n</svg>\n";

std::string name_of(std::int64_t step, const char* ending) {
  return "pipeline-step" + std::to_string(step) + ending;
}

/// Returns what is read of a folder with one picture and this trace.
PipelinePicture step_with_trace(const std::string& trace) {
  const TemporaryFolder folder;
  folder.write(name_of(3, ".svg"), kEmptyPicture);
  folder.write(name_of(3, ".json"), trace);
  std::vector<std::string> notes;
  const PipelinePictures read = read_pipeline_pictures(folder.path(), notes);
  EXPECT_THAT(notes, IsEmpty());
  EXPECT_THAT(read.shown, SizeIs(1));
  return read.shown.empty() ? PipelinePicture() : read.shown.front();
}

std::string event(const std::string& name, int row, double begin, const std::string& duration,
                  const std::string& rank = "0") {
  return R"({"name":")" + name + R"(","ph":"X","ts":)" + std::to_string(begin) + R"(,"dur":)" +
         duration + R"(,"pid":)" + rank + R"(,"tid":)" + std::to_string(row) + R"(,"args":{}})";
}

TEST(PipelinePictures, HaveTheTimesOfTheTimelineThatWasWritten) {
  const auto schedule =
      schedule::with_steps(schedule::with_messages(schedule::one_forward_one_backward(4, 8)));
  const auto timeline = schedule::simulate(schedule, {});
  const PipelinePicture step = step_with_trace(schedule::to_trace(timeline));
  EXPECT_GT(timeline.bubble_rate(), 0);
  EXPECT_NEAR(step.bubble.value(), timeline.bubble_rate(), 1e-9);
  EXPECT_NEAR(step.milliseconds.value(), timeline.step_time, 1e-9);
}

TEST(PipelinePictures, WithoutATraceThatCanBeReadHaveNoTimes) {
  EXPECT_TRUE(step_with_trace("[" + event("step", 0, 0, "10") + "]").bubble);
  const std::string deep(1000, '[');
  for (const std::string& trace :
       {std::string(), std::string("[]"), std::string("{}"), deep, std::string("[1]"),
        std::string(R"([{"ph":"X"}])"), std::string(R"([{"ph":1,"pid":0}])"),
        "[" + event("step", 0, 0, "1e300") + "]", "[" + event("step", 0, 0, "1", "1e300") + "]",
        "[" + event("step", 0, 0, "-1") + "]", "[" + event("step", 0, 0, "\"1\"") + "]",
        "[" + event("step", 0, 0, "1") + "," + event("forward", 1, 0, "2") + "]",
        "[" + event("step", 0, 0, "1") + "," + event("forward", 1, 0, "1", "{}") + "]"}) {
    const PipelinePicture step = step_with_trace(trace);
    EXPECT_FALSE(step.bubble) << trace;
    EXPECT_FALSE(step.milliseconds) << trace;
  }
}

TEST(PipelinePictures, AreShownAsImagesWithTheirBubble) {
  const TemporaryFolder folder;
  write_run(folder.path(), 2, 20);
  const auto schedule = schedule::with_messages(schedule::one_forward_one_backward(4, 8));
  const auto timeline = schedule::simulate(schedule, {});
  const std::string svg = schedule::to_svg(schedule, timeline);
  folder.write(name_of(1200, ".svg"), svg);
  folder.write(name_of(1200, ".json"), schedule::to_trace(timeline));
  folder.write(name_of(3, ".svg"), kEmptyPicture);
  const RunLog run = read_run(folder.path());
  EXPECT_THAT(run.notes, IsEmpty());
  const std::string html = to_html(run);
  EXPECT_THAT(html, HasSubstr("<h2>Pipeline</h2>"));
  EXPECT_THAT(html, HasSubstr("<figcaption>Step 1,200 <small>33.0 ms, bubble 27.3 %</small>"));
  EXPECT_THAT(html, HasSubstr("<img alt=\"Timeline of step 1,200: 33.0 ms, bubble 27.3 %\" "
                              "src=\"data:image/svg+xml;base64," +
                              base64(svg) + "\">"));
  EXPECT_THAT(html, HasSubstr("<img alt=\"Timeline of step 3\" src="));
  EXPECT_LT(html.find("step 3\""), html.find("step 1,200:"));
}

TEST(PipelinePictures, ARunWithoutThemHasNoSection) {
  const TemporaryFolder folder;
  write_run(folder.path(), 1, 5);
  for (const char* name : {"pipeline-step.svg", "pipeline-step0.svg", "pipeline-step-1.svg",
                           "pipeline-stepx.svg", "pipeline-step1.svg.old", "pipeline-step1.json"}) {
    folder.write(name, kEmptyPicture);
  }
  const std::string html = to_html(read_run(folder.path()));
  EXPECT_THAT(html, Not(HasSubstr("Pipeline")));
  EXPECT_THAT(html, Not(HasSubstr("<img")));
}

// Browsers run no script of an image. Base64 keeps the file from ending the attribute.
TEST(PipelinePictures, CannotBecomeMarkupOfThePage) {
  const TemporaryFolder folder;
  write_run(folder.path(), 1, 5);
  folder.write(name_of(1, ".svg"),
               "<svg xmlns=\"http://www.w3.org/2000/svg\" onload=\"alert(1)\">\"><script>alert(1)"
               "</script><img src=\"x\" onerror=\"alert(1)\"></svg>\n");
  folder.write(name_of(1, ".json"), "[" + event("<script>alert(1)</script>", 0, 0, "10") + "]");
  const std::string html = to_html(read_run(folder.path()));
  EXPECT_THAT(html, HasSubstr("<h2>Pipeline</h2>"));
  EXPECT_THAT(html, Not(HasSubstr("alert")));
  EXPECT_THAT(html, Not(HasSubstr("onload")));
  const std::regex image(
      R"re(<img alt="[^"<]*" src="data:image/svg\+xml;base64,[A-Za-z0-9+/]+=*">)re");
  EXPECT_EQ(std::distance(std::sregex_iterator(html.begin(), html.end(), image), {}), 1);
  const std::regex any("<img|src=|<svg xmlns");
  EXPECT_EQ(std::distance(std::sregex_iterator(html.begin(), html.end(), any), {}), 2);
}

TEST(PipelinePictures, FilesThatAreNoPictureOrTooLargeAreNoted) {
  const TemporaryFolder folder;
  folder.write(name_of(1, ".svg"), std::string(kEmptyPicture).substr(0, 30));
  folder.write(name_of(2, ".svg"), "<svg " + std::string(1U << 20U, ' ') + "</svg>\n");
  folder.write(name_of(3, ".svg"), "<html></html>\n");
  ASSERT_EQ(::mkfifo((folder / name_of(4, ".svg")).c_str(), 0600), 0);
  std::vector<std::string> notes;
  EXPECT_THAT(read_pipeline_pictures(folder.path(), notes).shown, IsEmpty());
  EXPECT_THAT(notes,
              ElementsAre("pipeline-step4.svg is a FIFO, expected a regular file; it is not shown",
                          "pipeline-step3.svg is no complete SVG; it is not shown",
                          "pipeline-step2.svg has 1048588 bytes, expected at most 1048576; it is "
                          "not shown",
                          "pipeline-step1.svg is no complete SVG; it is not shown"));
}

TEST(PipelinePictures, OfManyTheLastAreShown) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {7, 10, 100, 20, 5, 1}) {
    folder.write(name_of(step, ".svg"), kEmptyPicture);
  }
  std::vector<std::string> notes;
  const PipelinePictures read = read_pipeline_pictures(folder.path(), notes);
  std::vector<std::int64_t> steps;
  for (const PipelinePicture& step : read.shown) steps.push_back(step.step);
  EXPECT_THAT(steps, ElementsAre(7, 10, 20, 100));
  EXPECT_THAT(pipeline_section(read), HasSubstr("Shown are 4 of 6 pictures."));
}

}  // namespace
}  // namespace trireme::report
