// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/checkpoint_command.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/checkpoint_tools.h>
#include <apps/trireme/command_line.h>
#include <apps/trireme/torch_parts.h>

#include <memory>
#include <string>

namespace trireme::apps {
namespace {

using Kind = CheckpointTask::Kind;

constexpr std::int64_t kMostMinutes = 100LL * 366 * 24 * 60;

// Rejects options that have no effect because of another option or a path.
void refuse_without_effect(const CLI::App& command, const CheckpointTask& task) {
  if (task.kind == Kind::kConvert) {
    const bool is_one_file = task.paths.at(1).ends_with(".safetensors");
    if (is_one_file) {
      refuse_given(command, "--prefix", "one file has no prefix", "leave it out");
    } else {
      refuse_given(command, "--section", "a checkpoint gets all sections",
                   "leave it out, or name a destination that ends in .safetensors");
    }
  }
  if (task.kind == Kind::kPrune && task.keep_best == 0) {
    refuse_given(command, "--higher-is-better", "scores play no part without --keep-best",
                 "give --keep-best too, or leave it out");
  }
}

// Adds a subcommand of `checkpoint` that executes a task.
CLI::App* add(CLI::App& command, const std::shared_ptr<CheckpointTask>& task, Kind kind,
              const std::string& name, const std::string& description) {
  CLI::App* const own = command.add_subcommand(name, description);
  own->callback([task, kind, own] {
    task->kind = kind;
    refuse_without_effect(*own, *task);
    if (const int code = checkpoint_task(*task); code != 0) throw CLI::RuntimeError(code);
  });
  return own;
}

}  // namespace

void add_checkpoint_command(CLI::App& app) {
  CLI::App& command =
      *app.add_subcommand("checkpoint", "Inspect, verify, compare, convert and remove checkpoints");
  command.require_subcommand(1);
  const auto task = std::make_shared<CheckpointTask>();

  add(command, task, Kind::kInspect, "inspect",
      "List the content of a checkpoint or .safetensors file")
      ->add_option("path", task->paths, "Folder of a checkpoint, or a .safetensors file")
      ->required()
      ->expected(1);

  add(command, task, Kind::kVerify, "verify",
      "Verify all checksums of checkpoints; exit code 1 if one is damaged")
      ->add_option("paths", task->paths, "Folders of checkpoints")
      ->required();

  add(command, task, Kind::kDiff, "diff",
      "List the differences of two checkpoints; exit code 1 if there are any")
      ->add_option("paths", task->paths, "Two checkpoints")
      ->required()
      ->expected(2);

  CLI::App& convert = *add(
      command, task, Kind::kConvert, "convert",
      "Convert a checkpoint (also of an older format) or a .safetensors file. A destination that "
      "ends in .safetensors becomes one file with whole tensors; any other is a folder that gets a "
      "checkpoint of one rank");
  convert.add_option("paths", task->paths, "Source and destination")->required()->expected(2);
  convert.add_option("--section", task->section,
                     "Section to write to one file: model (default) or optimizer");
  convert.add_option("--prefix", task->prefix,
                     "Prefix of the new checkpoint (default: checkpoint)");

  CLI::App& prune =
      *add(command, task, Kind::kPrune, "prune", "Remove old checkpoints of a prefix");
  prune.add_option("folder", task->paths, "Folder of the checkpoints")->required()->expected(1);
  prune.add_option("--prefix", task->prefix, "Prefix of the checkpoints")->required();
  prune
      .add_option("--keep-last", task->keep_last, "Number of recent checkpoints to keep, 1 or more")
      ->required()
      ->check(integer_from(1));
  prune
      .add_option("--keep-best", task->keep_best,
                  "Number of checkpoints with the lowest scores to keep too")
      ->check(integer_from(0));
  prune.add_flag("--higher-is-better", task->higher_is_better, "Keep the highest scores instead");
  prune
      .add_option("--keep-every", task->keep_every_minutes,
                  "Keep one checkpoint for each span of this many minutes too")
      ->check(integer_from(0, kMostMinutes));
  prune.add_flag("--dry-run", task->dry_run, "Print what would be removed, without removing it");
}

}  // namespace trireme::apps
