// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/predict_command.h>

#include <trireme/base/error.h>

#include <apps/trireme/command_line.h>
#include <apps/trireme/predict_tools.h>
#include <apps/trireme/recorded_program.h>
#include <apps/trireme/torch_parts.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::apps {
namespace {

constexpr const char* kDescription =
    R"(Predict time and memory of a training step before anything runs:
  trireme predict --model gpt --set layers=40 --set hidden=5120 --set heads=40 \
    -n 64 --cluster a100-80 --plan-set zero_level=3
predict the first step of a program, which runs up to it without memory for its tensors:
  trireme predict -n 1024 --cluster h100-80 -- ./train --epochs 3
compare predictions with published measurements:
  trireme predict --validate cases.csv

A cluster is the name of a description that comes with Trireme (a100-80, h100-80, ...), or a
TOML file. The plan is a TOML file, and settings of it; without a mesh, all ranks are along data.
A program's own plan is used unless a file is given, and settings change either.)";

// Numbers are read without regard to the locale.
void add_number(CLI::App& command, const char* name, std::optional<double>& number,
                const char* unit, const char* text) {
  command
      .add_option_function<Real>(
          name, [&number](const Real& real) { number = real.value; }, text)
      ->option_text(unit)
      ->check(number_from_zero());
}

void add_fault_options(CLI::App& command, FaultSettings& faults) {
  add_number(command, "--host-failure-hours", faults.host_failure_hours, "HOURS",
             "Mean time between two failures of one host [failure_hours of the cluster]");
  add_number(command, "--save-seconds", faults.save_seconds, "SECONDS",
             "How long a checkpoint stops training [time in which all hosts write it]");
  add_number(command, "--load-seconds", faults.load_seconds, "SECONDS",
             "Time to load a checkpoint after a failure [the same, or 60]");
  add_number(command, "--detect-seconds", faults.detect_seconds, "SECONDS",
             "Time until a failure is noticed [60]");
  add_number(command, "--restart-seconds", faults.restart_seconds, "SECONDS",
             "Time until the ranks run again, before loading [300]");
  add_number(command, "--interval-seconds", faults.interval_seconds, "SECONDS",
             "Time between two checkpoints [the best]");
}

void predict_program(const CLI::App& command, PredictTask task,
                     const std::vector<std::string>& program) {
  for (const char* option : {"--model", "--set", "--rows", "--dtype", "--validate", "--fit"}) {
    refuse_given(command, option, "the step of a program is predicted",
                 "leave it out; the program decides that");
  }
  const RecordedProgram recorded(step_of_program(task), program);
  if (recorded.exit_code() != 0) throw CLI::RuntimeError(recorded.exit_code());
  task.record_file = recorded.folder() / "step";
  if (const int code = predict_task(task); code != 0) throw CLI::RuntimeError(code);
}

void predict(const CLI::App& command, const PredictTask& task,
             const std::vector<std::string>& program) {
  if (!task.validate.empty()) {
    for (const char* option :
         {"--trace", "--picture", "--host-failure-hours", "--save-seconds", "--load-seconds",
          "--detect-seconds", "--restart-seconds", "--interval-seconds"}) {
      refuse_given(command, option, "--validate predicts many trainings",
                   "leave it out, or predict one training by --model");
    }
  }
  if (!program.empty()) return predict_program(command, task, program);
  if (task.validate.empty() && task.model.empty()) {
    throw ConfigError("trireme predict was given no program, no --model and no --validate",
                      "give it a program after `--`, a model, such as --model gpt, or files with "
                      "measurements");
  }
  if (const int code = predict_task(task); code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

void add_predict_command(CLI::App& app, const std::vector<std::string>& program_tail) {
  CLI::App* const command = app.add_subcommand("predict", kDescription);
  const auto task = std::make_shared<PredictTask>();
  command->add_option("--model", task->model, "Family of models")
      ->check(one_of({"gpt", "llama", "bert", "mixture", "vit", "resnet"}));
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
  add_fault_options(*command, task->faults);
  command
      ->add_option("--trace", task->trace_file,
                   "File for a trace of the simulated step, for Perfetto or chrome://tracing")
      ->option_text("FILE");
  command
      ->add_option("--picture", task->picture_file,
                   "File for a picture of the memory over the step, an SVG")
      ->option_text("FILE");
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
  command->callback([command, task, &program_tail] {
    const std::size_t mark = program_tail.empty() ? 0 : 1;  // the `--` itself
    predict(*command, *task,
            {program_tail.begin() + static_cast<std::ptrdiff_t>(mark), program_tail.end()});
  });
}

}  // namespace trireme::apps
