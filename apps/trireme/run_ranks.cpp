// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/run_ranks.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/launch/launcher_environment.h>
#include <trireme/launch/run/run.h>

#include <apps/trireme/torch_parts.h>

#include <filesystem>

namespace trireme::apps {

int run_ranks(const std::vector<std::string>& words, int ranks) {
  launch::RunOptions options;
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  options.command.insert(options.command.end(), words.begin(), words.end());
  options.processes = ranks;
  options.open_store = store_opener();
  return launch::run(options);
}

bool is_alone() { return launch::read_identity(Environment::of_process()).launcher == "alone"; }

void check_ranks(int ranks) {
  const launch::Identity identity = launch::read_identity(Environment::of_process());
  if (ranks == identity.world_size) return;
  throw ConfigError(join_message("--ranks is ", ranks, ", but ", identity.launcher, " has started ",
                                 identity.world_size, " ranks"),
                    "leave --ranks out under a launcher");
}

}  // namespace trireme::apps
