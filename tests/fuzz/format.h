// SPDX-License-Identifier: Apache-2.0
// Every file format that Trireme reads, as a function of bytes: what fuzzers call, and what the
// test that replays the corpus calls.
#pragma once

#include <string_view>
#include <vector>

namespace trireme::fuzz {

struct Format {
  /// Also the name of its folder in tests/fuzz/corpus.
  std::string_view name;
  /// Reads the bytes as a file of this format. Returns where they are one, throws trireme::Error
  /// where they are not; anything else is a defect.
  void (*read)(std::string_view bytes);
};

/// Those whose readers need no LibTorch.
std::vector<Format> plain_formats();

/// Those whose readers make tensors.
std::vector<Format> tensor_formats();

}  // namespace trireme::fuzz
