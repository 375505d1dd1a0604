// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/tensorboard_file.h>

#include <trireme/base/error.h>
#include <trireme/base/machine.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <string>

namespace trireme::report {
namespace {

// The table of CRC-32C for one byte at a time, computed at compile time.
constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t kReversedPolynomial = 0x82F63B78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value & 1U) != 0 ? (value >> 1U) ^ kReversedPolynomial : value >> 1U;
    }
    table.at(byte) = value;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

template <typename Unsigned>
std::string little_endian(Unsigned value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(Unsigned); ++i) {
    bytes += static_cast<char>(value >> (8 * i) & 0xFFU);
  }
  return bytes;
}

// Protocol buffers encode fields by number. Only these wire types are needed here.
enum class Wire : std::uint8_t { kVarint = 0, kEightBytes = 1, kBytes = 2, kFourBytes = 5 };

void add_varint(std::string& message, std::uint64_t value) {
  for (; value >= 0x80U; value >>= 7U) message += static_cast<char>((value & 0x7FU) | 0x80U);
  message += static_cast<char>(value);
}
void add_key(std::string& message, std::uint32_t field, Wire wire) {
  add_varint(message, field << 3U | static_cast<std::uint32_t>(wire));
}
void add_field(std::string& message, std::uint32_t field, double value) {
  add_key(message, field, Wire::kEightBytes);
  message += little_endian(std::bit_cast<std::uint64_t>(value));
}
void add_field(std::string& message, std::uint32_t field, float value) {
  add_key(message, field, Wire::kFourBytes);
  message += little_endian(std::bit_cast<std::uint32_t>(value));
}
void add_field(std::string& message, std::uint32_t field, std::int64_t value) {
  add_key(message, field, Wire::kVarint);
  add_varint(message, static_cast<std::uint64_t>(value));
}
void add_field(std::string& message, std::uint32_t field, std::string_view value) {
  add_key(message, field, Wire::kBytes);
  add_varint(message, value.size());
  message += value;
}

// tensorflow.Event: wall_time = 1, step = 2, file_version = 3, summary = 5.
std::string first_event(double time) {
  std::string event;
  add_field(event, 1, time);
  add_field(event, 3, std::string_view("brain.Event:2"));
  return event;
}

// Builds an event with a summary. A summary has repeated value = 1, with tag = 1, simple_value = 2
// and metadata = 9. TensorBoard shows the metadata's summary_description = 3 beside the chart.
class Scalars {
 public:
  void add(std::string_view tag, double value, std::string_view description = {}) {
    std::string entry;
    add_field(entry, 1, tag);
    add_field(entry, 2, static_cast<float>(value));
    if (!description.empty()) {
      std::string metadata;
      add_field(metadata, 3, description);
      add_field(entry, 9, std::string_view(metadata));
    }
    add_field(summary_, 1, std::string_view(entry));
  }
  void add(std::string_view tag, const std::optional<double>& value,
           std::string_view description = {}) {
    if (value) add(tag, *value, description);
  }
  void add(std::string_view tag, const std::optional<std::int64_t>& value) {
    if (value) add(tag, static_cast<double>(*value));
  }
  void add(const Numbers& numbers) {
    for (const auto& [name, value] : numbers) add("scalars/" + name, value);
  }

  std::string event(const Moment& moment) const {
    std::string event;
    add_field(event, 1, moment.time);
    add_field(event, 2, moment.global_step);
    add_field(event, 5, std::string_view(summary_));
    return event;
  }

 private:
  std::string summary_;
};

// A TFRecord: the length and its checksum, then the data and its checksum.
std::string record_of(std::string_view event) {
  const std::string length = little_endian(static_cast<std::uint64_t>(event.size()));
  std::string record = length + little_endian(masked_crc32c(length));
  record += event;
  record += little_endian(masked_crc32c(event));
  return record;
}

// Appends an event, with a mark if earlier records could not be written.
void append(Scalars& scalars, const Moment& moment, AppendFile& file) {
  if (file.lost() > 0) scalars.add("lost/records", static_cast<double>(file.lost()));
  file.append(record_of(scalars.event(moment)));
}

std::filesystem::path file_name(double time) {
  static std::atomic<int> number = 0;
  return join_message("events.out.tfevents.", static_cast<std::int64_t>(time), ".", host_name(),
                      ".", ::getpid(), ".", number++);
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char byte : bytes) {
    crc = kCrcTable.at((crc ^ static_cast<unsigned char>(byte)) & 0xFFU) ^ (crc >> 8U);
  }
  return std::rotr(~crc, 15) + 0xA282EAD8U;
}

TensorBoardFile::TensorBoardFile(const std::filesystem::path& folder, double time)
    : file_(folder / file_name(time)) {
  file_.begin(record_of(first_event(time)));
}

void TensorBoardFile::write(const StepRecord& step) {
  Scalars scalars;
  scalars.add("train/loss", step.loss, "of rank 0; train/epoch_loss is the mean over all ranks");
  scalars.add("train/learning_rate", step.learning_rate);
  scalars.add("train/gradient_norm", step.gradient_norm);
  scalars.add("train/loss_scale", step.loss_scale);
  scalars.add("train/samples_per_second", step.throughput(), "of all ranks");
  scalars.add("memory/bytes", step.memory_bytes);
  scalars.add("memory/device_bytes", step.device_memory_bytes);
  const PhaseSeconds& seconds = step.seconds;
  scalars.add("time/data", seconds.data);
  scalars.add("time/forward", seconds.forward);
  scalars.add("time/backward", seconds.backward);
  scalars.add("time/communication", seconds.communication);
  scalars.add("time/optimizer", seconds.optimizer);
  scalars.add("time/callbacks", seconds.callbacks);
  scalars.add("time/total", seconds.total);
  scalars.add(step.scalars);
  append(scalars, step.moment, file_);
}

void TensorBoardFile::write(const EpochRecord& epoch) {
  Scalars scalars;
  scalars.add("train/epoch_loss", epoch.loss);
  scalars.add("time/epoch", epoch.seconds);
  scalars.add(epoch.scalars);
  append(scalars, epoch.moment, file_);
}

void TensorBoardFile::write(const EvaluationRecord& evaluation) {
  Scalars scalars;
  scalars.add("validation/loss", evaluation.loss);
  scalars.add("validation/accuracy", evaluation.accuracy);
  scalars.add("time/evaluation", evaluation.seconds);
  scalars.add(evaluation.scalars);
  append(scalars, evaluation.moment, file_);
}

}  // namespace trireme::report
