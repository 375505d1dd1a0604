// SPDX-License-Identifier: Apache-2.0
// Callbacks that write what happens into files as it happens: docs/formats/run.md has every key and
// column. A folder that cannot be written to is an error before training begins; a run that is
// killed leaves readable files.
#pragma once

#include <trireme/report/records.h>
#include <trireme/train/callback.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace trireme {

/// What the writers have in common: turns contexts into records. Throws ConfigError where the file
/// system refuses, and UsageError for an interval below 1.
class RecordWriter : public Callback {
 public:
  void on_run_begin(const RunContext& run) override;
  void on_epoch_begin(const EpochContext& epoch) override;
  void on_step_end(const StepEndContext& step) override;
  void on_evaluation_begin(const EvaluationContext& evaluation) override;
  void on_evaluation_end(const EvaluationEndContext& evaluation) override;
  void on_epoch_end(const EpochEndContext& epoch) override;
  void on_checkpoint_end(const CheckpointEndContext& checkpoint) override;
  void on_run_end(const RunContext& run) override;
  void on_failure(const FailureContext& failure) noexcept override;

 protected:
  enum class Ranks : std::uint8_t { kFirst, kAll };
  RecordWriter(std::filesystem::path folder, std::int64_t every_steps, Ranks ranks);

  const std::filesystem::path& folder() const { return folder_; }
  virtual std::unique_ptr<report::RecordFile> open(const RunContext& run) = 0;
  /// What the run's record says of the program.
  virtual report::Texts settings() const { return {}; }

 private:
  void flush();

  std::filesystem::path folder_;
  std::int64_t every_steps_;
  Ranks ranks_;
  std::unique_ptr<report::RecordFile> file_;  // null where this rank writes nothing
  Model* model_ = nullptr;                    // of the run
  report::StepRecord steps_;                  // since the last record
  std::chrono::steady_clock::time_point last_;
  std::chrono::steady_clock::time_point began_;
};

struct CsvWriterOptions {
  std::filesystem::path folder{};
  /// A line for every n-th step, which stands for all since the line before.
  std::int64_t every_steps = 1;
};

/// Rank 0 writes `metrics.csv`: a line for steps, epochs and evaluations. Goes on with a file that
/// is there.
class CsvWriter final : public RecordWriter {
 public:
  explicit CsvWriter(const CsvWriterOptions& options)
      : RecordWriter(options.folder, options.every_steps, Ranks::kFirst) {}

 protected:
  std::unique_ptr<report::RecordFile> open(const RunContext& run) override;
};

struct JsonlWriterOptions {
  std::filesystem::path folder{};
  /// A record for every n-th step, which stands for all since the record before.
  std::int64_t every_steps = 1;
  /// What the program says about itself, such as its options: by name.
  report::Texts settings{};
};

/// Every rank writes `events-rank<r>.jsonl`: everything that is known of a run, with its settings
/// and its environment, for `trireme report` and your own programs. Goes on with files that are
/// there.
class JsonlWriter final : public RecordWriter {
 public:
  explicit JsonlWriter(const JsonlWriterOptions& options)
      : RecordWriter(options.folder, options.every_steps, Ranks::kAll),
        settings_(options.settings) {}

 protected:
  std::unique_ptr<report::RecordFile> open(const RunContext& run) override;
  report::Texts settings() const override { return settings_; }

 private:
  report::Texts settings_;
};

struct TensorBoardWriterOptions {
  /// A folder for each run: TensorBoard takes those of one folder for one run.
  std::filesystem::path folder{};
  /// A point for every n-th step, which stands for all since the point before.
  std::int64_t every_steps = 1;
};

/// Rank 0 writes scalars that TensorBoard shows: losses, accuracy, learning rate, times, and what
/// callbacks have logged.
class TensorBoardWriter final : public RecordWriter {
 public:
  explicit TensorBoardWriter(const TensorBoardWriterOptions& options)
      : RecordWriter(options.folder, options.every_steps, Ranks::kFirst) {}

 protected:
  std::unique_ptr<report::RecordFile> open(const RunContext& run) override;
};

}  // namespace trireme
