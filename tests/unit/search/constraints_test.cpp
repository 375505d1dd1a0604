// SPDX-License-Identifier: Apache-2.0
// Constraints of a search as text.
#include <trireme/search/constraints.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trireme::search {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Constraints parse(const std::vector<std::string>& texts) {
  Constraints constraints;
  for (const std::string& text : texts) add_constraint(constraints, text);
  return constraints;
}

std::string error_of(const std::vector<std::string>& texts) {
  try {
    parse(texts);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Constraints, AreReadAndWritten) {
  const Constraints all =
      parse({"tensor=8", "pipe<=4", "data>=2", "zero_level=3", "micro_batches=16", "rows=2",
             "schedule=zb-v", "chunks=2", "recompute=none", "memory_gib=60"});
  EXPECT_EQ(all.axis("tensor"), (AxisRange{8, 8}));
  EXPECT_EQ(all.axis("pipe"), (AxisRange{.least = 1, .most = 4}));
  EXPECT_EQ(all.axis("data").least, 2);
  EXPECT_EQ(all.zero_level, 3);
  EXPECT_EQ(all.schedule, "zb-v");
  EXPECT_EQ(all.recomputation, Recomputation::kNone);
  EXPECT_EQ(to_string(all),
            "data>=2, pipe<=4, tensor=8, zero_level=3, micro_batches=16, rows=2, schedule=zb-v, "
            "chunks=2, recompute=none, memory_gib=60");
  EXPECT_EQ(to_string(Constraints()), "");
}

TEST(Constraints, OfOneAxisAddUp) {
  EXPECT_EQ(parse({"pipe<=8", "pipe>=2", "pipe<=4"}).axis("pipe"), (AxisRange{2, 4}));
  EXPECT_EQ(parse({"pipe<=8", "pipe=4"}).axis("pipe"), (AxisRange{4, 4}));
  EXPECT_EQ(parse({"memory_gib<=60", "memory_gib<=40"}).memory_gib, 40);
}

TEST(Constraints, ThatContradictEachOtherAreBothNamed) {
  EXPECT_THAT(error_of({"tensor<=4", "tensor=8"}),
              AllOf(HasSubstr("tensor<=4 and tensor=8"), HasSubstr("contradict")));
  EXPECT_THAT(error_of({"zero_level=1", "zero_level=3"}),
              HasSubstr("zero_level=1 and zero_level=3"));
  EXPECT_THAT(error_of({"memory_gib=40", "memory_gib=60"}),
              HasSubstr("memory_gib=40 and memory_gib=60"));
  EXPECT_THAT(error_of({"schedule=1f1b", "schedule=gpipe"}),
              HasSubstr("schedule=1f1b and schedule=gpipe"));
}

TEST(Constraints, RefuseWhatCannotBe) {
  EXPECT_THAT(error_of({"tensor"}), HasSubstr("'tensor' has no value"));
  EXPECT_THAT(error_of({"tenser=8"}), HasSubstr("did you mean 'tensor'?"));
  EXPECT_THAT(error_of({"colour=8"}), HasSubstr("use one of data, pipe, context, expert, tensor"));
  EXPECT_THAT(error_of({"tensor=0"}), HasSubstr("a whole number of 1 or more"));
  EXPECT_THAT(error_of({"tensor=two"}), HasSubstr("a whole number of 1 or more"));
  EXPECT_THAT(error_of({"tensor<8"}), HasSubstr("expected =, <= or >="));
  EXPECT_THAT(error_of({"zero_level=4"}), HasSubstr("a level from 0 to 3"));
  EXPECT_THAT(error_of({"zero_level<=2"}), HasSubstr("can only be set by ="));
  EXPECT_THAT(error_of({"schedule=2f2b"}), HasSubstr("one of gpipe, 1f1b"));
  EXPECT_THAT(error_of({"recompute=all"}), HasSubstr("none or repeated"));
  EXPECT_THAT(error_of({"memory_gib=-1"}), HasSubstr("GiB above 0"));
  EXPECT_THAT(error_of({"memory_gib=inf"}), HasSubstr("GiB above 0"));
}

}  // namespace
}  // namespace trireme::search
