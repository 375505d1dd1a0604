// SPDX-License-Identifier: Apache-2.0
// The records that a run writes, as plain values, and the interface of files that take them.
// docs/formats/run.md defines the meaning of every number.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace trireme::report {

/// The time of a record, and the progress of training at that time.
struct Moment {
  double time = 0;               ///< seconds since 1970-01-01 UTC
  std::int64_t epoch = 0;        ///< the epoch, from 1; 0 before the first
  std::int64_t global_step = 0;  ///< the step, counted from 1 over all epochs; 0 before the first
};

/// Texts by name.
using Texts = std::map<std::string, std::string>;
/// Numbers by name.
using Numbers = std::map<std::string, double, std::less<>>;

/// The beginning of a run: one call of `fit` or `train`.
struct RunRecord {
  Moment moment{};                                  ///< when and where in training
  int rank = 0;                                     ///< the rank that writes the record
  int world_size = 1;                               ///< the number of ranks
  std::int64_t epochs = 0;                          ///< the number of the last epoch of this call
  std::int64_t steps_in_epoch = 0;                  ///< the number of steps of one epoch
  std::optional<std::int64_t> tokens_per_sample{};  ///< tokens of each sample, with padding
  std::optional<double> flops_per_sample{};         ///< of forward and backward of the model
  std::string dtype{};  ///< dtype of matrix products, as PyTorch spells it; empty: unknown
  std::optional<double> peak_flops{};  ///< peak FLOP/s of the devices of all ranks in `dtype`
  Texts settings{};                    ///< the settings of the program and of the model
  Texts environment{};                 ///< the machine, versions, command and revision
};

/// The time that steps spent in each phase, in seconds.
struct PhaseSeconds {
  double data = 0;           ///< waiting for batches
  double forward = 0;        ///< the forward pass
  double backward = 0;       ///< the backward pass without communication
  double communication = 0;  ///< exchanging gradients, including waiting for other ranks
  double optimizer = 0;      ///< the optimizer
  double callbacks = 0;      ///< callbacks, and evaluations within an epoch
  double total = 0;          ///< wall-clock time
};

/// A record of one step, or of several consecutive steps together.
struct StepRecord {
  Moment moment{};                                  ///< when and where in training
  std::int64_t step = 0;                            ///< number of the last step within its epoch
  std::int64_t steps = 1;                           ///< number of steps that the record stands for
  double loss = 0;                                  ///< mean loss of this rank over the steps
  std::int64_t samples = 0;                         ///< number of samples of this rank
  std::optional<std::int64_t> all_samples{};        ///< number of samples of all ranks, if known
  PhaseSeconds seconds{};                           ///< of the steps together
  std::optional<double> learning_rate{};            ///< learning rate of the first parameter group
  std::optional<double> gradient_norm{};            ///< norm of all gradients before clipping
  std::optional<double> loss_scale{};               ///< loss scale, for training in fp16
  std::int64_t skipped = 0;                         ///< steps skipped because gradients overflowed
  std::optional<std::int64_t> memory_bytes{};       ///< resident memory of the process
  std::optional<std::int64_t> peak_memory_bytes{};  ///< maximum of the resident memory so far
  std::optional<std::int64_t> device_memory_bytes{};  ///< memory of tensors on the device
  Numbers scalars{};                                  ///< what callbacks have logged

  /// Returns the samples of this rank per second of wall-clock time. Returns std::nullopt if no
  /// time has passed.
  std::optional<double> samples_per_second() const {
    if (!(seconds.total > 0)) return {};
    return static_cast<double>(samples) / seconds.total;
  }

  /// Returns the samples of all ranks per second of wall-clock time. Files call this number
  /// `samples_per_second`.
  std::optional<double> throughput() const {
    if (!(seconds.total > 0)) return {};
    return static_cast<double>(all_samples.value_or(samples)) / seconds.total;
  }
};

/// The end of an epoch.
struct EpochRecord {
  Moment moment{};           ///< when and where in training
  double loss = 0;           ///< mean training loss over the samples of all ranks
  std::int64_t samples = 0;  ///< number of samples of all ranks
  double seconds = 0;        ///< duration of the training on this rank
  Numbers scalars{};         ///< what callbacks have logged
};

/// The result of an evaluation, over all ranks.
struct EvaluationRecord {
  Moment moment{};                   ///< when and where in training
  double loss = 0;                   ///< mean loss
  std::optional<double> accuracy{};  ///< share in [0, 1], if targets are class numbers
  std::int64_t samples = 0;          ///< number of samples
  double seconds = 0;                ///< duration
  Numbers scalars{};                 ///< what callbacks have logged
};

/// A saved checkpoint.
struct CheckpointRecord {
  Moment moment{};     ///< when and where in training
  std::string path{};  ///< the path of the checkpoint
  double seconds = 0;  ///< duration of saving
};

/// The end of training by an exception.
struct FailureRecord {
  Moment moment{};        ///< when and where in training
  std::string message{};  ///< the message of the exception
};

/// The regular end of training.
struct EndRecord {
  Moment moment{};          ///< when and where in training
  bool is_stopped = false;  ///< true if training ended before its last epoch
  double seconds = 0;       ///< duration of the whole call
};

/// Takes the records of one rank in the order of events. A format leaves out what it has no place
/// for. Constructors of implementations throw ConfigError if the file system refuses.
class RecordFile {
 public:
  RecordFile() = default;
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  virtual ~RecordFile() = default;

  /// Writes the beginning of a run.
  virtual void write(const RunRecord& /*run*/) {}
  /// Writes steps.
  virtual void write(const StepRecord& step) = 0;
  /// Writes the end of an epoch.
  virtual void write(const EpochRecord& epoch) = 0;
  /// Writes an evaluation.
  virtual void write(const EvaluationRecord& evaluation) = 0;
  /// Writes a checkpoint.
  virtual void write(const CheckpointRecord& /*checkpoint*/) {}
  /// Writes a failure.
  virtual void write(const FailureRecord& /*failure*/) {}
  /// Writes the end of a run.
  virtual void write(const EndRecord& /*end*/) {}
};

}  // namespace trireme::report
