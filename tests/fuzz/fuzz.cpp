// SPDX-License-Identifier: Apache-2.0
// The entry points of libFuzzer (https://llvm.org/docs/LibFuzzer.html) for the format that the
// compiler is given as TRIREME_FORMAT.
#include "format.h"
#include <trireme/base/error.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>

#ifndef TRIREME_FORMAT
#define TRIREME_FORMAT "toml"  // for tools that read this file alone
#endif

namespace {

trireme::fuzz::Format chosen() {
#ifdef TRIREME_TENSOR_FORMATS
  const auto formats = trireme::fuzz::tensor_formats();
#else
  const auto formats = trireme::fuzz::plain_formats();
#endif
  const auto found = std::ranges::find(formats, TRIREME_FORMAT, &trireme::fuzz::Format::name);
  if (found != formats.end()) return *found;
  std::cerr << "no format " << TRIREME_FORMAT << '\n';
  std::exit(1);
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const trireme::fuzz::Format format = chosen();
  try {
    format.read({reinterpret_cast<const char*>(data), size});
    // NOLINTNEXTLINE(bugprone-empty-catch): what is promised for files that are none
  } catch (const trireme::Error&) {
  }
  return 0;
}
