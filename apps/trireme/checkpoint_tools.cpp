// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/checkpoint_tools.h>

#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/convert.h>
#include <trireme/checkpoint/inspect.h>
#include <trireme/checkpoint/reader.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <vector>

namespace trireme::apps {
namespace {

// Returns the prefixes of the checkpoints in a folder: the names up to `-<epoch>_<step>`.
std::vector<std::string> prefixes_in(const std::filesystem::path& folder) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const std::size_t end = name.find_last_not_of("0123456789_");
    if (end == std::string::npos || end == 0 || name[end] != '-') continue;
    const std::string prefix = name.substr(0, end);
    if (!checkpoint::list_checkpoints(folder, prefix).empty()) found.insert(prefix);
  }
  return {found.begin(), found.end()};
}

// Returns why a path is no checkpoint at all, or an empty string if it may be a damaged one.
std::string reason_not_a_checkpoint(const std::string& path) {
  if (!std::filesystem::exists(path)) return "there is no such folder";
  const bool has_index = std::filesystem::exists(std::filesystem::path(path) / "index.json");
  if (has_index || !std::filesystem::is_directory(path) || prefixes_in(path).empty()) return "";
  return join_message("holds checkpoints, and is none itself; give ", path, "/*");
}

int verify(const std::vector<std::string>& paths) {
  int code = 0;
  for (const std::string& path : paths) {
    std::string verdict = reason_not_a_checkpoint(path);
    const auto damage =
        verdict.empty() ? checkpoint::find_damage(path) : std::vector<std::string>();
    if (!verdict.empty() || !damage.empty()) code = 1;
    if (verdict.empty()) verdict = damage.empty() ? "whole and undamaged" : "damaged";
    std::cout << path << ": " << verdict << "\n";
    for (const std::string& line : damage) std::cout << "  " << line << "\n";
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
  // The extension of the destination selects the kind of conversion.
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

void check_has_checkpoints(const std::filesystem::path& folder, const std::string& prefix) {
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError(join_message(folder.string(), " is no folder"),
                      "name the folder that the checkpoints are in");
  }
  if (!checkpoint::list_checkpoints(folder, prefix).empty()) return;
  const std::vector<std::string> prefixes = prefixes_in(folder);
  const std::string meant = config::did_you_mean(prefix, prefixes);
  throw ConfigError(
      join_message("no checkpoint in ", folder.string(), " has the prefix '", prefix, "'"),
      prefixes.empty() ? std::string("it has no checkpoints at all")
                       : join_message(meant, meant.empty() ? "" : " ", "the prefixes there are ",
                                      list_text(prefixes)));
}

int prune(const CheckpointTask& task) {
  check_has_checkpoints(task.paths.at(0), task.prefix);
  // Also removes incomplete checkpoints of killed runs.
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
  if (gone.empty()) std::cout << "nothing to remove: all are to stay\n";
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
