// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/recorded_program.h>

#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/launch/run/run.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <system_error>

namespace trireme::apps {
namespace {

std::filesystem::path make_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "trireme-predict-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw ConfigError(join_message("cannot make the folder ", name),
                      "set TMPDIR to a folder that can be written");
  }
  return name;
}

void write_request(const PredictTask& task, const std::filesystem::path& folder) {
  if (!task.plan_file.empty()) {
    if (!std::filesystem::is_regular_file(task.plan_file)) {
      throw ConfigError(join_message("cannot read ", task.plan_file),
                        "give --plan a TOML file with a plan");
    }
    std::ofstream(folder / "plan") << std::filesystem::absolute(task.plan_file).string();
  }
  std::ofstream settings(folder / "settings");
  for (const std::string& assignment : task.plan_settings) settings << assignment << '\n';
}

}  // namespace

RecordedRun step_of_program(const PredictTask& task) {
  return {.ranks = task.ranks,
          .cluster = task.cluster,
          .write_request = [&task](const auto& folder) { write_request(task, folder); },
          .answer_file = "step",
          .hint =
              "predictions need a program that calls trireme::init() and trains by "
              "parallelize, TrainingStep or Model; with arguments that let it train"};
}

RecordedProgram::RecordedProgram(const RecordedRun& run, const std::vector<std::string>& program)
    : folder_(make_folder()) {
  const cluster::Cluster cluster = cluster::read_cluster(run.cluster).with_ranks(run.ranks);
  run.write_request(folder_);
  const std::int64_t local_ranks = std::min(run.ranks, cluster.hosts.front().devices);
  launch::RunOptions options;
  options.command = program;
  options.processes = 1;
  options.output = launch::Output::kNone;
  options.environment = {{"TRIREME_CLUSTER", cluster::absolute_cluster_name(run.cluster)},
                         {"TRIREME_PREDICT", folder_.string()},
                         {"TRIREME_PREDICT_RANK", "0"},
                         {"TRIREME_PREDICT_RANKS", std::to_string(run.ranks)},
                         {"TRIREME_PREDICT_LOCAL_RANK", "0"},
                         {"TRIREME_PREDICT_LOCAL_RANKS", std::to_string(local_ranks)}};
  exit_code_ = launch::run(options);
  if (exit_code_ == 0 && !std::filesystem::exists(folder_ / run.answer_file)) {
    throw ConfigError(join_message(program.front(), " has ended without a training step"),
                      run.hint);
  }
}

RecordedProgram::~RecordedProgram() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace trireme::apps
