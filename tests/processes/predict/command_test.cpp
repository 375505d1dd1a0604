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
    // With a large vocabulary, the head alone is a stage that nothing waits for.
    const Finished finished =
        predict(std::string(model) +
                "--set vocabulary=1024 -n 8 --plan-set 'mesh=[\"pipe=2\",\"data=2\",\"tensor=2\"]' "
                "--plan-set micro_batches=4");
    EXPECT_EQ(finished.code, 0) << model << finished.output;
    EXPECT_THAT(finished.output, AllOf(HasSubstr("layouts"), HasSubstr("pipeline"))) << model;
  }
  EXPECT_EQ(predict("--model resnet --dtype float32 --optimizer momentum --rows 8").code, 0);
}

TEST(PredictCommand, TakesMixturesAndImagesAlongTensor) {
  for (const char* model :
       {"--model mixture --set layers=4 --set hidden=256 --set heads=4 --set sequence=128 "
        "--set experts=4 ",
        "--model vit --set layers=4 --set hidden=256 --set heads=4 --set feed_forward=512 "}) {
    const Finished finished =
        predict(std::string(model) + "-n 4 --plan-set 'mesh=[\"data=2\",\"tensor=2\"]'");
    EXPECT_EQ(finished.code, 0) << model << finished.output;
    EXPECT_THAT(finished.output, HasSubstr("layouts")) << model;
  }
  // Dosovitskiy et al. (2021): ViT-H has 632 million parameters.
  EXPECT_THAT(predict("--model vit --set layers=32 --set hidden=1280 --set heads=16 "
                      "--set feed_forward=5120 --set patch=14")
                  .output,
              HasSubstr("632.0 million"));
  // Zagoruyko, Komodakis (2016): WRN-50-2 has 68.9 million parameters.
  EXPECT_THAT(predict("--model resnet --set bottleneck_widening=2 --dtype float32").output,
              HasSubstr("68.9 million"));
}

TEST(PredictCommand, TakesMixturesAlongExpert) {
  const std::string sizes =
      "--set layers=4 --set hidden=256 --set heads=4 --set sequence=128 -n 4 ";
  for (const char* mesh : {R"(["data=2","expert=2"])", R"(["expert=2","tensor=2"])"}) {
    const Finished finished =
        predict("--model mixture --set experts=4 " + sizes + "--plan-set 'mesh=" + mesh + "'");
    EXPECT_EQ(finished.code, 0) << finished.output;
    EXPECT_THAT(finished.output, HasSubstr("layouts")) << mesh;
  }
  const Finished dense = predict("--model gpt " + sizes + "--plan-set 'mesh=[\"expert=4\"]'");
  EXPECT_NE(dense.code, 0);
  EXPECT_THAT(dense.output, HasSubstr("expert_layouts: models::GPTImpl has no module"));
}

TEST(PredictCommand, WritesATraceAndAPicture) {
  const TemporaryFolder folder;
  const std::string trace = folder / "step.json";
  const std::string picture = folder / "memory.svg";
  const Finished finished = predict(std::string(kSmallGpt) +
                                    "-n 8 --plan-set 'mesh=[\"pipe=2\",\"data=4\"]' "
                                    "--plan-set micro_batches=4 --trace " +
                                    trace + " --picture " + picture);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(read_file(trace), AllOf(HasSubstr("\"rank 4\""), HasSubstr("\"phases\""),
                                      HasSubstr("blocks.3.attention.input")));
  EXPECT_THAT(read_file(picture), AllOf(HasSubstr("<svg"), HasSubstr("rank 4")));
  EXPECT_THAT(predict(std::string(kSmallGpt) + "--trace /nowhere/step.json").output,
              HasSubstr("/nowhere/step.json"));
}

TEST(PredictCommand, SaysWhatFailuresCost) {
  const Finished finished = predict(std::string(kSmallGpt) +
                                    "-n 16384 --cluster h100-80 --host-failure-hours 6144 "
                                    "--save-seconds 30 --load-seconds 60");
  EXPECT_EQ(finished.code, 0) << finished.output;
  // 2,048 hosts.
  EXPECT_THAT(finished.output, AllOf(HasSubstr("failures"), HasSubstr("3.0 h"), HasSubstr("useful"),
                                     HasSubstr("which is best")));
  const auto output = [](const std::string& arguments) {
    return predict(kSmallGpt + arguments).output;
  };
  EXPECT_THAT(output("--json --host-failure-hours 100 --save-seconds 30 --interval-seconds 600"),
              AllOf(HasSubstr("\"faults\""), HasSubstr("\"interval\": 600")));
  EXPECT_THAT(output(""), Not(HasSubstr("failures")));
  EXPECT_THAT(output("--save-seconds 30"),
              AllOf(HasSubstr("has failure_hours"), HasSubstr("--host-failure-hours")));
  EXPECT_THAT(output("--host-failure-hours 100"),
              AllOf(HasSubstr("disk_gb_per_s"), HasSubstr("--save-seconds")));
  EXPECT_THAT(output("--host-failure-hours 0 --save-seconds 30"),
              HasSubstr("time between its failures is above 0"));
}

TEST(PredictCommand, TakesFailuresFromTheDescription) {
  const TemporaryFolder folder;
  const std::string file = folder.write(
      "lab.toml",
      "name = \"lab\"\n[[devices]]\nname = \"A100\"\nmemory_gib = 80\n"
      "memory_gb_per_s = 2039\nteraflops = { bfloat16 = 312 }\n"
      "[[hosts]]\ndevices = 8\ndevice = \"A100\"\ndisk_gb_per_s = 1\nfailure_hours = 1000\n"
      "[[links]]\nlevel = \"host\"\ngb_per_s = 300\n[[links]]\nlevel = \"cluster\"\n"
      "gb_per_s = 25\n");
  const Finished finished = predict(std::string(kSmallGpt) + "-n 32 --cluster " + file);
  EXPECT_EQ(finished.code, 0) << finished.output;
  // 250 hours for four hosts.
  EXPECT_THAT(finished.output, AllOf(HasSubstr("failures"), HasSubstr("10.4 days")));
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
  EXPECT_THAT(output(""), HasSubstr("no program, no --model and no --validate"));
  EXPECT_THAT(output("--model gtp"), HasSubstr("gpt"));
  EXPECT_THAT(output("--validate cases.csv --trace step.json"),
              HasSubstr("--trace has no effect here"));
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

TEST(PredictCommand, KnowsHowTheSystemOfATableRuns) {
  const TemporaryFolder folder;
  const auto predicted = [&](const std::string& table, const std::string& more,
                             const std::string& values) {
    const std::string file = folder / "cases.csv";
    std::string columns = kColumns;
    columns.insert(columns.size() - 1, more);
    std::ofstream(file) << columns << table
                        << ",gpt,4,256,4,1024,1000,512,A100-80,8,float16,1,1,,8,0,none,2,16,"
                           "tokens_per_second_per_device,1000"
                        << values << '\n';
    const Finished finished = predict("--validate " + file);
    EXPECT_EQ(finished.code, 0) << finished.output;
    // The line of the case: title, published and predicted figure.
    const std::size_t line = finished.output.find("gpt 4x256");
    return finished.output.substr(line, finished.output.find('\n', line) - line);
  };
  const std::string megatron = predicted("megatron_mine", "", "");
  EXPECT_NE(megatron, predicted("mosaicml_mine", "", ""));
  EXPECT_EQ(megatron, predicted("mine", ",attention,elements,dropout", ",unfused,fused,0.1"));
  EXPECT_EQ(predicted("mosaicml_mine", "", ""),
            predicted("mine", ",attention,elements", ",triton,eager"));
}

TEST(PredictCommand, ComparesOrdersAndWhatFits) {
  const TemporaryFolder folder;
  const auto row = [](int zero, const std::string& recompute, const std::string& outcome) {
    return "mine,gpt,4,256,4,1024,1000,128,A100-80,8,bfloat16,1,1,,8," + std::to_string(zero) +
           "," + recompute + ",2,16," + outcome + "\n";
  };
  const std::string file =
      file_of(folder, row(0, "none", "tokens_per_second_per_device,900000") +
                          row(0, "full", "tokens_per_second_per_device,700000") +
                          row(3, "full", "tokens_per_second_per_device,800000") +
                          row(0, "some_blocks", "memory_gib,1") + row(0, "none", "out_of_memory,"));
  const Finished finished = predict("--validate " + file);
  EXPECT_EQ(finished.code, 0) << finished.output;
  EXPECT_THAT(finished.output,
              AllOf(HasSubstr("order of 3 strategies of mine, gpt 4x256 s128, 8 A100-80: "
                              "Spearman's coefficient 1.00"),
                    HasSubstr("recomputes 0 of 4 blocks"), HasSubstr("mine, memory: 1 cases"),
                    HasSubstr("0 of 4 cases that ran are said not to fit, 1 of 1 cases that ran "
                              "out of memory are said to fit")));
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

TEST(CalibrateCommand, SaysWhatIsWrongBeforeItMeasures) {
  const auto output = [](const std::string& arguments) {
    return shell("'" + variable("TRIREME_BIN") + "/trireme' calibrate " + arguments).output;
  };
  EXPECT_THAT(output("--ranks 0"), HasSubstr("--ranks"));
  EXPECT_THAT(output("--ranks 1 -o /nowhere/host.toml"),
              HasSubstr("folder /nowhere, where --output is to be written, does not exist"));
  EXPECT_THAT(output("--device cuda:1"),
              AllOf(HasSubstr("--device cuda:1 names one device, but each rank measures its own"),
                    HasSubstr("give the type alone: --device cuda")));
  EXPECT_THAT(output("--device meta"), HasSubstr("--device meta is no accelerator"));
  EXPECT_THAT(output("--device gpu"), HasSubstr("--device gpu is no type of device of LibTorch"));
  EXPECT_THAT(output("--device mps"),  // of no machine with Linux
              HasSubstr("--device mps: LibTorch can use no device of this type on this machine"));
  const std::string program = "'" + variable("TRIREME_BIN") + "/trireme' ";
  EXPECT_THAT(shell(program + "run -n 1 -- " + program + "calibrate --device mps").output,
              HasSubstr("rank 0 would measure mps 0, but LibTorch can use 0 devices"));
}

}  // namespace
}  // namespace trireme::test
