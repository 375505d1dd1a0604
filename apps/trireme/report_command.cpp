// SPDX-License-Identifier: Apache-2.0
#include "report_command.h"
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/cluster/operator_time.h>
#include <trireme/report/page/page.h>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::apps {
namespace {

struct ReportOptions {
  std::vector<std::filesystem::path> runs;
  std::filesystem::path output;
  std::string cluster;
};

// Compares a run with the peak of these devices. Notes why that is impossible.
void set_peak(report::RunLog& run, const cluster::Cluster& cluster) {
  run.peak.reset();  // what the run has recorded is that of another description
  const auto flops = report::flops_per_sample_of(run);
  const auto dtype = report::dtype_of(run);
  if (!flops || !dtype) {
    run.notes.push_back(join_message(
        "utilization is unknown: the run has recorded no ",
        flops ? "dtype" : "FLOPs of its samples (JsonlWriterOptions::flops_per_sample)"));
    return;
  }
  try {
    run.peak = report::Peak{.flops = cluster::peak_flops(cluster, run.world_size, *dtype),
                            .dtype = *dtype,
                            .cluster = cluster.name};
  } catch (const UsageError& error) {
    std::string reason = error.what();  // a note has one line
    constexpr std::string_view kHint = "\n  hint: ";
    if (const auto at = reason.find(kHint); at != std::string::npos) {
      reason.replace(at, kHint.size(), ": ");
    }
    run.notes.push_back(join_message("utilization is unknown: ", reason));
  }
}

// Distinguishes folders with the same name by their paths as typed.
void name_apart(std::vector<report::RunLog>& runs,
                const std::vector<std::filesystem::path>& folders) {
  std::map<std::string, int> uses;
  for (const report::RunLog& run : runs) ++uses[run.name];
  for (std::size_t index = 0; index < runs.size(); ++index) {
    if (uses[runs[index].name] > 1) runs[index].name = folders[index].string();
  }
}

void write_report(const ReportOptions& options) {
  std::optional<cluster::Cluster> cluster;
  if (!options.cluster.empty()) cluster = cluster::read_cluster(options.cluster);
  std::vector<report::RunLog> runs;
  for (const std::filesystem::path& folder : options.runs) {
    runs.push_back(report::read_run(folder));
    if (cluster) set_peak(runs.back(), *cluster);
  }
  const bool is_one = runs.size() == 1;
  name_apart(runs, options.runs);
  auto file = options.output;
  if (file.empty()) file = is_one ? options.runs.front() / "report.html" : "comparison.html";
  if (is_one) {
    report::write_page(runs.front(), file);
  } else {
    report::write_page(runs, file);
  }
  for (const report::RunLog& run : runs) {
    for (const std::string& note : run.notes)
      std::cout << "note: " << (is_one ? "" : run.name + ": ") << note << '\n';
  }
  std::cout << "wrote " << file.string() << " (" << (std::filesystem::file_size(file) + 1023) / 1024
            << " KiB)\n";
}

}  // namespace

void add_report_command(CLI::App& app) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App* const command = app.add_subcommand("report", "Make an HTML page from a run folder");
  command
      ->add_option("run", options->runs,
                   "Run folder with events-rank<r>.jsonl; several are compared on one page")
      ->required();
  command->add_option("--output", options->output, "File to write")
      ->default_str("report.html in that folder; comparison.html here for several");
  command
      ->add_option("--cluster", options->cluster,
                   "Description of the devices, or its file: shows which share of their peak the "
                   "model reaches")
      ->option_text("NAME")
      ->default_str("what the run has recorded");
  command->callback([options] { write_report(*options); });
}

}  // namespace trireme::apps
