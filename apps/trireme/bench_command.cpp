// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/bench_command.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/comm_benchmark.h>
#include <apps/trireme/command_line.h>
#include <apps/trireme/run_ranks.h>
#include <apps/trireme/torch_parts.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::apps {
namespace {

constexpr const char* kDescription = R"(Time a collective over the ranks of this machine:
  trireme bench comm --ranks 4 --sizes 4K,1M,100M --engine gloo
or over ranks that a launcher starts, on any number of hosts:
  trireme run --nnodes 2 ... -- trireme bench comm

A size is that of a rank's largest buffer: the input, or the output for all_gather.
Latency is that of the slowest rank. Algorithm bandwidth is size divided by latency.
Bus bandwidth is the traffic on the busiest link divided by latency; compare it with
the bandwidth of the hardware.)";

struct Arguments {
  CommBenchmark benchmark;
  std::string sizes = "4:256M";
  std::optional<int> ranks;
};

[[noreturn]] void refuse_sizes(const std::string& text) {
  throw ConfigError(join_message("--sizes is '", text, "', expected bytes"),
                    "such as 4,64K,1M, or 4:256M for each power of two between; K, M and G are "
                    "powers of 1024");
}

// Parses a number with an optional unit K, M or G. `text` is the whole option, for the message.
std::size_t parse_size(std::string_view word, const std::string& text) {
  std::size_t value = 0;
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(word.data() + word.size() - end));
  constexpr std::string_view kUnits = "KMG";
  const std::size_t power = unit.empty() ? 0 : kUnits.find(unit) + 1;
  const int shift = static_cast<int>(10 * power);
  // Compares before shifting, so the shift cannot overflow.
  constexpr std::size_t kMost = std::size_t{1} << 40;
  const bool is_unit = unit.empty() || (unit.size() == 1 && power != 0);
  if (failure != std::errc{} || !is_unit || value == 0 || value > kMost >> shift) {
    refuse_sizes(text);
  }
  return value << shift;
}

// Parses a list of sizes, or a range `first:last` of powers of two.
std::vector<std::size_t> parse_sizes(const std::string& text) {
  if (const std::size_t colon = text.find(':'); colon != std::string::npos) {
    std::vector<std::size_t> sizes;
    const std::size_t last = parse_size(std::string_view(text).substr(colon + 1), text);
    for (std::size_t size = parse_size(std::string_view(text).substr(0, colon), text); size <= last;
         size *= 2) {
      sizes.push_back(size);
    }
    if (sizes.empty()) refuse_sizes(text);
    return sizes;
  }
  std::vector<std::size_t> sizes;
  for (const std::string& word : CLI::detail::split(text, ',')) {
    sizes.push_back(parse_size(word, text));
  }
  return sizes;
}

// Runs this command again, once for each rank.
int run_again(const Arguments& arguments) {
  const CommBenchmark& benchmark = arguments.benchmark;
  std::vector<std::string> words = {
      "bench",   "comm",          "--collective", benchmark.collective,
      "--sizes", arguments.sizes, "--dtype",      benchmark.dtype};
  if (!benchmark.engine.empty()) words.insert(words.end(), {"--engine", benchmark.engine});
  return run_ranks(words, arguments.ranks.value_or(std::max(2, available_cores())));
}

void bench(Arguments& arguments) {
  arguments.benchmark.sizes = parse_sizes(arguments.sizes);
  // Without a launcher, this process starts the ranks itself; otherwise it is one of them.
  if (is_alone()) {
    if (const int code = run_again(arguments); code != 0) throw CLI::RuntimeError(code);
    return;
  }
  if (arguments.ranks) check_ranks(*arguments.ranks);
  time_collective(arguments.benchmark);
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* const bench_command = app.add_subcommand("bench", "Measure this machine");
  bench_command->require_subcommand(1);
  CLI::App* const command = bench_command->add_subcommand("comm", kDescription);
  const auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("--ranks", arguments->ranks,
                   "Number of ranks (default: one for each available core, at least 2)")
      ->check(integer_from(1, 4096));
  command->add_option("--sizes", arguments->sizes, "Bytes, such as 4,64K,1M or 4:256M")
      ->capture_default_str();
  command
      ->add_option("--engine", arguments->benchmark.engine,
                   "Engine, as listed by trireme doctor (default: TRIREME_ENGINE, or auto)")
      ->option_text("NAME");
  command->add_option("--dtype", arguments->benchmark.dtype, "Type of the elements")
      ->check(one_of({"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16",
                      "int8", "uint8"}))
      ->capture_default_str();
  command->add_option("--collective", arguments->benchmark.collective, "Collective to time")
      ->check(one_of({"all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"}))
      ->capture_default_str();
  command->callback([arguments] { bench(*arguments); });
}

}  // namespace trireme::apps
