// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/calibration.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/base/machine.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <limits>
#include <locale>
#include <mutex>
#include <optional>
#include <vector>

namespace trireme::shm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<std::size_t, 4> kShortBytes = {16384, 32768, 65536, 131072};
constexpr std::array<std::size_t, 3> kChunkBytes = {65536, 131072, 262144};
constexpr std::size_t kLongBytes = std::size_t{1} << 21;

// The results that this process has measured as rank 0, by size of the group. Contains the defaults
// if the measurement took too long, because it would again.
class Remembered {
 public:
  std::optional<Thresholds> find(int size) {
    const std::lock_guard lock(mutex_);
    return by_size_[static_cast<std::size_t>(size)];
  }
  void set(int size, const Thresholds& thresholds) {
    const std::lock_guard lock(mutex_);
    by_size_[static_cast<std::size_t>(size)] = thresholds;
  }

 private:
  std::mutex mutex_;
  std::array<std::optional<Thresholds>, kMaximumRanks + 1> by_size_;
};

Remembered& remembered() {
  static Remembered all;
  return all;
}

// Returns the path of the file of this host. The file says for which boot it is valid.
std::filesystem::path file_for(const Steps& steps, const std::filesystem::path& folder) {
  return folder / join_message("shared-memory-1-", host_name(), "-", steps.size(), "-ranks-",
                               available_cores(), "-cores");
}

std::optional<Thresholds> read(const std::filesystem::path& path) {
  Thresholds thresholds;
  std::string boot;
  std::ifstream file(path);
  file.imbue(std::locale::classic());
  file >> boot >> thresholds.one_shot_bytes >> thresholds.chunk_bytes;
  if (!file || boot != boot_id()) return std::nullopt;
  return thresholds;
}

// Writes another file and renames it, because several runs may start at the same time.
void write(const std::filesystem::path& path, const Thresholds& thresholds) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  try {
    write_file(path, join_message(boot_id(), ' ', thresholds.one_shot_bytes, ' ',
                                  thresholds.chunk_bytes, '\n'));
  } catch (const CheckpointError&) {  // NOLINT(bugprone-empty-catch): it is measured again
  }
}

// Returns a call that begins now. The deadline applies to each part, because all parts together may
// take longer than a short deadline.
Call begun_now(const Call& call) { return {call.operation, Clock::now(), nullptr}; }

// Returns the shortest time of several runs, because the others were disturbed.
Clock::duration time_of(Steps& steps, const Call& call, std::vector<float>& data, std::size_t bytes,
                        const Thresholds& thresholds) {
  constexpr int kRuns = 8;
  Clock::duration shortest = Clock::duration::max();
  for (int run = 0; run < kRuns; ++run) {
    const Call own_call = begun_now(call);
    barrier(steps, own_call);
    const auto started = Clock::now();
    all_reduce(steps, own_call, data.data(), data.data(), bytes / sizeof(float), DataType::kFloat32,
               {}, thresholds);
    shortest = std::min(shortest, Clock::now() - started);
  }
  return shortest;
}

// Returns whether rank 0 has time for another measurement.
bool has_time(Steps& steps, const Call& call, Clock::time_point end) {
  bool answer = Clock::now() < end;
  broadcast(steps, begun_now(call), &answer, sizeof(answer), 0);
  return answer;
}

// Measures on every rank; the result of rank 0 counts. Returns nothing if it would take too long.
std::optional<Thresholds> measure(Steps& steps, const Call& call,
                                  std::chrono::milliseconds longest) {
  const auto end = Clock::now() + longest;
  std::vector<float> data(kLongBytes / sizeof(float));
  constexpr std::size_t kAlways = std::numeric_limits<std::size_t>::max();
  Thresholds best = {.one_shot_bytes = kShortBytes.front() / 2, .chunk_bytes = kChunkBytes.back()};
  Clock::duration shortest = Clock::duration::max();
  for (const std::size_t chunk : kChunkBytes) {
    if (!has_time(steps, call, end)) return std::nullopt;
    const auto time =
        time_of(steps, call, data, kLongBytes, {.one_shot_bytes = 0, .chunk_bytes = chunk});
    if (time < shortest) {
      shortest = time;
      best.chunk_bytes = chunk;
    }
  }
  bool is_faster = true;
  for (const std::size_t bytes : kShortBytes) {
    if (!has_time(steps, call, end)) return std::nullopt;
    const auto whole = time_of(steps, call, data, bytes, {.one_shot_bytes = kAlways});
    const auto slices = time_of(steps, call, data, bytes, {.one_shot_bytes = 0});
    is_faster = is_faster && whole <= slices;
    if (is_faster) best.one_shot_bytes = bytes;
  }
  return best;
}

}  // namespace

Thresholds calibrate(Steps& steps, const Call& call, const Options& options) {
  const std::filesystem::path& folder = options.cache_folder;
  const std::filesystem::path path = folder.empty() ? folder : file_for(steps, folder);
  std::optional<Thresholds> known;
  if (steps.rank() == 0) known = remembered().find(steps.size());
  if (steps.rank() == 0 && !known && !path.empty()) known = read(path);
  std::array<std::size_t, 3> message = {known.has_value(), 0, 0};
  broadcast(steps, call, message.data(), sizeof(message), 0);
  const bool must_measure = message[0] == 0;
  const std::optional<Thresholds> measured =
      must_measure ? measure(steps, call, options.longest_calibration) : known;
  Thresholds thresholds = measured.value_or(Thresholds{});
  message = {1, thresholds.one_shot_bytes, thresholds.chunk_bytes};
  broadcast(steps, begun_now(call), message.data(), sizeof(message), 0);
  thresholds.one_shot_bytes = std::min(message[1], steps.slot_bytes());
  thresholds.chunk_bytes = std::clamp(message[2], kChunkBytes.front(), steps.slot_bytes());
  if (steps.rank() == 0) remembered().set(steps.size(), thresholds);
  if (steps.rank() == 0 && must_measure && measured && !path.empty()) write(path, thresholds);
  return thresholds;
}

}  // namespace trireme::shm
