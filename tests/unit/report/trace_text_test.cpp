// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/trace_text.h>

#include <gtest/gtest.h>

namespace trireme::report {
namespace {

TEST(TraceText, HasTheRowsOfTracesOfRuns) {
  TraceText trace;
  EXPECT_EQ(trace.closed(), "[]\n");
  trace.add_rank(3);
  trace.name_row(3, 2, "computation");
  trace.label_rank(3, "simulated");
  EXPECT_EQ(trace.open(),
            R"([
{"name":"process_name","ph":"M","pid":3,"tid":0,"args":{"name":"rank 3"}},
{"name":"thread_name","ph":"M","pid":3,"tid":0,"args":{"name":"steps"}},
{"name":"thread_name","ph":"M","pid":3,"tid":1,"args":{"name":"phases"}},
{"name":"thread_name","ph":"M","pid":3,"tid":2,"args":{"name":"computation"}},
{"name":"process_labels","ph":"M","pid":3,"tid":0,"args":{"labels":"simulated"}})");
}

TEST(TraceText, WritesSpansMessagesAndGraphs) {
  TraceText trace;
  trace.add({.rank = 1,
             .row = 2,
             .name = "aten::mm",
             .begin = 1.5,
             .end = 4,
             .arguments = {{"stage", std::int64_t{1}}, {"about", "weights"}}});
  trace.add_overlapping("messages",
                        {.rank = 1, .row = 4, .name = "gradients", .begin = 2, .end = 3});
  trace.add_values(1, "memory", 2.5, {{"all", 7.0}});
  EXPECT_EQ(trace.closed(),
            R"([
{"name":"aten::mm","ph":"X","ts":1.5,"dur":2.5,"pid":1,"tid":2,"args":{"stage":1,"about":"weights"}},
{"name":"gradients","cat":"messages","ph":"b","id":0,"ts":2.0,"pid":1,"tid":4,"args":{}},
{"name":"gradients","cat":"messages","ph":"e","id":0,"ts":3.0,"pid":1,"tid":4},
{"name":"memory","ph":"C","ts":2.5,"pid":1,"tid":0,"args":{"all":7.0}}
]
)");
}

TEST(TraceText, KeepsBytesThatAreNotUtf8OutOfTheText) {
  TraceText trace;
  trace.add({.name = "block\xff", .end = 1});
  EXPECT_NE(trace.closed().find("block\xEF\xBF\xBD"), std::string::npos);
}

}  // namespace
}  // namespace trireme::report
