// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/step_progress.h>

#include <trireme/base/environment.h>
#include <trireme/base/text.h>
#include <trireme/base/unique_fd.h>
#include <trireme/base/warning.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <string>

namespace trireme {
namespace {

ProgressPlace place_of_process;

void warn_of(const std::string& value, const std::string& why) {
  warn(kProgressVariable, " is '", value, "', ", why,
       ": the steps of this rank are not seen from outside. hint: leave the variable to the "
       "launcher");
}

// Returns true if a file is the memory of a launcher: where processes have other numbers, or a
// number has been used again, the path may lead to any file. The system may add the seal against
// execution.
bool is_progress_memory(int file) {
  constexpr int kSealOfExecution = 0x20;  // F_SEAL_EXEC of Linux 6.3
  const int seals = ::fcntl(file, F_GET_SEALS);
  return seals >= 0 && (seals & ~kSealOfExecution) == kProgressSeals;
}

// Returns the place that the launcher has made, or that of this process.
ProgressPlace& find_place() {
  const std::string value = Environment::of_process().find(kProgressVariable).value_or("");
  if (value.empty()) return place_of_process;
  const auto colon = value.rfind(':');
  const auto number = colon == std::string::npos
                          ? std::nullopt
                          : parse_number<std::uint32_t>(std::string_view(value).substr(colon + 1));
  if (!number) {
    warn_of(value, "expected FILE:PLACE");
    return place_of_process;
  }
  const UniqueFd file(::open(value.substr(0, colon).c_str(), O_RDWR | O_CLOEXEC));
  struct stat found{};
  // Nobody has asked this rank for a report in particular, and it cannot do anything about it.
  if (!file || !is_progress_memory(file.get()) || ::fstat(file.get(), &found) != 0)
    return place_of_process;
  const auto bytes = static_cast<std::size_t>(found.st_size);
  if (bytes / sizeof(ProgressPlace) <= *number) {
    warn_of(value, "and the file has no such place");
    return place_of_process;
  }
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    warn_of(value, "which cannot be mapped: " + describe_errno(errno));
    return place_of_process;
  }
  // Mapped until the process ends.
  return static_cast<ProgressPlace*>(memory)[*number];
}

// The writer of this process.
struct Reporter {
  std::mutex mutex;
  ProgressPlace* place = nullptr;
  StepProgress so_far;
};

Reporter& reporter() {
  static Reporter one;
  return one;
}

// Finds the place of the process. The lock of the reporter is held.
void prepare(Reporter& own) {
  if (own.place != nullptr && own.so_far.process == ::getpid()) return;
  // A forked child that trains counts from its own first step.
  if (own.place == nullptr) own.place = &find_place();
  own.so_far = {.process = ::getpid()};
}

constexpr std::int64_t kFinal = 1;
constexpr std::int64_t kOfUnknownRank = 2;
constexpr std::int64_t kRank = 4;

}  // namespace

void ProgressPlace::write(const StepProgress& progress) noexcept {
  const std::array<std::int64_t, kWords> values{
      progress.process,     progress.step,    progress.of_steps, progress.epoch,
      progress.reports,     progress.samples, progress.tokens,   progress.own_nanoseconds,
      progress.reported_at, progress.failure};
  const std::uint64_t before = sequence_.load(std::memory_order_relaxed) | 1U;
  sequence_.store(before, std::memory_order_relaxed);
  // Readers that see a new word also see the odd number.
  for (std::size_t i = 0; i < kWords; ++i)
    words_.at(i).store(values.at(i), std::memory_order_release);
  sequence_.store(before + 1, std::memory_order_release);
}

std::optional<StepProgress> ProgressPlace::read() const noexcept {
  constexpr int kAttempts = 1000;  // a write takes less than a microsecond
  for (int i = 0; i < kAttempts; ++i) {
    const std::uint64_t before = sequence_.load(std::memory_order_acquire);
    if (before == 0) return std::nullopt;
    std::array<std::int64_t, kWords> values{};
    for (std::size_t word = 0; word < kWords; ++word)
      values.at(word) = words_.at(word).load(std::memory_order_acquire);
    const bool is_whole = before % 2 == 0 && sequence_.load(std::memory_order_relaxed) == before;
    if (!is_whole) continue;
    return StepProgress{.process = values[0],
                        .step = values[1],
                        .of_steps = values[2],
                        .epoch = values[3],
                        .reports = values[4],
                        .samples = values[5],
                        .tokens = values[6],
                        .own_nanoseconds = values[7],
                        .reported_at = values[8],
                        .failure = values[9]};
  }
  return std::nullopt;
}

void report_step(const StepReport& report) noexcept {
  try {
    Reporter& own = reporter();
    const std::lock_guard lock(own.mutex);
    prepare(own);
    StepProgress& all = own.so_far;
    all.step = report.step;
    all.of_steps = report.of_steps;
    all.epoch = report.epoch;
    ++all.reports;
    all.samples += report.samples;
    all.tokens += report.tokens;
    constexpr double kLongest = 1e9;
    if (report.own_seconds > 0 && report.own_seconds < kLongest)
      all.own_nanoseconds += std::llround(report.own_seconds * 1e9);
    all.reported_at = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::steady_clock::now().time_since_epoch())
                          .count();
    own.place->write(all);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): training goes on unseen
  }
}

void report_failure(const FailureReport& report) noexcept {
  try {
    Reporter& own = reporter();
    const std::lock_guard lock(own.mutex);
    prepare(own);
    own.so_far.failure = (report.is_final ? kFinal : 0) +
                         (report.is_of_unknown_rank ? kOfUnknownRank : 0) +
                         (report.faulty_rank ? (*report.faulty_rank + 1) * kRank : 0);
    own.place->write(own.so_far);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the rank fails in any case
  }
}

FailureReport reported_failure(const StepProgress& progress) noexcept {
  const std::int64_t value = progress.failure;
  const std::int64_t rank = value / kRank - 1;
  if (value <= 0 || rank > std::numeric_limits<int>::max()) return {};
  FailureReport report{.faulty_rank = std::nullopt,
                       .is_of_unknown_rank = (value & kOfUnknownRank) != 0,
                       .is_final = (value & kFinal) != 0};
  if (rank >= 0) report.faulty_rank = static_cast<int>(rank);
  return report;
}

std::optional<StepProgress> own_progress() noexcept { return place_of_process.read(); }

}  // namespace trireme
