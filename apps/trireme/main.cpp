// SPDX-License-Identifier: Apache-2.0
// The program `trireme`. Each command is in a file of its own; this file parses the command line
// and prints errors.
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/comm/monitor/dump.h>
#include <trireme/version.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/bench_command.h>
#include <apps/trireme/calibrate_command.h>
#include <apps/trireme/certificates_command.h>
#include <apps/trireme/checkpoint_command.h>
#include <apps/trireme/command_line.h>
#include <apps/trireme/data_command.h>
#include <apps/trireme/manual/manual_commands.h>
#include <apps/trireme/plain_output.h>
#include <apps/trireme/plan_command.h>
#include <apps/trireme/predict_command.h>
#include <apps/trireme/report_command.h>
#include <apps/trireme/run_command.h>
#include <apps/trireme/schedule_command.h>
#include <apps/trireme/scheduler_command.h>
#include <apps/trireme/status_command.h>
#include <apps/trireme/text_data_command.h>
#include <apps/trireme/torch_parts.h>
#include <apps/trireme/worker_command.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <span>

namespace {

constexpr int kCannotStart = 2;

void add_doctor_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("doctor", "Examine this machine and say how to fix problems");
  const auto as_rank = std::make_shared<bool>(false);
  command->add_flag("--as-rank", *as_rank)->group("");  // Hidden; used by the self-test.
  const auto dumps = std::make_shared<std::string>();
  command->add_option(
      "--dump", *dumps,
      "Compare the dumps of the ranks of a failed run in this folder (TRIREME_DUMP)");
  command->callback([as_rank, dumps] {
    if (!dumps->empty()) {
      std::cout << trireme::comm::compare_dumps(trireme::comm::read_dumps(*dumps));
      return;
    }
    if (const int code = trireme::apps::doctor(*as_rank); code != 0) throw CLI::RuntimeError(code);
  });
}

int parse_and_run(std::vector<std::string> words) {
  // Words after `--` belong to the program to run and are not parsed.
  const auto mark = std::ranges::find(words, "--");
  const std::vector<std::string> program_tail(mark, words.end());
  words.erase(mark, words.end());
  trireme::apps::accept_mpirun_words(words);

  CLI::App app{"Parallel training with LibTorch.", "trireme"};
  app.set_version_flag("--version", "trireme " TRIREME_VERSION);
  app.require_subcommand(1);
  trireme::apps::add_run_command(app, program_tail);
  trireme::apps::add_scheduler_command(app);
  trireme::apps::add_worker_command(app, program_tail);
  trireme::apps::add_status_command(app);
  trireme::apps::add_certificates_command(app);
  trireme::apps::add_data_command(app);
  trireme::apps::add_text_data_commands(app);
  trireme::apps::add_plan_command(app, program_tail);
  trireme::apps::add_predict_command(app, program_tail);
  trireme::apps::add_report_command(app);
  trireme::apps::add_schedule_command(app);
  trireme::apps::add_bench_command(app);
  trireme::apps::add_calibrate_command(app);
  trireme::apps::add_checkpoint_command(app);
  add_doctor_command(app);
  trireme::apps::add_manual_commands(app);
  trireme::apps::check_first_word(app, words);
  std::ranges::reverse(words);  // CLI11 takes words from the back.
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success& wanted) {
    return app.exit(wanted);
  } catch (const CLI::RuntimeError& finished) {
    return finished.get_exit_code();
  } catch (const CLI::ParseError& wrong) {
    trireme::apps::explain(app, wrong);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const trireme::apps::PlainOutput output(std::cout);
  const trireme::apps::PlainOutput errors(std::cerr);
  const std::span<char*> all(arguments, static_cast<std::size_t>(count));
  try {
    return parse_and_run({all.begin() + 1, all.end()});
  } catch (const std::exception& error) {
    std::cerr << "trireme: error: " << trireme::message_of(error) << '\n';
    return kCannotStart;
  }
}
