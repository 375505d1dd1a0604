// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/plan_command.h>

#include <trireme/base/config/configuration.h>
#include <trireme/base/error.h>

#include <apps/trireme/command_line.h>
#include <apps/trireme/plan_tools.h>
#include <apps/trireme/recorded_program.h>
#include <apps/trireme/torch_parts.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

namespace trireme::apps {
namespace {

constexpr const char* kPlanDescription =
    R"(Find the plan that trains a model fastest on a cluster, before anything runs:
  trireme plan --model gpt --set layers=40 --set hidden=5120 --set heads=40 \
    -n 64 --cluster a100-80 --batch 512
with parts of the plan given, and with the reason against another:
  trireme plan --model gpt -n 8 --batch 64 --with pipe=1 --with memory_gib=30 --why-not tensor=8

of a program whose training is a Model, which runs up to its first step without memory for tensors:
  trireme plan -n 64 --cluster h100-80 -- ./train --epochs 3

Constraints are data, pipe, tensor (= <= >=), zero_level, micro_batches, rows, schedule, chunks,
recompute (none, repeated) and memory_gib. The plan is saved as TOML by --save, for
trireme predict --plan and for programs.)";

void plan_program(const CLI::App& command, const PlanTask& task,
                  const std::vector<std::string>& program) {
  for (const char* option :
       {"--model", "--set", "--batch", "--dtype", "--optimizer", "--megatron", "--loop"}) {
    refuse_given(command, option, "the plan of a program is searched for",
                 "leave it out; the program decides that");
  }
  search::PlanRequest request = task.request;
  const RecordedProgram recorded(
      {.ranks = task.ranks,
       .cluster = task.cluster,
       .write_request =
           [&request](const std::filesystem::path& folder) {
             config::Configuration(request).save(folder / search::kRequestFile);
           },
       .answer_file = search::kAnswerFile,
       .hint = "searches need a program that calls trireme::init() and trains by a Model; with "
               "arguments that let it train"},
      program);
  if (recorded.exit_code() != 0) throw CLI::RuntimeError(recorded.exit_code());
  std::cout << std::ifstream(recorded.folder() / search::kAnswerFile).rdbuf();
  const std::filesystem::path found = recorded.folder() / search::kFoundPlanFile;
  if (!std::filesystem::exists(found)) throw CLI::RuntimeError(1);
  if (task.output.empty()) return;
  std::error_code error;
  std::filesystem::copy_file(found, task.output, std::filesystem::copy_options::overwrite_existing,
                             error);
  if (!error) return;
  throw ConfigError(join_message("--save ", task.output, ": ", error.message()),
                    "give a file that can be written");
}

}  // namespace

void add_plan_command(CLI::App& app, const std::vector<std::string>& program_tail) {
  CLI::App* const command = app.add_subcommand("plan", kPlanDescription);
  const auto task = std::make_shared<PlanTask>();
  constexpr std::int64_t kMost = 1 << 20;
  command->add_option("--model", task->model, "Family of models")
      ->check(one_of({"gpt", "llama", "bert", "mixture", "vit", "resnet"}));
  command->add_option("--set", task->model_settings, "Setting of the model, such as layers=96")
      ->option_text("KEY=VALUE ...");
  command->add_option("-n,--ranks", task->ranks, "Number of ranks, one for each device")
      ->check(integer_from(1, kMost))
      ->capture_default_str();
  command->add_option("--cluster", task->cluster, "Description of the cluster, or its file")
      ->option_text("NAME")
      ->capture_default_str();
  command->add_option("--batch", task->rows, "Rows of a step, over all ranks")
      ->check(integer_from(1, 1LL << 40));
  command->add_option("--dtype", task->dtype, "Type of parameters and activations")
      ->check(one_of({"float32", "bfloat16", "float16"}))
      ->capture_default_str();
  command
      ->add_option("--elements", task->request.elements,
                   "How operators on elements run: one by one (eager), consecutive ones as one "
                   "kernel (fused), or as torch.compile does it (compiled)")
      ->check(one_of({"eager", "fused", "compiled"}))
      ->capture_default_str();
  command->add_option("--optimizer", task->optimizer, "Optimizer")
      ->check(one_of({"sgd", "momentum", "adam"}))
      ->capture_default_str();
  command
      ->add_option("--plan-set", task->request.plan_settings,
                   "Setting that all plans have, such as wire=bf16")
      ->option_text("KEY=VALUE ...");
  command
      ->add_option("--with", task->request.constraints, "Constraint, such as tensor=8 or pipe<=4")
      ->option_text("CONSTRAINT ...");
  command
      ->add_option("--why-not", task->request.why_not,
                   "Compare the plan with the best one under a further constraint")
      ->option_text("CONSTRAINT ...");
  command
      ->add_option_function<Real>(
          "--seconds", [task](const Real& real) { task->request.seconds = real.value; },
          "Time of predictions after which the best plan so far is taken [10]")
      ->option_text("SECONDS")
      ->check(number_from_zero());
  command->add_flag("--megatron", task->takes_megatron_layouts,
                    "Take the layouts of Megatron-LM along tensor, instead of searching for them");
  command->add_flag("--loop", task->is_loop,
                    "The training is a loop that calls backward itself: no stages and no "
                    "recomputation");
  command->add_option("--save", task->output, "File for the plan, as TOML")->option_text("FILE");
  command->add_flag("--json", task->request.as_json, "Print JSON")->excludes("--why-not");
  command->callback([command, task, &program_tail] {
    if (program_tail.size() > 1) {
      return plan_program(*command, *task, {program_tail.begin() + 1, program_tail.end()});
    }
    for (const char* option : {"--model", "--batch"}) {
      if (command->count(option) > 0) continue;
      throw ConfigError(join_message("trireme plan was given no program and no ", option),
                        "give it a program after `--`, or a model and its rows of a step, such as "
                        "--model gpt --batch 512");
    }
    if (const int code = plan_task(*task); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace trireme::apps
