// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/torch_version.h>

#include <trireme/base/error.h>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/version.h>

namespace trireme::comm {
namespace {

// LibTorch packs its version into 64 bits: a byte each for major, minor and patch, from the top.
constexpr std::uint64_t kMinorMask = 0xffffULL << 48;

std::string to_text(std::uint64_t packed) {
  return join_message(packed >> 56, ".", packed >> 48 & 0xff, ".", packed >> 40 & 0xff);
}

}  // namespace

std::string built_torch_version() { return to_text(TORCH_ABI_VERSION); }
std::string loaded_torch_version() { return to_text(aoti_torch_abi_version()); }

void check_torch_version() {
  if ((aoti_torch_abi_version() & kMinorMask) == (TORCH_ABI_VERSION & kMinorMask)) return;
  throw ConfigError(join_message("this program was built with LibTorch ", built_torch_version(),
                                 ", but LibTorch ", loaded_torch_version(), " is loaded"),
                    "build it again with that LibTorch, or take the other out of LD_LIBRARY_PATH");
}

}  // namespace trireme::comm
