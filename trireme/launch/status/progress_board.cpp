// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/progress_board.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <locale>

namespace trireme::launch {
namespace {

std::int64_t memory_of(std::int64_t process) {
  std::ifstream file(join_message("/proc/", process, "/statm"));
  file.imbue(std::locale::classic());
  std::int64_t all = 0;
  std::int64_t resident = 0;
  if (!(file >> all >> resident)) return 0;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

RankProgress describe_progress(int rank, int process, const std::optional<StepProgress>& reported) {
  RankProgress progress{.rank = rank, .process = process};
  if (reported) {
    constexpr std::int64_t kThousand = 1000;
    const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::steady_clock::now().time_since_epoch())
                         .count();
    const auto counted = [](std::int64_t value) { return std::max<std::int64_t>(0, value); };
    progress.process = reported->process;
    progress.step = counted(reported->step);
    progress.of_steps = counted(reported->of_steps);
    progress.epoch = counted(reported->epoch);
    progress.reports = counted(reported->reports);
    progress.samples = counted(reported->samples);
    progress.tokens = counted(reported->tokens);
    progress.own_microseconds = counted(reported->own_nanoseconds / kThousand);
    // A rank may write anything there.
    const std::int64_t reported_at = std::clamp<std::int64_t>(reported->reported_at, 0, now);
    progress.age_ms = (now - reported_at) / (kThousand * kThousand);
  }
  progress.memory_bytes = memory_of(progress.process);
  return progress;
}

ProgressBoard::ProgressBoard(std::size_t ranks)
    : memory_(::memfd_create("trireme-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING)),
      bytes_(std::max<std::size_t>(1, ranks) * sizeof(ProgressPlace)) {
  void* memory = MAP_FAILED;
  if (memory_ && ::ftruncate(memory_.get(), static_cast<off_t>(bytes_)) == 0 &&
      ::fcntl(memory_.get(), F_ADD_SEALS, kProgressSeals) == 0) {
    memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  }
  if (memory == MAP_FAILED) {
    throw ConfigError(join_message("cannot make ", bytes_, " bytes of memory for the progress of ",
                                   ranks, " ranks: ", describe_errno(errno)),
                      "check ulimit -n and the limit of memory");
  }
  places_ = static_cast<ProgressPlace*>(memory);  // zeros, which is the initial state
}

ProgressBoard::~ProgressBoard() { ::munmap(places_, bytes_); }

std::string ProgressBoard::variable_of(std::size_t index) const {
  return join_message("/proc/", ::getpid(), "/fd/", memory_.get(), ":", index);
}

}  // namespace trireme::launch
