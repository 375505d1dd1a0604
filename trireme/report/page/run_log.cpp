// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/run_log.h>

#include <trireme/base/error.h>
#include <trireme/base/listed_ranks.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>

namespace trireme::report {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr std::string_view kPrefix = "events-rank";
constexpr std::string_view kSuffix = ".jsonl";

// The rank in a file's name; nothing for other files.
std::optional<int> rank_of(const std::string& file) {
  if (!file.starts_with(kPrefix) || !file.ends_with(kSuffix)) return std::nullopt;
  if (file.size() <= kPrefix.size() + kSuffix.size()) return std::nullopt;
  const char* const begin = file.data() + kPrefix.size();
  const char* const end = file.data() + file.size() - kSuffix.size();
  int rank = 0;
  const auto [rest, failure] = std::from_chars(begin, end, rank);
  if (failure != std::errc{} || rest != end || rank < 0) return std::nullopt;
  return rank;
}

// JSON has no other word for a number that is infinite or none.
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
  return found->get<std::int64_t>();
}

Moment moment_of(const json& record) {
  return {.time = number_at(record, "time"),
          .epoch = record.value("epoch", std::int64_t{0}),
          .global_step = record.at("global_step").get<std::int64_t>()};
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
          .step = record.value("step", std::int64_t{0}),
          .steps = std::max<std::int64_t>(record.value("steps", std::int64_t{1}), 1),
          .loss = number_at(record, "loss", std::numeric_limits<double>::quiet_NaN()),
          .samples = record.value("samples", std::int64_t{0}),
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
          .skipped = record.value("skipped", std::int64_t{0}),
          .memory_bytes = optional_integer(record, "memory_bytes"),
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

// Reads the lines of one file, in their order.
class RankReader {
 public:
  RankReader(int rank, std::string file) : file_(std::move(file)) { log_.rank = rank; }

  void read(std::istream& lines) {
    std::string line;
    while (std::getline(lines, line)) {
      ++number_;
      if (lines.eof()) {  // no '\n' at its end
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
    const auto by_step = [](const auto& record) { return record.moment.global_step; };
    std::ranges::stable_sort(log_.steps, {}, by_step);
    // Of equal steps the later line counts: the last of them in a stable order.
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
      const json record = json::parse(line);
      add(record, record.at("kind").get<std::string>());
    } catch (const json::exception&) {
      if (damaged_++ == 0) first_damaged_ = number_;
    }
  }

  void add(const json& record, const std::string& kind) {
    if (kind == "step") {
      log_.steps.push_back(step_of(record));
    } else if (kind == "run") {
      begin_run(record);
    } else if (kind == "epoch") {
      log_.epochs.push_back({.moment = moment_of(record),
                             .loss = number_at(record, "loss"),
                             .samples = record.value("samples", std::int64_t{0}),
                             .seconds = number_at(seconds_of(record), "total"),
                             .scalars = scalars_of(record)});
    } else if (kind == "evaluation") {
      log_.evaluations.push_back({.moment = moment_of(record),
                                  .loss = number_at(record, "loss"),
                                  .accuracy = optional_number(record, "accuracy"),
                                  .samples = record.value("samples", std::int64_t{0}),
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
    } else if (kind == "end") {
      log_.end = {.moment = moment_of(record),
                  .is_stopped = record.value("stopped", false),
                  .seconds = number_at(seconds_of(record), "total")};
    }
  }

  void begin_run(const json& record) {
    const int format = record.value("format", kFormat);
    if (format > kFormat) {
      throw ConfigError(join_message(file_, ": format ", format, ", expected ", kFormat),
                        "a newer Trireme wrote it; take the program `trireme` of that version");
    }
    const Moment moment = moment_of(record);
    drop_later(log_, moment.global_step);
    const bool is_next_call = log_.end && !log_.end->is_stopped && !log_.has_failed &&
                              log_.end->moment.global_step == moment.global_step;
    if (moment.global_step == 0) {
      log_.resumed_at.clear();  // begun anew in the same folder
    } else if (!is_next_call) {
      log_.resumed_at.push_back(moment.global_step);
    }
    log_.end.reset();
    log_.has_failed = false;
    log_.runs.push_back({.moment = moment,
                         .rank = record.value("rank", log_.rank),
                         .world_size = record.value("world_size", 1),
                         .epochs = record.value("epochs", std::int64_t{0}),
                         .steps_in_epoch = record.value("steps_in_epoch", std::int64_t{0}),
                         .settings = texts_at(record, "settings"),
                         .environment = texts_at(record, "environment")});
  }

  std::string file_;
  RankLog log_;
  std::vector<std::string> notes_;
  std::int64_t number_ = 0;
  std::int64_t damaged_ = 0;
  std::int64_t first_damaged_ = 0;
};

// The run that began last, as one of its ranks tells.
RunRecord latest_of(const std::vector<RankLog>& ranks) {
  RunRecord latest{.moment = {.time = -std::numeric_limits<double>::infinity()}};
  for (const RankLog& rank : ranks) {
    for (const RunRecord& run : rank.runs) {
      if (run.moment.time >= latest.moment.time) latest = run;
    }
  }
  return latest;
}

// Ranks that the last run had no more do not know from which step it went on.
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
    run.notes.push_back(join_message(listed_ranks(earlier),
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
      join_message("of ", run.world_size, " ranks, ", listed_ranks(missing), " left no file"));
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
    std::ifstream lines(folder / file, std::ios::binary);
    if (!lines) {
      throw ConfigError(join_message("cannot read ", (folder / file).string()),
                        "check that it may be read");
    }
    RankReader reader(rank, file);
    reader.read(lines);
    run.ranks.push_back(reader.finish(run.notes));
  }
  drop_replaced(run);
  note_missing(run);
  note_short(run);
  note_unfinite(run);
  std::ifstream config(folder / "config.toml", std::ios::binary);
  run.config.assign(std::istreambuf_iterator<char>(config), {});
  return run;
}

}  // namespace trireme::report
