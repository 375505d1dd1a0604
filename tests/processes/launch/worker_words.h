// SPDX-License-Identifier: Apache-2.0
// The words of `trireme worker` with a script as its ranks.
#pragma once

#include <string>
#include <vector>

namespace trireme::test {

/// `worker -n <ranks> <more> -- sh -c <script>`, whose scheduler is at this port of the host.
inline std::vector<std::string> worker_of(const std::string& port, const std::string& ranks,
                                          const std::string& script,
                                          const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"worker",    "-n",  ranks,      "--scheduler", "127.0.0.1:" + port,
                                 "--timeout", "100", "--output", "all"};
  words.insert(words.end(), more.begin(), more.end());
  for (const char* word : {"--", "sh", "-c"}) words.emplace_back(word);
  words.push_back(script);
  return words;
}

}  // namespace trireme::test
