// SPDX-License-Identifier: Apache-2.0
// `trireme predict` as a user types it.
#include "tests/processes/shell.h"
#include "tests/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kSmallGpt =
    "--model gpt --set layers=4 --set hidden=256 --set heads=4 --set sequence=128 ";

constexpr const char* kColumns =
    "table,model,layers,hidden,heads,ffn,vocabulary,sequence,device,devices,dtype,tensor,pipe,"
    "layers_per_virtual_stage,data,zero,recompute,micro_batch,global_batch,metric,value\n";

Finished predict(const std::string& arguments) {
  return shell("'" + variable("TRIREME_BIN") + "/trireme' predict " + arguments);
}

std::string file_of(const TemporaryFolder& folder, const std::string& rows) {
  const std::string file = folder / "cases.csv";
  std::ofstream(file) << kColumns << rows;
  return file;
}

TEST(PredictCommand, PrintsTimeAndMemory) {
  const Finished finished =
      predict(std::string(kSmallGpt) +
              "-n 16 --cluster h100-80 "
              "--plan-set zero_level=3 --plan-set 'recompute=[\"blocks.*\"]'");
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("prediction for 16 ranks"), HasSubstr("recomputation"),
                    HasSubstr("exchange along data"), HasSubstr("memory of a rank")));
}

TEST(PredictCommand, TakesEveryFamilyAndAxis) {
  for (const char* model :
       {kSmallGpt,
        "--model llama --set layers=4 --set hidden=256 --set heads=4 --set key_value_heads=4 "
        "--set sequence=128 --set feed_forward=512 ",
        "--model bert --set layers=4 --set hidden=256 --set heads=4 --set sequence=128 "}) {
    const Finished finished = predict(std::string(model) +
                                      "-n 8 --plan-set 'mesh=[\"pipe=2\",\"data=2\",\"tensor=2\"]' "
                                      "--plan-set micro_batches=4");
    EXPECT_EQ(finished.code, 0) << model << finished.output;
    EXPECT_THAT(finished.output, AllOf(HasSubstr("layouts"), HasSubstr("pipeline"))) << model;
  }
  EXPECT_EQ(predict("--model resnet --dtype float32 --optimizer momentum --rows 8").code, 0);
}

TEST(PredictCommand, EndsWithOneIfTheMemoryIsTooSmall) {
  const Finished finished = predict(
      "--model gpt --set layers=40 --set hidden=5120 --set heads=40 "
      "-n 8 --cluster v100-16 --dtype float16");
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.output, HasSubstr("DOES NOT FIT"));
}

TEST(PredictCommand, SaysWhatIsWrong) {
  const auto output = [](const std::string& arguments) { return predict(arguments).output; };
  EXPECT_THAT(output(""), HasSubstr("neither --model nor --validate"));
  EXPECT_THAT(output("--model gtp"), HasSubstr("gpt"));
  EXPECT_THAT(output("--model gpt --set layer=4"), HasSubstr("layers"));
  EXPECT_THAT(output(std::string(kSmallGpt) + "--cluster a100"), HasSubstr("a100-80"));
  EXPECT_THAT(output(std::string(kSmallGpt) + "-n 8 --plan-set 'mesh=[\"data=4\"]'"),
              HasSubstr("the plan's mesh has 4 ranks"));
}

TEST(PredictCommand, ComparesWithPublishedCases) {
  const TemporaryFolder folder;
  const std::string file = file_of(
      folder,
      "mine,gpt,4,256,4,1024,1000,128,A100-80,8,bfloat16,1,1,,8,3,full,2,16,step_seconds,0.01\n"
      "mine,llama2,4,256,4,512,1000,128,H100-80,8,bfloat16,1,1,,8,hybrid,none,2,16,memory_gib,1\n");
  const Finished finished = predict("--validate " + file);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output, AllOf(HasSubstr("gpt 4x256 s128, 8 A100-80"),
                                     HasSubstr("llama 4x256 s128, 8 H100-80"),
                                     HasSubstr("all: 2 cases, median error")));
  const Finished fitted = predict("--fit A100-80 --validate " + file);
  EXPECT_EQ(fitted.code, 0) << fitted.output;
  EXPECT_THAT(fitted.output, HasSubstr("efficiency.half_product_gigaflops = "));
}

TEST(PredictCommand, NamesTheLineOfACaseThatCannotBe) {
  const TemporaryFolder folder;
  const auto output = [&](const std::string& row) {
    return predict("--validate " + file_of(folder, row + "\n")).output;
  };
  EXPECT_THAT(
      output("mine,gpt,4,256,4,1024,1000,128,A100-80,8,bfloat16,2,1,,8,3,full,2,16,step_seconds,1"),
      AllOf(HasSubstr("cases.csv:2: column devices is '8'"), HasSubstr("which is 16")));
  EXPECT_THAT(
      output("mine,gpt,4,256,4,1000,1000,128,A100-80,8,bfloat16,1,1,,8,3,full,2,16,step_seconds,1"),
      HasSubstr("column ffn is '1000'"));
  EXPECT_THAT(
      output("mine,gpt,4,256,4,1024,1000,128,A100-80,8,bfloat16,1,1,,8,3,full,2,16,seconds,1"),
      HasSubstr("column metric is 'seconds'"));
  EXPECT_THAT(output("mine,gpt,4"), HasSubstr("cases.csv:2: 3 values"));
  EXPECT_THAT(predict("--validate /nowhere.csv").output, HasSubstr("cannot read /nowhere.csv"));
  EXPECT_THAT(output(""), Not(HasSubstr("median error")));
}

}  // namespace
}  // namespace trireme::test
