// SPDX-License-Identifier: Apache-2.0
#include "report_command.h"
#include <trireme/report/page/page.h>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>

namespace trireme::apps {
namespace {

struct ReportOptions {
  std::filesystem::path run;
  std::filesystem::path output;
};

void write_report(const ReportOptions& options) {
  const report::RunLog run = report::read_run(options.run);
  const auto file = options.output.empty() ? options.run / "report.html" : options.output;
  report::write_page(run, file);
  for (const std::string& note : run.notes) std::cout << "note: " << note << '\n';
  std::cout << "wrote " << file.string() << " (" << (std::filesystem::file_size(file) + 1023) / 1024
            << " KiB)\n";
}

}  // namespace

void add_report_command(CLI::App& app) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App* const command =
      app.add_subcommand("report", "Make one HTML page out of what a training has recorded");
  command->add_option("run", options->run, "Folder of the run, with events-rank<r>.jsonl")
      ->required();
  command->add_option("--output", options->output, "Where to write the page")
      ->default_str("report.html in that folder");
  command->callback([options] { write_report(*options); });
}

}  // namespace trireme::apps
