// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/scheduler_state.h>

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>
#include <trireme/launch/status/status_address.h>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace trireme::launch {
namespace {

constexpr int kStateFormat = 1;

[[noreturn]] void refuse_state(const std::filesystem::path& file, const std::string& what) {
  throw ConfigError(join_message("the state of a scheduler in ", file.string(), " ", what),
                    "remove the file to begin another run; the run that it belonged to cannot be "
                    "taken up then");
}

}  // namespace

void write_scheduler_state(const std::filesystem::path& file, const SchedulerState& state) {
  const nlohmann::ordered_json json{{"format", kStateFormat},
                                    {"run", state.run},
                                    {"attempt", state.attempt},
                                    {"secret", state.secret},
                                    {"store_secret", state.store_secret},
                                    {"status_token", state.status_token},
                                    {"status_port", state.status_port}};
  write_private_file(file, json.dump() + "\n");
}

std::optional<SchedulerState> read_scheduler_state(const std::filesystem::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) return std::nullopt;
  struct stat found{};
  std::array<char, 1 << 14> buffer{};
  const ssize_t count =
      fd && ::fstat(fd.get(), &found) == 0 ? ::read(fd.get(), buffer.data(), buffer.size()) : -1;
  if (count < 0) refuse_state(file, "cannot be read: " + describe_errno(errno));
  if ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw ConfigError(join_message("the state of a scheduler in ", file.string(),
                                   " has secrets, and other users may read it"),
                      "make a new TRIREME_SECRET for the next run, and remove the file; or chmod "
                      "600 it if nobody "
                      "has read it");
  }
  const auto json = nlohmann::json::parse(buffer.data(), buffer.data() + count, /*cb=*/nullptr,
                                          /*allow_exceptions=*/false);
  try {
    if (json.at("format") != kStateFormat) refuse_state(file, "has another format");
    SchedulerState state{.run = json.at("run"),
                         .attempt = json.at("attempt"),
                         .secret = json.at("secret"),
                         .store_secret = json.at("store_secret"),
                         .status_token = json.at("status_token"),
                         .status_port = json.at("status_port")};
    if (state.run.empty() || state.attempt < 0) refuse_state(file, "is damaged");
    return state;
  } catch (const nlohmann::json::exception&) {
    refuse_state(file, "is damaged");
  }
}

}  // namespace trireme::launch
