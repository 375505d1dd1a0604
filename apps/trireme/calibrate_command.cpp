// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/calibrate_command.h>

#include <trireme/base/machine.h>

#include <apps/trireme/command_line.h>
#include <apps/trireme/run_ranks.h>
#include <apps/trireme/torch_parts.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::apps {
namespace {

constexpr const char* kDescription =
    R"(Measure this host and describe it as a cluster for trireme predict:
  trireme calibrate --ranks 2 --output my-host.toml
  trireme predict --model gpt -n 2 --cluster ./my-host.toml

Every figure is that of a rank while all ranks compute: measure with as many ranks as will
train. Takes about a minute, in which nothing else should run.)";

struct Arguments {
  CalibrateTask task = {.output = "cluster.toml", .device = "cpu"};
  std::optional<int> ranks;
};

void calibrate(const Arguments& arguments) {
  // Without a launcher, this process starts the ranks itself; otherwise it is one of them.
  if (is_alone()) {
    const CalibrateTask& task = arguments.task;
    // Asked also if the number of ranks is given, so that a wrong device is one message and not one
    // of each rank.
    const int most = task.device == "cpu" ? available_cores() : accelerators_of_host(task.device);
    const int ranks = arguments.ranks.value_or(most);
    std::vector<std::string> words = {"calibrate", "--output", task.output, "--device",
                                      task.device};
    if (task.memory_gib > 0) {
      words.insert(words.end(), {"--memory-gib", std::to_string(task.memory_gib)});
    }
    const int code = run_ranks(words, ranks);
    if (code != 0) throw CLI::RuntimeError(code);
    return;
  }
  if (arguments.ranks) check_ranks(*arguments.ranks);
  calibrate_host(arguments.task);
}

}  // namespace

void add_calibrate_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("calibrate", kDescription);
  const auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("--ranks", arguments->ranks,
                   "Number of ranks that measure together (default: one for each available core, "
                   "or for each accelerator, which is also the most)")
      ->check(integer_from(1, 4096));
  command->add_option("-o,--output", arguments->task.output, "File of the description")
      ->option_text("FILE")
      ->capture_default_str();
  command
      ->add_option("--device", arguments->task.device,
                   "Type of the devices to measure: cpu, cuda or another one of LibTorch")
      ->capture_default_str();
  command
      ->add_option("--memory-gib", arguments->task.memory_gib,
                   "Memory of an accelerator in GiB, where its allocator does not say it")
      ->check(CLI::NonNegativeNumber);
  command->callback([arguments] { calibrate(*arguments); });
}

}  // namespace trireme::apps
