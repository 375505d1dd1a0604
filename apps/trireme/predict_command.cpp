// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/predict_command.h>

#include <trireme/base/error.h>

#include <apps/trireme/command_line.h>
#include <apps/trireme/predict_tools.h>
#include <apps/trireme/torch_parts.h>

#include <memory>

namespace trireme::apps {
namespace {

constexpr const char* kDescription =
    R"(Predict time and memory of a training step before anything runs:
  trireme predict --model gpt --set layers=40 --set hidden=5120 --set heads=40 \
    -n 64 --cluster a100-80 --plan-set zero_level=3
compare predictions with published measurements:
  trireme predict --validate cases.csv

A cluster is the name of a description that comes with Trireme (a100-80, h100-80, ...), or a
TOML file. The plan is a TOML file, and settings of it; without a mesh, all ranks are along data.)";

void predict(const PredictTask& task) {
  if (task.validate.empty() && task.model.empty()) {
    throw ConfigError("trireme predict was given neither --model nor --validate",
                      "name a model, such as --model gpt, or files with measurements");
  }
  if (const int code = predict_task(task); code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

void add_predict_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("predict", kDescription);
  const auto task = std::make_shared<PredictTask>();
  command->add_option("--model", task->model, "Family of models")
      ->check(one_of({"gpt", "llama", "bert", "resnet"}));
  command->add_option("--set", task->model_settings, "Setting of the model, such as layers=96")
      ->option_text("KEY=VALUE ...");
  command->add_option("-n,--ranks", task->ranks, "Number of ranks, one for each device")
      ->check(integer_from(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--cluster", task->cluster, "Description of the cluster, or its file")
      ->option_text("NAME")
      ->capture_default_str();
  command->add_option("--plan", task->plan_file, "Plan as a TOML file")->option_text("FILE");
  command
      ->add_option("--plan-set", task->plan_settings, "Setting of the plan, such as zero_level=3")
      ->option_text("KEY=VALUE ...");
  command->add_option("--rows", task->rows, "Rows of a micro-batch on each rank along data")
      ->check(integer_from(1, 1 << 20))
      ->capture_default_str();
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
  command->add_flag("--json", task->as_json, "Print JSON");
  command
      ->add_option("--validate", task->validate,
                   "Compare predictions with the measurements in CSV files")
      ->option_text("FILE ...");
  command
      ->add_option("--fit", task->fit,
                   "With --validate: fit the four efficiencies of a device kind to the files, "
                   "and print them")
      ->option_text("DEVICE");
  command->callback([task] { predict(*task); });
}

}  // namespace trireme::apps
