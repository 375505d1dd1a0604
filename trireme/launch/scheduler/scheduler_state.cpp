// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/scheduler_state.h>

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>
#include <trireme/launch/status/status_address.h>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace trireme::launch {
namespace {

constexpr int kStateFormat = 1;
constexpr off_t kLongestState = off_t{16} << 20;

[[noreturn]] void refuse_state(const std::filesystem::path& file, const std::string& what) {
  throw ConfigError(join_message("the state of a scheduler in ", file.string(), " ", what),
                    "remove the file to begin another run; the run that it belonged to cannot be "
                    "taken up then");
}

}  // namespace

void write_scheduler_state(const std::filesystem::path& file, const SchedulerState& state) {
  auto hosts = nlohmann::ordered_json::array();
  for (const HostState& host : state.hosts) {
    hosts.push_back({{"machine", host.machine},
                     {"name", host.name},
                     {"failures", host.failures},
                     {"excluded", host.is_excluded},
                     {"reason", host.reason}});
  }
  const nlohmann::ordered_json json{{"format", kStateFormat},
                                    {"run", state.run},
                                    {"attempt", state.attempt},
                                    {"secret", state.secret},
                                    {"encrypted", state.is_encrypted},
                                    {"store_secret", state.store_secret},
                                    {"status_token", state.status_token},
                                    {"status_port", state.status_port},
                                    {"hosts", hosts}};
  write_private_file(file, json.dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/false,
                                     nlohmann::ordered_json::error_handler_t::replace) +
                               "\n");
}

std::optional<SchedulerState> read_scheduler_state(const std::filesystem::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!fd && errno == ENOENT) return std::nullopt;
  struct stat found{};
  if (!fd && errno == ELOOP) refuse_state(file, "is a link, which a scheduler does not make");
  if (!fd || ::fstat(fd.get(), &found) != 0)
    refuse_state(file, "cannot be read: " + describe_errno(errno));
  if (!S_ISREG(found.st_mode)) refuse_state(file, "is no regular file");
  if (found.st_uid != ::geteuid()) {
    refuse_state(file, join_message("belongs to the user with the number ", found.st_uid,
                                    ", and this scheduler runs as ", ::geteuid()));
  }
  if ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw ConfigError(join_message("the state of a scheduler in ", file.string(),
                                   " has secrets, and other users may read it"),
                      "make a new TRIREME_SECRET for the next run, and remove the file; or chmod "
                      "600 it if nobody "
                      "has read it");
  }
  std::string text(static_cast<std::size_t>(std::min<off_t>(found.st_size, kLongestState)), ' ');
  const ssize_t count = ::read(fd.get(), text.data(), text.size());
  if (count < 0) refuse_state(file, "cannot be read: " + describe_errno(errno));
  text.resize(static_cast<std::size_t>(count));
  const auto json = nlohmann::json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  try {
    if (json.at("format") != kStateFormat) refuse_state(file, "has another format");
    SchedulerState state{.run = json.at("run"),
                         .attempt = json.at("attempt"),
                         .secret = json.at("secret"),
                         .is_encrypted = json.at("encrypted"),
                         .store_secret = json.at("store_secret"),
                         .status_token = json.at("status_token"),
                         .status_port = json.at("status_port")};
    for (const auto& host : json.at("hosts")) {
      state.hosts.push_back({.machine = host.at("machine"),
                             .name = host.at("name"),
                             .failures = host.at("failures"),
                             .is_excluded = host.at("excluded"),
                             .reason = host.at("reason")});
    }
    if (state.run.empty() || state.attempt < 0) refuse_state(file, "is damaged");
    return state;
  } catch (const nlohmann::json::exception&) {
    refuse_state(file, "is damaged");
  }
}

}  // namespace trireme::launch
