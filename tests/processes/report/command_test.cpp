// SPDX-License-Identifier: Apache-2.0
// `trireme report` as a user types it, and the page as a validator reads it.
#include "tests/processes/shell.h"
#include "tests/unit/report/page/run_files.h"
#include <trireme/report/page/page.h>

#include <gmock/gmock.h>

namespace trireme::report {
namespace {

using test::file_of;
using test::write_run;
using testing::HasSubstr;
using testing::Not;
using trireme::test::is_installed;
using trireme::test::read_file;
using trireme::test::shell;
using trireme::test::TemporaryFolder;
using trireme::test::variable;

std::string report_command(const std::string& arguments) {
  return "'" + variable("TRIREME_BIN") + "/trireme' report " + arguments;
}

TEST(ReportCommand, WritesThePageIntoTheFolderOfTheRun) {
  const TemporaryFolder folder;
  write_run(folder.path(), 2, 60);
  const auto finished = shell(report_command(folder.path().string()));
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("wrote " + (folder / "report.html").string() + " ("));
  EXPECT_EQ(read_file(folder / "report.html"), to_html(read_run(folder.path())));
}

TEST(ReportCommand, SaysWhatIsMissingAndWritesWhereItIsTold) {
  const TemporaryFolder folder;
  write_run(folder.path(), 3, 10);
  std::filesystem::remove(folder / file_of(2));
  const auto page = folder / "page.html";
  const auto finished =
      shell(report_command(folder.path().string() + " --output " + page.string()));
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("note: of 3 ranks, rank 2 left no file\n"));
  EXPECT_TRUE(std::filesystem::exists(page));
  EXPECT_FALSE(std::filesystem::exists(folder / "report.html"));
}

TEST(ReportCommand, ComparesSeveralRuns) {
  ASSERT_TRUE(is_installed("tidy")) << "the validator is missing: install the package tidy";
  const TemporaryFolder folder;
  for (const char* run : {"a/run", "b/run"}) {
    std::filesystem::create_directories(folder / run);
    write_run(folder / run, 1, 60);
  }
  const auto page = folder / "page.html";
  const std::string runs = (folder / "a/run").string() + " " + (folder / "b/run").string();
  const auto finished = shell(report_command(runs + " --output " + page.string()));
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(read_file(page), HasSubstr(">" + (folder / "b/run").string() + "</th>"));
  const auto checked = shell("tidy -q -e -utf8 --drop-empty-elements no " + page.string());
  EXPECT_EQ(checked.code, 0) << checked.output;
  EXPECT_EQ(
      shell(report_command((folder / "a/run").string() + " " + (folder / "none").string())).code,
      2);
}

// Two ranks take 1,920 samples in 2.46 s.
TEST(ReportCommand, ComparesFlopsWithTheDevicesOfACluster) {
  const TemporaryFolder folder;
  write_run(folder.path(), 2, 60);
  const auto page_with = [&](const std::string& cluster) {
    const auto finished = shell(report_command(folder.path().string() + " --cluster " + cluster));
    EXPECT_EQ(finished.code, 0) << finished.output;
    return finished.output + read_file(folder / "report.html");
  };
  EXPECT_THAT(
      page_with("cpu"),
      HasSubstr("note: utilization is unknown: the run has recorded no FLOPs of its samples "
                "(JsonlWriterOptions::flops_per_sample)\n"));
  const auto record = [&](const std::string& dtype) {
    JsonlFile file(folder / file_of(1));
    RunRecord run = test::run_record(1, 2, 60);
    run.flops_per_sample = 1e6;
    run.dtype = dtype;
    run.peak_flops = 1e12;
    file.write(run);
    file.write(EndRecord{.moment = {.time = 2e9, .epoch = 2, .global_step = 60}});
  };
  record("");
  EXPECT_THAT(page_with("cpu"),
              HasSubstr("note: utilization is unknown: the run has recorded no dtype\n"));
  record("float32");
  const std::string page = page_with("cpu");
  EXPECT_THAT(page, Not(HasSubstr("note: ")));
  EXPECT_THAT(page, HasSubstr("<span>Model FLOP/s</span><b class=\"\">1.56 GFLOP/s</b>"));
  EXPECT_THAT(page, HasSubstr("<span>Utilization</span><b class=\"\">1.0 %</b><span>of 160 GFLOP/s "
                              "in float32, CPU hosts with two ranks</span>"));
  ASSERT_EQ(shell(report_command(folder.path().string())).code, 0);
  EXPECT_THAT(read_file(folder / "report.html"), HasSubstr("<span>of 1 TFLOP/s in float32</span>"));
  record("float8");
  EXPECT_THAT(page_with("cpu"), HasSubstr("note: utilization is unknown: device CPU core has no "
                                          "peak rate for products in float8: add "
                                          "teraflops.float8 to its description\n"));
  EXPECT_THAT(read_file(folder / "report.html"), Not(HasSubstr("Utilization")));

  const auto unknown = shell(report_command(folder.path().string() + " --cluster nowhere.toml"));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("nowhere.toml"));
}

TEST(ReportCommand, FailsForWhatIsNoRun) {
  const TemporaryFolder folder;
  const auto empty = shell(report_command(folder.path().string()));
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.output, HasSubstr("trireme: error: "));
  EXPECT_THAT(empty.output, HasSubstr("holds no events-rank<r>.jsonl"));
  EXPECT_EQ(shell(report_command("")).code, 2);
  EXPECT_EQ(shell(report_command("--help")).code, 0);
}

TEST(ReportCommand, ThePageIsValidHtml) {
  ASSERT_TRUE(is_installed("tidy")) << "the validator is missing: install the package tidy, as "
                                       "`tools/setup` does";
  const TemporaryFolder folder;
  write_run(folder.path(), 8, 120);
  folder.write("config.toml", "name = \"<&>\"\n");
  folder.write("pipeline-step10.svg", "<svg xmlns=\"http://www.w3.org/2000/svg\">\n</svg>\n");
  JsonlFile file(folder / file_of(0));
  file.write(
      FailureRecord{.moment = {.time = 1, .epoch = 3, .global_step = 120}, .message = "<b>&"});
  file.write(CheckpointRecord{
      .moment = {.epoch = 3, .global_step = 120}, .path = "a\"b'c", .seconds = 0.1});
  ASSERT_EQ(shell(report_command(folder.path().string())).code, 0);
  // Empty elements are samples of colours; 1 would be warnings, 2 errors.
  const auto checked =
      shell("tidy -q -e -utf8 --drop-empty-elements no " + (folder / "report.html").string());
  EXPECT_EQ(checked.code, 0) << checked.output;
}

}  // namespace
}  // namespace trireme::report
