// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/secret.h>

#include <trireme/base/error.h>

#include <random>

namespace trireme::launch {

std::string make_secret() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  constexpr int kLength = 32;
  std::random_device random;
  std::string secret;
  for (int i = 0; i < kLength; ++i) secret += kDigits[random() % kDigits.size()];
  return secret;
}

void check_secret(std::string_view secret) {
  constexpr std::size_t kShortest = 16;
  if (secret.empty() || secret.size() >= kShortest) return;
  throw ConfigError(join_message("environment variable ", kSecretVariable, " has ", secret.size(),
                                 " characters, expected ", kShortest, " or more"),
                    "take random ones, for instance from: openssl rand -hex 16");
}

}  // namespace trireme::launch
