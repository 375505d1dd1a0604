// SPDX-License-Identifier: Apache-2.0
// Reads the whole corpus, and each of its files cut short and with flipped bits: what a fuzzer
// found once stays found, with every compiler and sanitizer.
#include "format.h"
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace trireme::fuzz {
namespace {

std::vector<Format> formats() {
#ifdef TRIREME_TENSOR_FORMATS
  return tensor_formats();
#else
  return plain_formats();
#endif
}

class Corpus : public ::testing::TestWithParam<Format> {
 protected:
  // Returns whether the bytes are a file of the format. What is no trireme::Error fails the test.
  static bool read(std::string_view bytes) {
    try {
      GetParam().read(bytes);
      return true;
    } catch (const Error&) {
      return false;
    }
  }
};

TEST_P(Corpus, IsReadOrRefused) {
  const std::filesystem::path folder = std::filesystem::path(std::getenv("TRIREME_SOURCE")) /
                                       "tests/fuzz/corpus" / std::string(GetParam().name);
  constexpr std::size_t kVariants = 50;  // of each kind and file
  int whole = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().string());
    const std::string bytes = test::read_file(entry.path());
    whole += read(bytes) ? 1 : 0;
    const std::size_t stride = bytes.size() / kVariants + 1;
    for (std::size_t place = 0; place < bytes.size(); place += stride) {
      read(std::string_view(bytes).substr(0, place));
      std::string damaged = bytes;
      damaged[place] = static_cast<char>(damaged[place] ^ (1 << (place / stride) % 8));
      read(damaged);
    }
  }
  EXPECT_GT(whole, 0) << "the corpus of " << GetParam().name << " has no file that is whole";
}

INSTANTIATE_TEST_SUITE_P(Formats, Corpus, ::testing::ValuesIn(formats()),
                         [](const auto& format) { return std::string(format.param.name); });

}  // namespace
}  // namespace trireme::fuzz
