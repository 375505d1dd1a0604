// SPDX-License-Identifier: Apache-2.0
// What a run tells those who look at it later, as plain values, and where that goes.
// docs/formats/run.md says what every number means.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace trireme::report {

/// When, and how far training had come.
struct Moment {
  double time = 0;  ///< seconds since 1970-01-01 UTC
  std::int64_t epoch = 0;
  std::int64_t global_step = 0;
};

using Texts = std::map<std::string, std::string>;
using Numbers = std::map<std::string, double, std::less<>>;

struct RunRecord {
  Moment moment{};
  int rank = 0;
  int world_size = 1;
  std::int64_t epochs = 0;
  std::int64_t steps_in_epoch = 0;
  Texts settings{};
  Texts environment{};
};

/// What the time of steps went into, in seconds.
struct PhaseSeconds {
  double data = 0;
  double forward = 0;
  double backward = 0;
  double communication = 0;
  double optimizer = 0;
  double callbacks = 0;
  double total = 0;  ///< wall clock
};

/// One step, or several together.
struct StepRecord {
  Moment moment{};
  std::int64_t step = 0;                      ///< in the epoch, of the last of them
  std::int64_t steps = 1;                     ///< how many
  double loss = 0;                            ///< mean
  std::int64_t samples = 0;                   ///< rows of this rank
  std::optional<std::int64_t> all_samples{};  ///< rows of all ranks, where they are known
  PhaseSeconds seconds{};
  std::optional<double> learning_rate{};
  std::optional<double> gradient_norm{};
  std::optional<double> loss_scale{};
  std::int64_t skipped = 0;
  std::optional<std::int64_t> memory_bytes{};
  std::optional<std::int64_t> peak_memory_bytes{};
  std::optional<std::int64_t> device_memory_bytes{};
  Numbers scalars{};

  /// Returns the rows of this rank by the wall clock; nothing where no time has passed.
  std::optional<double> samples_per_second() const {
    if (!(seconds.total > 0)) return {};
    return static_cast<double>(samples) / seconds.total;
  }

  /// Returns the rows of all ranks by the wall clock, which files call samples per second.
  std::optional<double> throughput() const {
    if (!(seconds.total > 0)) return {};
    return static_cast<double>(all_samples.value_or(samples)) / seconds.total;
  }
};

struct EpochRecord {
  Moment moment{};
  double loss = 0;
  std::int64_t samples = 0;
  double seconds = 0;
  Numbers scalars{};
};

struct EvaluationRecord {
  Moment moment{};
  double loss = 0;
  std::optional<double> accuracy{};
  std::int64_t samples = 0;
  double seconds = 0;
  Numbers scalars{};
};

struct CheckpointRecord {
  Moment moment{};
  std::string path{};
  double seconds = 0;
};

struct FailureRecord {
  Moment moment{};
  std::string message{};
};

struct EndRecord {
  Moment moment{};
  bool is_stopped = false;
  double seconds = 0;
};

/// Takes the records of one rank in the order in which things happened. What it has no place for
/// it leaves out. Throws ConfigError where the file system refuses.
class RecordFile {
 public:
  RecordFile() = default;
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  virtual ~RecordFile() = default;

  virtual void write(const RunRecord& /*run*/) {}
  virtual void write(const StepRecord& step) = 0;
  virtual void write(const EpochRecord& epoch) = 0;
  virtual void write(const EvaluationRecord& evaluation) = 0;
  virtual void write(const CheckpointRecord& /*checkpoint*/) {}
  virtual void write(const FailureRecord& /*failure*/) {}
  virtual void write(const EndRecord& /*end*/) {}
};

}  // namespace trireme::report
