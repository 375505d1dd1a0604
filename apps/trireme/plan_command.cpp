// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/plan_command.h>

#include <apps/trireme/command_line.h>
#include <apps/trireme/plan_tools.h>
#include <apps/trireme/torch_parts.h>

#include <memory>

namespace trireme::apps {
namespace {

constexpr const char* kPlanDescription =
    R"(Find the plan that trains a model fastest on a cluster, before anything runs:
  trireme plan --model gpt --set layers=40 --set hidden=5120 --set heads=40 \
    -n 64 --cluster a100-80 --batch 512
with parts of the plan given, and with the reason against another:
  trireme plan --model gpt -n 8 --batch 64 --with pipe=1 --with memory_gib=30 --why-not tensor=8

Constraints are data, pipe, tensor (= <= >=), zero_level, micro_batches, rows, schedule, chunks,
recompute (none, repeated) and memory_gib. The plan is saved as TOML by --save, for
trireme predict --plan and for programs.)";

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("plan", kPlanDescription);
  const auto task = std::make_shared<PlanTask>();
  constexpr std::int64_t kMost = 1 << 20;
  command->add_option("--model", task->model, "Family of models")
      ->check(one_of({"gpt", "llama", "bert", "mixture", "vit", "resnet"}))
      ->required();
  command->add_option("--set", task->model_settings, "Setting of the model, such as layers=96")
      ->option_text("KEY=VALUE ...");
  command->add_option("-n,--ranks", task->ranks, "Number of ranks, one for each device")
      ->check(integer_from(1, kMost))
      ->capture_default_str();
  command->add_option("--cluster", task->cluster, "Description of the cluster, or its file")
      ->option_text("NAME")
      ->capture_default_str();
  command->add_option("--batch", task->rows, "Rows of a step, over all ranks")
      ->check(integer_from(1, 1LL << 40))
      ->required();
  command->add_option("--dtype", task->dtype, "Type of parameters and activations")
      ->check(one_of({"float32", "bfloat16", "float16"}))
      ->capture_default_str();
  command
      ->add_option("--elements", task->elements,
                   "How operators on elements run: one by one (eager), consecutive ones as one "
                   "kernel (fused), or as torch.compile does it (compiled)")
      ->check(one_of({"eager", "fused", "compiled"}))
      ->capture_default_str();
  command->add_option("--optimizer", task->optimizer, "Optimizer")
      ->check(one_of({"sgd", "momentum", "adam"}))
      ->capture_default_str();
  command
      ->add_option("--plan-set", task->plan_settings,
                   "Setting that all plans have, such as wire=bf16")
      ->option_text("KEY=VALUE ...");
  command->add_option("--with", task->constraints, "Constraint, such as tensor=8 or pipe<=4")
      ->option_text("CONSTRAINT ...");
  command
      ->add_option("--why-not", task->why_not,
                   "Compare the plan with the best one under a further constraint")
      ->option_text("CONSTRAINT ...");
  command
      ->add_option_function<Real>(
          "--seconds", [task](const Real& real) { task->seconds = real.value; },
          "Time of predictions after which the best plan so far is taken [10]")
      ->option_text("SECONDS")
      ->check(number_from_zero());
  command->add_flag("--megatron", task->takes_megatron_layouts,
                    "Take the layouts of Megatron-LM along tensor, instead of searching for them");
  command->add_flag("--loop", task->is_loop,
                    "The training is a loop that calls backward itself: no stages and no "
                    "recomputation");
  command->add_option("--save", task->output, "File for the plan, as TOML")->option_text("FILE");
  command->add_flag("--json", task->as_json, "Print JSON")->excludes("--why-not");
  command->callback([task] {
    if (const int code = plan_task(*task); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace trireme::apps
