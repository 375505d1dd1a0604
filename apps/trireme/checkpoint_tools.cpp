// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/checkpoint_tools.h>

#include <trireme/base/error.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/convert.h>
#include <trireme/checkpoint/inspect.h>
#include <trireme/checkpoint/reader.h>

#include <chrono>
#include <filesystem>
#include <iostream>

namespace trireme::apps {
namespace {

int verify(const std::vector<std::string>& paths) {
  int code = 0;
  for (const std::string& path : paths) {
    const auto damage = checkpoint::find_damage(path);
    std::cout << path << ": " << (damage.empty() ? "whole and undamaged" : "damaged") << "\n";
    for (const std::string& line : damage) std::cout << "  " << line << "\n";
    if (!damage.empty()) code = 1;
  }
  return code;
}

int diff(const CheckpointTask& task) {
  const auto lines = checkpoint::differences(task.paths.at(0), task.paths.at(1));
  for (const std::string& line : lines) std::cout << line << "\n";
  if (lines.empty()) std::cout << "the same, bit for bit\n";
  return lines.empty() ? 0 : 1;
}

int convert(const CheckpointTask& task) {
  const std::filesystem::path source = task.paths.at(0);
  const std::filesystem::path destination = task.paths.at(1);
  if (destination.extension() == ".safetensors") {
    const auto digest = checkpoint::export_safetensors(source, destination, task.section);
    std::cout << destination.string() << ": " << digest.bytes << " bytes\n";
    return 0;
  }
  checkpoint::SaveOptions options{.folder = destination, .keep = 0};
  if (!task.prefix.empty()) options.prefix = task.prefix;
  std::cout << checkpoint::convert(source, options).string() << "\n";
  return 0;
}

int prune(const CheckpointTask& task) {
  if (!task.dry_run) checkpoint::remove_leftovers(task.paths.at(0), task.prefix);
  const auto gone = checkpoint::keep(task.paths.at(0), task.prefix,
                                     {.last = task.keep_last,
                                      .best = task.keep_best,
                                      .higher_is_better = task.higher_is_better,
                                      .every = std::chrono::minutes(task.keep_every_minutes)},
                                     checkpoint::system_files(), task.dry_run);
  for (const auto& path : gone) {
    std::cout << (task.dry_run ? "would remove " : "removed ") << path.string() << "\n";
  }
  return 0;
}

}  // namespace

int do_checkpoint_task(const CheckpointTask& task) {
  switch (task.kind) {
    case CheckpointTask::Kind::kInspect:
      std::cout << checkpoint::describe_checkpoint(task.paths.at(0));
      return 0;
    case CheckpointTask::Kind::kVerify:
      return verify(task.paths);
    case CheckpointTask::Kind::kDiff:
      return diff(task);
    case CheckpointTask::Kind::kConvert:
      return convert(task);
    case CheckpointTask::Kind::kPrune:
      return prune(task);
  }
  return 0;
}

}  // namespace trireme::apps
