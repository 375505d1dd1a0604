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

}  // namespace

void ProgressPlace::write(const StepProgress& progress) noexcept {
  const std::array<std::int64_t, kWords> values{
      progress.process,    progress.step,    progress.of_steps, progress.epoch,
      progress.reports,    progress.samples, progress.tokens,   progress.own_nanoseconds,
      progress.reported_at};
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
                        .reported_at = values[8]};
  }
  return std::nullopt;
}

void report_step(const StepReport& report) noexcept {
  try {
    Reporter& own = reporter();
    const std::lock_guard lock(own.mutex);
    if (own.place == nullptr || own.so_far.process != ::getpid()) {
      // A forked child that trains counts from its own first step.
      if (own.place == nullptr) own.place = &find_place();
      own.so_far = {.process = ::getpid()};
    }
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

std::optional<StepProgress> own_progress() noexcept { return place_of_process.read(); }

}  // namespace trireme
