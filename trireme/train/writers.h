// SPDX-License-Identifier: Apache-2.0
// Callbacks that write records of a training into files as it runs. docs/formats/run.md describes
// every key and column. A folder that cannot be written to is an error before training begins. A
// run that is killed leaves readable files.
#pragma once

#include <trireme/report/records.h>
#include <trireme/train/callback.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

namespace trireme {

/// The base class of the writers: turns the contexts of hooks into records. Throws ConfigError if
/// the files cannot be written, and UsageError for an interval below 1.
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
  /// The ranks that write: rank 0 alone, or all.
  enum class Ranks : std::uint8_t { kFirst, kAll };
  RecordWriter(std::filesystem::path folder, std::int64_t every_steps, Ranks ranks);

  /// Returns the folder of the files.
  const std::filesystem::path& folder() const { return folder_; }
  /// Opens the file of this rank.
  virtual std::unique_ptr<report::RecordFile> open(const RunContext& run) = 0;
  /// Returns the settings of the program, for the record of the run.
  virtual report::Texts settings() const { return {}; }
  /// Returns the tokens of each sample, if it has any.
  virtual std::optional<std::int64_t> tokens_per_sample() const { return {}; }
  /// Returns the FLOPs of the model for each sample, if they are known.
  virtual std::optional<double> flops_per_sample() const { return {}; }

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

/// Settings of CsvWriter.
struct CsvWriterOptions {
  /// The folder of the file.
  std::filesystem::path folder{};
  /// Writes a line for every n-th step. The line covers all steps since the line before.
  std::int64_t every_steps = 1;
};

/// Writes `metrics.csv` on rank 0, with a line for each step, epoch and evaluation. Appends to an
/// existing file.
class CsvWriter final : public RecordWriter {
 public:
  /// The folder is made when training begins. Throws UsageError for an interval below 1.
  explicit CsvWriter(const CsvWriterOptions& options)
      : RecordWriter(options.folder, options.every_steps, Ranks::kFirst) {}

 protected:
  std::unique_ptr<report::RecordFile> open(const RunContext& run) override;
};

/// Settings of JsonlWriter.
struct JsonlWriterOptions {
  /// The folder of the files.
  std::filesystem::path folder{};
  /// Writes a record for every n-th step. The record covers all steps since the record before.
  std::int64_t every_steps = 1;
  /// Settings of the program, such as its command-line options, by name.
  report::Texts settings{};
  /// The tokens of each sample of a language model, with padding: `trireme report` shows tokens per
  /// second then.
  std::optional<std::int64_t> tokens_per_sample{};
  /// The floating-point operations of forward and backward for each sample
  /// (predict::model_flops): `trireme report` shows FLOP/s then, and which share they are of the
  /// peak of the devices, if TRIREME_CLUSTER or `trireme report --cluster` names their description.
  std::optional<double> flops_per_sample{};
};

/// Writes `events-rank<r>.jsonl` on every rank: all records of a run, with its settings and
/// environment, for `trireme report` and programs of your own. Appends to existing files.
class JsonlWriter final : public RecordWriter {
 public:
  /// The folder is made when training begins. Throws UsageError for an interval or a number of
  /// tokens below 1, and for FLOPs that are not a finite number above 0.
  explicit JsonlWriter(const JsonlWriterOptions& options);

 protected:
  std::unique_ptr<report::RecordFile> open(const RunContext& run) override;
  report::Texts settings() const override { return settings_; }
  std::optional<std::int64_t> tokens_per_sample() const override { return tokens_per_sample_; }
  std::optional<double> flops_per_sample() const override { return flops_per_sample_; }

 private:
  report::Texts settings_;
  std::optional<std::int64_t> tokens_per_sample_;
  std::optional<double> flops_per_sample_;
};

/// Settings of TensorBoardWriter.
struct TensorBoardWriterOptions {
  /// The folder of this run. Use a folder for each run: TensorBoard shows all files of a folder as
  /// one run.
  std::filesystem::path folder{};
  /// Writes a point for every n-th step. The point covers all steps since the point before.
  std::int64_t every_steps = 1;
};

/// Writes scalars for TensorBoard on rank 0: losses, accuracy, learning rate, times, and what
/// callbacks have logged.
class TensorBoardWriter final : public RecordWriter {
 public:
  /// The folder is made when training begins. Throws UsageError for an interval below 1.
  explicit TensorBoardWriter(const TensorBoardWriterOptions& options)
      : RecordWriter(options.folder, options.every_steps, Ranks::kFirst) {}

 protected:
  std::unique_ptr<report::RecordFile> open(const RunContext& run) override;
};

}  // namespace trireme
