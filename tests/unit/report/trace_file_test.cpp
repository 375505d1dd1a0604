// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/trace_file.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <array>

namespace trireme::report {
namespace {

const std::string kNames0 =
    R"([
{"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"rank 0"}},
{"name":"thread_name","ph":"M","pid":0,"tid":0,"args":{"name":"steps"}},
{"name":"thread_name","ph":"M","pid":0,"tid":1,"args":{"name":"phases"}})";

TraceEvent forward() {
  return {.name = "forward",
          .row = TraceEvent::Row::kPhases,
          .begin = 10.5,
          .duration = 2,
          .epoch = 1,
          .global_step = 3};
}

TEST(TraceFile, IsAnArrayOfEventsThatIsReadableBeforeItIsClosed) {
  const test::TemporaryFolder folder;
  TraceFile file(folder / "trace.json", 0);
  EXPECT_EQ(test::read_file(file.path()), kNames0);
  const auto event = forward();
  file.add({&event, 1});
  const std::string written =
      kNames0 +
      ",\n"
      R"({"name":"forward","ph":"X","ts":10.5,"dur":2.0,"pid":0,"tid":1,"args":{"epoch":1,"step":3}})";
  EXPECT_EQ(test::read_file(file.path()), written);
  file.close();
  EXPECT_EQ(test::read_file(file.path()), written + "\n]\n");
}

TEST(TraceFile, StartsAnew) {
  const test::TemporaryFolder folder;
  const auto path = folder.write("trace.json", "old");
  TraceFile(path, 0).close();
  EXPECT_EQ(test::read_file(path), kNames0 + "\n]\n");
}

TEST(TraceFile, MergesRanksOnOneClock) {
  const test::TemporaryFolder folder;
  std::array<RankTrace, 2> traces;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    TraceFile file(folder / std::to_string(rank), static_cast<int>(rank));
    const auto event = forward();
    file.add({&event, 1});
    file.close();
    traces.at(rank) = {.text = test::read_file(file.path()), .align = [rank](double time) {
                         return time + 100 * static_cast<double>(rank);
                       }};
  }
  traces[1].clock_error = 12.5;
  const std::string merged = merge_traces(traces);
  EXPECT_THAT(merged, testing::StartsWith(kNames0));
  EXPECT_THAT(merged, testing::HasSubstr(R"("ts":10.5,"dur":2.0,"pid":0,)"));
  EXPECT_THAT(merged, testing::HasSubstr(R"("ts":110.5,"dur":2.0,"pid":1,)"));
  EXPECT_THAT(merged,
              testing::EndsWith(
                  ",\n"
                  R"({"name":"process_labels","ph":"M","pid":1,"tid":0,)"
                  R"("args":{"labels":"clock within 12.5 us of rank 0's","clock_error":12.5}})"
                  "\n]\n"));
  EXPECT_EQ(merge_traces({}), "[]\n");
}

TEST(TraceFile, NamesTheRankWhoseFileIsNoTrace) {
  const std::array<RankTrace, 2> traces = {RankTrace{.text = "[]", .align = {}},
                                           RankTrace{.text = "[{", .align = {}}};
  EXPECT_THAT(test::message_of<DataError>([&] { merge_traces(traces); }),
              testing::HasSubstr("rank 1"));
}

}  // namespace
}  // namespace trireme::report
