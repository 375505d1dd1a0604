// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/run_log.h>

#include <trireme/base/error.h>
#include <trireme/base/format_ranks.h>
#include <trireme/base/input_file.h>
#include <trireme/base/json_depth.h>
#include <trireme/base/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <limits>
#include <set>

namespace trireme::report {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr int kMostRanks = 1 << 20;  // a larger number means that the file is damaged
constexpr std::int64_t kMostConfigBytes = std::int64_t{1} << 24U;
constexpr std::string_view kPrefix = "events-rank";
constexpr std::string_view kSuffix = ".jsonl";

// Returns the rank in the name of a file, or std::nullopt for other files.
std::optional<int> rank_of(const std::string& file) {
  if (!file.starts_with(kPrefix) || !file.ends_with(kSuffix)) return std::nullopt;
  if (file.size() <= kPrefix.size() + kSuffix.size()) return std::nullopt;
  const std::size_t digits = file.size() - kPrefix.size() - kSuffix.size();
  const auto rank = parse_number<int>(std::string_view(file).substr(kPrefix.size(), digits));
  return rank && *rank >= 0 && *rank <= kMostRanks ? rank : std::nullopt;
}

// Thrown for a line that is valid JSON, but has numbers that no run can have.
struct Damaged : std::exception {};

// Integers beyond 2^53 mean damage, and axes cannot represent them.
std::int64_t integer_of(const json& value) {
  constexpr double kMost = 9007199254740992.0;
  const double number = value.get<double>();  // throws if it is not a number
  if (!(std::abs(number) <= kMost)) throw Damaged{};
  return value.get<std::int64_t>();
}

std::int64_t integer_at(const json& record, const char* key, std::int64_t otherwise = 0) {
  const auto found = record.find(key);
  return found == record.end() ? otherwise : integer_of(*found);
}

int rank_count_at(const json& record, const char* key, int otherwise) {
  const std::int64_t count = integer_at(record, key, otherwise);
  if (count < 0 || count > kMostRanks) throw Damaged{};
  return static_cast<int>(count);
}

// JSON represents infinite numbers and NaN as null.
double number_of(const json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

double number_at(const json& record, const char* key, double otherwise = 0) {
  const auto found = record.find(key);
  return found == record.end() ? otherwise : number_of(*found);
}

std::optional<double> optional_number(const json& record, const char* key) {
  const auto found = record.find(key);
  if (found == record.end()) return std::nullopt;
  return number_of(*found);
}

std::optional<std::int64_t> optional_integer(const json& record, const char* key) {
  const auto found = record.find(key);
  if (found == record.end() || !found->is_number()) return std::nullopt;
  return integer_of(*found);
}

Moment moment_of(const json& record) {
  return {.time = number_at(record, "time"),
          .epoch = integer_at(record, "epoch"),
          .global_step = integer_of(record.at("global_step"))};
}

Texts texts_at(const json& record, const char* key) {
  Texts texts;
  const auto found = record.find(key);
  if (found == record.end()) return texts;
  for (const auto& [name, value] : found->items()) {
    texts[name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return texts;
}

Numbers scalars_of(const json& record) {
  Numbers scalars;
  const auto found = record.find("scalars");
  if (found == record.end()) return scalars;
  for (const auto& [name, value] : found->items()) scalars[name] = number_of(value);
  return scalars;
}

const json& seconds_of(const json& record) {
  static const json none = json::object();
  const auto found = record.find("seconds");
  return found == record.end() ? none : *found;
}

StepRecord step_of(const json& record) {
  const json& seconds = seconds_of(record);
  return {.moment = moment_of(record),
          .step = integer_at(record, "step"),
          .steps = std::max<std::int64_t>(integer_at(record, "steps", 1), 1),
          .loss = number_at(record, "loss", std::numeric_limits<double>::quiet_NaN()),
          .samples = integer_at(record, "samples"),
          .all_samples = optional_integer(record, "all_samples"),
          .seconds = {.data = number_at(seconds, "data"),
                      .forward = number_at(seconds, "forward"),
                      .backward = number_at(seconds, "backward"),
                      .communication = number_at(seconds, "communication"),
                      .optimizer = number_at(seconds, "optimizer"),
                      .callbacks = number_at(seconds, "callbacks"),
                      .total = number_at(seconds, "total")},
          .learning_rate = optional_number(record, "learning_rate"),
          .gradient_norm = optional_number(record, "gradient_norm"),
          .loss_scale = optional_number(record, "loss_scale"),
          .skipped = integer_at(record, "skipped"),
          .memory_bytes = optional_integer(record, "memory_bytes"),
          .peak_memory_bytes = optional_integer(record, "peak_memory_bytes"),
          .device_memory_bytes = optional_integer(record, "device_memory_bytes"),
          .scalars = scalars_of(record)};
}

template <typename Record>
void drop_after(std::vector<Record>& records, std::int64_t step) {
  std::erase_if(records, [&](const Record& record) { return record.moment.global_step > step; });
}

void drop_later(RankLog& log, std::int64_t step) {
  drop_after(log.steps, step);
  drop_after(log.epochs, step);
  drop_after(log.evaluations, step);
  drop_after(log.checkpoints, step);
}

// Reads the lines of one file in order.
class RankReader {
 public:
  RankReader(int rank, std::string file) : file_(std::move(file)) { log_.rank = rank; }

  void read(std::istream& lines) {
    std::string line;
    while (std::getline(lines, line)) {
      ++number_;
      if (lines.eof()) {  // the line has no '\n' at its end
        note("the last line was cut off, as by a kill; it is left out");
        return;
      }
      if (!line.empty()) take(line);
    }
  }

  RankLog finish(std::vector<std::string>& notes) {
    if (damaged_ > 0) {
      note(join_message(damaged_, damaged_ == 1 ? " line is" : " lines are", " no record (the ",
                        damaged_ == 1 ? "" : "first is ", "line ", first_damaged_,
                        "), passed over"));
    }
    if (lost_ > 0)
      note(join_message(lost_, lost_ == 1 ? " record was" : " records were",
                        " not written: the disk was full or refused them"));
    const auto by_step = [](const auto& record) { return record.moment.global_step; };
    std::ranges::stable_sort(log_.steps, {}, by_step);
    // If several lines have the same step, the last one counts. The sort is stable and keeps their
    // order.
    const auto kept =
        std::unique(log_.steps.rbegin(), log_.steps.rend(),
                    [&](const auto& a, const auto& b) { return by_step(a) == by_step(b); });
    log_.steps.erase(log_.steps.begin(), kept.base());
    std::move(notes_.begin(), notes_.end(), std::back_inserter(notes));
    return std::move(log_);
  }

 private:
  void note(const std::string& text) { notes_.push_back(file_ + ": " + text); }

  void take(const std::string& line) {
    try {
      if (json_depth(line) > kDeepestJson) return count_damaged();
      const json record = json::parse(line);
      add(record, record.at("kind").get<std::string>());
    } catch (const json::exception&) {
      count_damaged();
    } catch (const Damaged&) {
      count_damaged();
    }
  }

  void count_damaged() {
    if (damaged_++ == 0) first_damaged_ = number_;
  }

  void add(const json& record, const std::string& kind) {
    if (kind == "step") {
      log_.steps.push_back(step_of(record));
    } else if (kind == "run") {
      begin_run(record);
    } else if (kind == "epoch") {
      log_.epochs.push_back({.moment = moment_of(record),
                             .loss = number_at(record, "loss"),
                             .samples = integer_at(record, "samples"),
                             .seconds = number_at(seconds_of(record), "total"),
                             .scalars = scalars_of(record)});
    } else if (kind == "evaluation") {
      log_.evaluations.push_back({.moment = moment_of(record),
                                  .loss = number_at(record, "loss"),
                                  .accuracy = optional_number(record, "accuracy"),
                                  .samples = integer_at(record, "samples"),
                                  .seconds = number_at(seconds_of(record), "total"),
                                  .scalars = scalars_of(record)});
    } else if (kind == "checkpoint") {
      log_.checkpoints.push_back({.moment = moment_of(record),
                                  .path = record.value("path", std::string()),
                                  .seconds = number_at(seconds_of(record), "total")});
    } else if (kind == "failure") {
      log_.failures.push_back(
          {.moment = moment_of(record), .message = record.value("message", std::string())});
      log_.has_failed = true;
    } else if (kind == "lost") {
      lost_ += integer_at(record, "records", 1);
    } else if (kind == "end") {
      log_.end = {.moment = moment_of(record),
                  .is_stopped = record.value("stopped", false),
                  .seconds = number_at(seconds_of(record), "total")};
    }
  }

  void begin_run(const json& record) {
    const std::int64_t format = integer_at(record, "format", kFormat);
    if (format > kFormat) {
      throw ConfigError(join_message(file_, ": format ", format, ", expected ", kFormat),
                        "a newer Trireme wrote it; take the program `trireme` of that version");
    }
    const Moment moment = moment_of(record);
    drop_later(log_, moment.global_step);
    const bool is_next_call = log_.end && !log_.end->is_stopped && !log_.has_failed &&
                              log_.end->moment.global_step == moment.global_step;
    if (moment.global_step == 0) {
      log_.resumed_at.clear();  // a new run in the same folder
    } else if (!is_next_call) {
      log_.resumed_at.push_back(moment.global_step);
    }
    log_.end.reset();
    log_.has_failed = false;
    log_.runs.push_back({.moment = moment,
                         .rank = rank_count_at(record, "rank", log_.rank),
                         .world_size = rank_count_at(record, "world_size", 1),
                         .epochs = integer_at(record, "epochs"),
                         .steps_in_epoch = integer_at(record, "steps_in_epoch"),
                         .tokens_per_sample = optional_integer(record, "tokens_per_sample"),
                         .flops_per_sample = optional_number(record, "flops_per_sample"),
                         .dtype = record.value("dtype", std::string()),
                         .peak_flops = optional_number(record, "peak_flops"),
                         .settings = texts_at(record, "settings"),
                         .environment = texts_at(record, "environment")});
  }

  std::string file_;
  RankLog log_;
  std::vector<std::string> notes_;
  std::int64_t number_ = 0;
  std::int64_t lost_ = 0;  // records that could not be written
  std::int64_t damaged_ = 0;
  std::int64_t first_damaged_ = 0;
};

// Returns the record of the run that began last.
RunRecord latest_of(const std::vector<RankLog>& ranks) {
  RunRecord latest{.moment = {.time = -std::numeric_limits<double>::infinity()}};
  for (const RankLog& rank : ranks) {
    for (const RunRecord& run : rank.runs) {
      if (run.moment.time >= latest.moment.time) latest = run;
    }
  }
  return latest;
}

// Drops records that the last run replaced, also on ranks which that run did not have. These ranks
// have no record of the step from which it was resumed.
void drop_replaced(RunLog& run) {
  const RunRecord latest = latest_of(run.ranks);
  run.world_size = latest.world_size;
  std::vector<int> earlier;
  for (RankLog& rank : run.ranks) {
    if (rank.rank < run.world_size) continue;
    earlier.push_back(rank.rank);
    drop_later(rank, latest.moment.global_step);
  }
  std::erase_if(run.ranks, [&](const RankLog& rank) {
    return rank.rank >= run.world_size && latest.moment.global_step == 0;
  });
  if (!earlier.empty()) {
    run.notes.push_back(join_message(format_ranks(earlier),
                                     " took part in an earlier run only; the last one had ",
                                     run.world_size, run.world_size == 1 ? " rank" : " ranks"));
  }
}

void note_missing(RunLog& run) {
  std::set<int> present;
  for (const RankLog& rank : run.ranks) present.insert(rank.rank);
  std::vector<int> missing;
  for (int rank = 0; rank < run.world_size; ++rank) {
    if (!present.contains(rank)) missing.push_back(rank);
  }
  if (missing.empty()) return;
  run.notes.push_back(
      join_message("of ", run.world_size, " ranks, ", format_ranks(missing), " left no file"));
}

void note_short(RunLog& run) {
  std::int64_t last = 0;
  const auto last_of = [](const RankLog& rank) {
    return rank.steps.empty() ? 0 : rank.steps.back().moment.global_step;
  };
  for (const RankLog& rank : run.ranks) last = std::max(last, last_of(rank));
  for (const RankLog& rank : run.ranks) {
    if (rank.rank >= run.world_size || last_of(rank) == last) continue;
    run.notes.push_back(join_message("rank ", rank.rank, " has steps up to ", last_of(rank),
                                     ", others up to ", last));
  }
}

// Returns the last run of the first of its ranks that has recorded what `has` asks for; null if
// none has.
const RunRecord* last_run_with(const RunLog& run, bool (*has)(const RunRecord&)) {
  for (const RankLog& rank : run.ranks) {
    const bool takes_part = rank.rank < run.world_size && !rank.runs.empty();
    if (takes_part && has(rank.runs.back())) return &rank.runs.back();
  }
  return nullptr;
}

bool is_rate(const std::optional<double>& number) {
  return number && std::isfinite(*number) && *number > 0;
}

std::optional<Peak> recorded_peak_of(const RunLog& run) {
  const RunRecord* const last =
      last_run_with(run, [](const RunRecord& record) { return is_rate(record.peak_flops); });
  if (last == nullptr) return {};
  const auto cluster = last->environment.find("cluster");
  return Peak{.flops = *last->peak_flops,
              .dtype = last->dtype,
              .cluster = cluster == last->environment.end() ? "" : cluster->second};
}

void note_unfinite(RunLog& run) {
  for (const RankLog& rank : run.ranks) {
    const auto is_none = [](const StepRecord& step) { return !std::isfinite(step.loss); };
    const auto first = std::ranges::find_if(rank.steps, is_none);
    if (first == rank.steps.end()) continue;
    run.notes.push_back(join_message("rank ", rank.rank, ": ",
                                     std::ranges::count_if(rank.steps, is_none),
                                     " losses are infinite or not a number, the first at step ",
                                     first->moment.global_step, "; they are not drawn"));
  }
}

}  // namespace

bool knows_all_samples(const RunLog& run) {
  return std::ranges::all_of(run.ranks, [](const RankLog& rank) {
    return std::ranges::all_of(rank.steps,
                               [](const StepRecord& step) { return step.all_samples.has_value(); });
  });
}

std::optional<double> tokens_per_sample_of(const RunLog& run) {
  const RunRecord* const last = last_run_with(
      run, [](const RunRecord& record) { return record.tokens_per_sample.value_or(0) > 0; });
  if (last == nullptr) return {};
  return static_cast<double>(*last->tokens_per_sample);
}

std::optional<double> flops_per_sample_of(const RunLog& run) {
  const RunRecord* const last =
      last_run_with(run, [](const RunRecord& record) { return is_rate(record.flops_per_sample); });
  return last == nullptr ? std::nullopt : last->flops_per_sample;
}

std::optional<std::string> dtype_of(const RunLog& run) {
  const RunRecord* const last =
      last_run_with(run, [](const RunRecord& record) { return !record.dtype.empty(); });
  if (last == nullptr) return {};
  return last->dtype;
}

RunLog read_run(const std::filesystem::path& folder) {
  std::error_code failure;
  if (!std::filesystem::is_directory(folder, failure)) {
    throw ConfigError(join_message(folder.string(), " is no folder"),
                      "give the folder of a run, which holds events-rank0.jsonl");
  }
  RunLog run{.name = std::filesystem::weakly_canonical(folder).filename().string()};
  std::set<int> ranks;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (const auto rank = rank_of(entry.path().filename().string())) ranks.insert(*rank);
  }
  if (ranks.empty()) {
    throw ConfigError(join_message(folder.string(), " holds no events-rank<r>.jsonl"),
                      "give JsonlWriter to the training as a callback, with this folder");
  }
  for (const int rank : ranks) {
    const std::string file = join_message(kPrefix, rank, kSuffix);
    InputFile input = open_input(folder / file);
    auto text = read_text(input, std::numeric_limits<std::int64_t>::max());
    if (!text) {
      throw ConfigError(
          join_message("cannot read ", (folder / file).string(), ": it ", input.problem),
          "check that it may be read");
    }
    RankReader reader(rank, file);
    TextReader lines(*text);
    reader.read(lines);
    run.ranks.push_back(reader.finish(run.notes));
  }
  drop_replaced(run);
  note_missing(run);
  note_short(run);
  note_unfinite(run);
  InputFile config = open_input(folder / "config.toml");
  run.config = read_text(config, kMostConfigBytes).value_or("");
  run.peak = recorded_peak_of(run);
  run.pipeline_pictures = read_pipeline_pictures(folder, run.notes);
  return run;
}

}  // namespace trireme::report
