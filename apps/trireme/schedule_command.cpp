// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/schedule_command.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/generators/search.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/pictures/schedule_picture.h>
#include <trireme/schedule/schedule_text.h>
#include <trireme/schedule/timeline.h>
#include <trireme/schedule/verifier/verify.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/command_line.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::apps {
namespace {

using schedule::Schedule;
using schedule::StageBytes;
using schedule::Times;

constexpr const char* kDescription =
    R"(Make a pipeline schedule, verify that it can be executed, and predict the time of a step:
  trireme schedule 1f1b --ranks 4 --micro-batches 8 --svg 1f1b.svg
compare all kinds:
  trireme schedule all --forward 18.5 --backward-input 18.1 --backward-weight 9.3
read one from a file:
  trireme schedule --read mine.txt

Times and bytes are those of one micro-batch: one number for all stages of a rank together, or one
for each stage, separated by commas.)";

constexpr const char* kSearch = "search";
constexpr const char* kSearchV = "search-v";
constexpr const char* kAll = "all";

// The limit for one micro-batch in a stage; sums stay below 2^63.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;

struct Options {
  std::string kind;
  std::filesystem::path read;
  int ranks = 4;
  int micro_batches = 8;
  int chunks = 0;
  std::vector<Real> forward = {{1}};
  std::vector<Real> backward_input = {{1}};
  std::vector<Real> backward_weight = {{1}};
  std::vector<Real> backward;
  Real communication;
  std::vector<std::int64_t> activation_bytes;
  std::vector<std::int64_t> weight_input_bytes;
  std::optional<std::int64_t> memory_cap;
  std::optional<int> outstanding;
  std::vector<int> recompute;
  std::vector<int> offload;
  std::filesystem::path output;
  std::filesystem::path svg;
  std::filesystem::path trace;
};

std::vector<std::string> kinds() {
  std::vector<std::string> names(schedule::kKinds.begin(), schedule::kKinds.end());
  names.insert(names.end(), {kSearch, kSearchV});
  return names;
}

// Returns one number for each stage. A single number stands for all stages of a rank and is divided
// equally.
template <typename Number>
std::vector<Number> for_stages(const std::vector<Number>& given, const char* option, int num_stages,
                               int num_ranks) {
  const auto stages = static_cast<std::size_t>(num_stages);
  if (given.size() == stages) return given;
  if (given.size() != 1) {
    throw ConfigError(join_message(option, " has ", given.size(), " numbers, but there are ",
                                   num_stages, " stages"),
                      "give one for all stages of a rank together, or one for each stage");
  }
  const auto chunks = static_cast<Number>(std::max(1, num_stages / num_ranks));
  return std::vector<Number>(stages, given.front() / chunks);
}

// Returns the times of each stage in the form that the simulator takes.
Times times_for(const Options& options, int num_stages, int num_ranks) {
  const auto all = [&](const std::vector<Real>& given, const char* option) {
    std::vector<double> values;
    for (const Real& number : given) values.push_back(number.value);
    return for_stages(values, option, num_stages, num_ranks);
  };
  const auto forward = all(options.forward, "--forward");
  const auto input = all(options.backward_input, "--backward-input");
  const auto weight = all(options.backward_weight, "--backward-weight");
  const auto backward =
      options.backward.empty() ? std::vector<double>() : all(options.backward, "--backward");
  Times times{.stages = {}, .communication = {options.communication.value}};
  for (std::size_t stage = 0; stage < forward.size(); ++stage) {
    times.stages.push_back({.forward = forward[stage],
                            .backward_input = input[stage],
                            .backward_weight = weight[stage]});
    if (!backward.empty()) times.stages.back().backward = backward[stage];
  }
  return times;
}

bool has_bytes(const Options& options) { return !options.activation_bytes.empty(); }

// Returns the bytes of each stage; a single entry without bytes if none were given.
std::vector<StageBytes> bytes_for(const Options& options, int num_stages, int num_ranks) {
  if (!has_bytes(options)) {
    if (!options.weight_input_bytes.empty()) {
      throw ConfigError("--weight-input-bytes stands without --activation-bytes",
                        "give both, or the second alone");
    }
    return {StageBytes{}};
  }
  const auto& given = options.weight_input_bytes;
  const auto activations =
      for_stages(options.activation_bytes, "--activation-bytes", num_stages, num_ranks);
  const auto weight_inputs = given.empty()
                                 ? activations
                                 : for_stages(given, "--weight-input-bytes", num_stages, num_ranks);
  std::vector<StageBytes> bytes;
  for (std::size_t stage = 0; stage < activations.size(); ++stage) {
    bytes.push_back({.activations = activations[stage], .weight_inputs = weight_inputs[stage]});
  }
  return bytes;
}

// Returns the bytes that the first rank keeps under 1F1B.
std::int64_t cap_of_1f1b(const Options& options, const std::vector<StageBytes>& bytes,
                         const std::vector<int>& placement) {
  std::vector<std::int64_t> of_rank(static_cast<std::size_t>(options.ranks), 0);
  for (std::size_t stage = 0; stage < placement.size(); ++stage) {
    schedule::item(of_rank, placement[stage]) += bytes[bytes.size() == 1 ? 0 : stage].activations;
  }
  return std::ranges::max(of_rank) * std::min(options.ranks, options.micro_batches);
}

// Searches for a schedule within the memory cap; by default that of 1F1B.
Schedule searched(const Options& options, std::vector<int> placement) {
  const int num_stages = static_cast<int>(placement.size());
  const auto bytes = bytes_for(options, num_stages, options.ranks);
  const std::int64_t cap = options.memory_cap.value_or(cap_of_1f1b(options, bytes, placement));
  Schedule found = schedule::search({.micro_batches = options.micro_batches,
                                     .rank_of_stage = std::move(placement),
                                     .times = times_for(options, num_stages, options.ranks),
                                     .bytes = bytes,
                                     .memory_cap = {cap}});
  found.name = options.kind;
  return found;
}

Schedule made(const Options& options) {
  if (options.kind == kSearch || options.kind == kSearchV) {
    schedule::check_counts(options.ranks, options.micro_batches, 2);
  }
  if (options.kind == kSearch)
    return searched(options, schedule::looped_placement(options.ranks, 1));
  if (options.kind == kSearchV) return searched(options, schedule::v_placement(options.ranks));
  return schedule::generate(options.kind, options.ranks, options.micro_batches, options.chunks);
}

struct Result {
  Schedule schedule;
  schedule::Timeline timeline;
  std::int64_t peak_bytes = 0;
  double kept = 0;
  bool is_above_cap = false;
};

// Adds recomputation, offloading and messages to a schedule, verifies it, and predicts time and
// memory.
Result examine(const Options& options, Schedule made, bool has_messages) {
  const schedule::Messages messages{.outstanding = options.outstanding};
  made = schedule::with_recomputation(made, options.recompute);
  made = schedule::with_offloading(made, options.offload);
  if (!has_messages) made = schedule::with_messages(made, messages);
  schedule::verify(made, {.messages = messages});
  const int num_stages = made.num_stages();
  const auto bytes = bytes_for(options, num_stages, made.num_ranks());
  const Times times = times_for(options, num_stages, made.num_ranks());
  Result result;
  result.timeline = schedule::simulate(made, times, messages);
  for (const auto& rank : schedule::peak_memory(made, bytes)) {
    // Counts micro-batches of a whole rank, which has several stages.
    const double chunks = static_cast<double>(num_stages) / made.num_ranks();
    result.peak_bytes = std::max(result.peak_bytes, rank.peak_bytes);
    result.kept = std::max(result.kept, rank.peak_unfinished / chunks);
  }
  result.is_above_cap = options.memory_cap && result.peak_bytes > *options.memory_cap;
  result.schedule = std::move(made);
  return result;
}

std::string fixed(double value, int digits) {
  TextWriter text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

void print_table(const Options& options, const std::vector<Result>& results) {
  std::size_t width = 8;
  for (const Result& result : results) width = std::max(width, result.schedule.name.size());
  const auto name_width = static_cast<int>(width);
  std::cout << std::left << std::setw(name_width) << "schedule" << std::right << std::setw(12)
            << "step ms" << std::setw(10) << "bubble" << std::setw(16) << "micro-batches"
            << (has_bytes(options) ? "           bytes" : "") << "\n";
  for (const Result& result : results) {
    std::cout << std::left << std::setw(name_width) << result.schedule.name << std::right
              << std::setw(12) << fixed(result.timeline.step_time, 2) << std::setw(8)
              << fixed(100 * result.timeline.bubble_rate(), 2) << " %" << std::setw(16)
              << fixed(result.kept, 1);
    if (has_bytes(options)) std::cout << std::setw(16) << result.peak_bytes;
    std::cout << (result.is_above_cap ? "  above the cap" : "") << "\n";
  }
  std::cout << "micro-batches" << (has_bytes(options) ? " and bytes" : "")
            << ": most that one rank keeps for backward. Every schedule was verified.\n";
}

void write_text(const std::filesystem::path& file, const std::string& text) {
  write_file_or_throw<ConfigError>(file, text);
  std::cout << "wrote " << file.string() << '\n';
}

void write_files(const Options& options, const Result& result) {
  if (!options.output.empty()) write_text(options.output, schedule::to_text(result.schedule));
  if (!options.svg.empty()) {
    write_text(options.svg, schedule::to_svg(result.schedule, result.timeline));
  }
  if (!options.trace.empty()) write_text(options.trace, schedule::to_trace(result.timeline));
}

void compare_all(Options options) {
  if (!options.output.empty() || !options.svg.empty() || !options.trace.empty()) {
    throw ConfigError("'all' makes no files", "write the files of one kind");
  }
  const int chunks = options.chunks;
  std::vector<Result> results;
  for (const std::string& kind : kinds()) {
    options.kind = kind;
    // The other kinds have a fixed number of stages per rank.
    options.chunks = kind == "interleaved" ? chunks : 0;
    results.push_back(examine(options, made(options), /*has_messages=*/false));
  }
  print_table(options, results);
}

// Rejects options that have no effect because of other options.
void refuse_without_effect(const CLI::App& command, const Options& options) {
  if (!options.read.empty()) {
    for (const char* option : {"--ranks", "--micro-batches", "--chunks"}) {
      refuse_given(command, option, "the file says it", "leave it out, or make a schedule by kind");
    }
  }
  const bool has_chunks = options.kind != kSearch && options.kind != kSearchV;
  if (!has_chunks) {
    refuse_given(command, "--chunks", join_message(options.kind, " has its own number of stages"),
                 "leave it out; interleaved takes any number");
  }
  if (!has_bytes(options)) {
    refuse_given(command, "--memory-cap", "nothing says how many bytes a micro-batch takes",
                 "give --activation-bytes too");
  }
}

void run(const CLI::App& command, const Options& options) {
  refuse_without_effect(command, options);
  if (options.kind.empty() == options.read.empty()) {
    throw ConfigError("expected a kind of schedule, or --read with a file",
                      "such as trireme schedule 1f1b; see trireme schedule --help");
  }
  if (options.kind == kAll) return compare_all(options);
  Result result;
  if (options.read.empty()) {
    result = examine(options, made(options), /*has_messages=*/false);
  } else {
    Schedule read = schedule::read_schedule(options.read);
    const bool has_messages = schedule::lists_messages(read);
    result = examine(options, std::move(read), has_messages);
  }
  if (result.is_above_cap) {
    throw ConfigError(join_message("a rank keeps ", result.peak_bytes, " bytes, --memory-cap is ",
                                   *options.memory_cap),
                      "take another schedule: `trireme schedule all` compares them");
  }
  print_table(options, {result});
  write_files(options, result);
}

}  // namespace

void add_schedule_command(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* const command = app.add_subcommand("schedule", kDescription);
  auto names = kinds();
  names.emplace_back(kAll);
  command->add_option("kind", options->kind, "Kind of schedule")->check(one_of(names));
  command->add_option("--read", options->read, "Read the schedule from this file instead");
  command->add_option("--ranks", options->ranks, "Number of ranks")
      ->check(integer_from(1, INT_MAX))
      ->capture_default_str();
  command->add_option("--micro-batches", options->micro_batches, "Number of micro-batches")
      ->check(integer_from(1, INT_MAX))
      ->capture_default_str();
  command->add_option("--chunks", options->chunks, "Stages of each rank, for interleaved")
      ->check(integer_from(1, INT_MAX))
      ->default_str("2");
  const auto add_times = [&](const char* name, std::vector<Real>& values, const char* text) {
    return command->add_option(name, values, text)
        ->delimiter(',')
        ->option_text("MS")
        ->check(number_from_zero());
  };
  add_times("--forward", options->forward, "Time of forward [1]");
  add_times("--backward-input", options->backward_input, "Time of the input's gradients [1]");
  add_times("--backward-weight", options->backward_weight, "Time of the weights' gradients [1]");
  add_times("--backward", options->backward, "Time of a backward that is not split [their sum]");
  command->add_option("--communication", options->communication, "Time of a message")
      ->check(number_from_zero())
      ->option_text("MS");
  command
      ->add_option("--activation-bytes", options->activation_bytes,
                   "Bytes kept from forward to backward, or to its input part")
      ->delimiter(',')
      ->check(integer_from(0, kMostBytes))
      ->option_text("BYTES");
  command
      ->add_option("--weight-input-bytes", options->weight_input_bytes,
                   "Bytes kept from the input part to the weight part [the same]")
      ->delimiter(',')
      ->check(integer_from(0, kMostBytes))
      ->option_text("BYTES");
  command
      ->add_option("--memory-cap", options->memory_cap,
                   "Maximum that a rank may keep [search: the bytes of 1f1b on rank 0]")
      ->check(integer_from(1))
      ->option_text("BYTES");
  command
      ->add_option(
          "--outstanding", options->outstanding,
          "Maximum of messages sent but not received; 0: a send waits for its receive [no limit]")
      ->check(integer_from(0, INT_MAX))
      ->option_text("NUMBER");
  command->add_option("--recompute", options->recompute, "Stages whose activations are recomputed")
      ->delimiter(',')
      ->check(integer_from(0, INT_MAX))
      ->option_text("STAGES");
  command
      ->add_option("--offload", options->offload,
                   "Stages whose activations move to host memory if backward is far off")
      ->delimiter(',')
      ->check(integer_from(0, INT_MAX))
      ->option_text("STAGES");
  command->add_option("--output", options->output, "File for the schedule with its messages");
  command->add_option("--svg", options->svg, "File for a picture");
  command->add_option("--trace", options->trace,
                      "File for a trace for chrome://tracing or Perfetto");
  command->callback([options, command] { run(*command, *options); });
}

}  // namespace trireme::apps
