// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/pictures/schedule_picture.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <tests/unit/schedule/parts.h>

namespace trireme::schedule {
namespace {

TEST(Trace, HasTheFormOfTracesOfRuns) {
  EXPECT_EQ(to_trace(simulate(two_ranks(), times_of_all(2, 3, 4, 0.5))),
            R"([
{"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"rank 0"}},
{"name":"thread_name","ph":"M","pid":0,"tid":0,"args":{"name":"steps"}},
{"name":"thread_name","ph":"M","pid":0,"tid":1,"args":{"name":"phases"}},
{"name":"step","ph":"X","ts":0.0,"dur":19000.0,"pid":0,"tid":0,"args":{}},
{"name":"forward","ph":"X","ts":0.0,"dur":2000.0,"pid":0,"tid":1,"args":{"stage":0,"micro_batch":0}},
{"name":"backward","ph":"X","ts":12000.0,"dur":7000.0,"pid":0,"tid":1,"args":{"stage":0,"micro_batch":0}},
{"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"rank 1"}},
{"name":"thread_name","ph":"M","pid":1,"tid":0,"args":{"name":"steps"}},
{"name":"thread_name","ph":"M","pid":1,"tid":1,"args":{"name":"phases"}},
{"name":"step","ph":"X","ts":2500.0,"dur":9000.0,"pid":1,"tid":0,"args":{}},
{"name":"forward","ph":"X","ts":2500.0,"dur":2000.0,"pid":1,"tid":1,"args":{"stage":1,"micro_batch":0}},
{"name":"backward","ph":"X","ts":4500.0,"dur":7000.0,"pid":1,"tid":1,"args":{"stage":1,"micro_batch":0}}
]
)");
}

TEST(Trace, IsJsonWithAnEventForEveryActionThatTakesTime) {
  Times times = times_of_all(1, 1, 1);
  times.send = 0.1;
  const Schedule schedule =
      schedule_of({"gather0 F0.0 S0.0>1 R0.0<1 B0.0 free0 step0", "R1.0<0 F1.0 B1.0 S1.0>0 step1"});
  const auto events = nlohmann::json::parse(to_trace(simulate(schedule, times)));
  EXPECT_EQ(events.size(), 2U * 4 + 6);
  const auto send = std::ranges::find_if(
      events, [](const nlohmann::json& event) { return event["name"] == "send"; });
  ASSERT_NE(send, events.end());
  EXPECT_EQ((*send)["args"], nlohmann::json({{"stage", 0}, {"micro_batch", 0}, {"peer", 1}}));
  EXPECT_EQ(to_trace(Timeline{}), "[]\n");
}

}  // namespace
}  // namespace trireme::schedule
