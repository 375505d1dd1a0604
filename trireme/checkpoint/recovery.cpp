// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/recovery.h>

#include <trireme/base/environment.h>

#include <cstdint>
#include <limits>

namespace trireme::checkpoint {

std::optional<std::filesystem::path> recovery_folder() {
  const auto folder = Environment::of_process().find("TRIREME_RECOVERY_FOLDER");
  if (!folder) return std::nullopt;
  return *folder;
}

std::optional<std::chrono::seconds> recovery_interval() {
  constexpr std::int64_t kOneMonth = 31LL * 24 * 3600;
  const auto seconds =
      Environment::of_process().find_integer("TRIREME_RECOVERY_SECONDS", 0, kOneMonth);
  if (!seconds) return std::nullopt;
  return std::chrono::seconds(*seconds);
}

int restart_count() {
  const auto count = Environment::of_process().find_integer("TORCHELASTIC_RESTART_COUNT", 0,
                                                            std::numeric_limits<int>::max());
  return static_cast<int>(count.value_or(0));
}

}  // namespace trireme::checkpoint
