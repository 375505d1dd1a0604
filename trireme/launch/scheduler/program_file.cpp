// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/program_file.h>

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>

namespace trireme::launch {
namespace {

std::string hexadecimal(std::uint64_t number) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4)
    text += kDigits[number >> static_cast<unsigned>(shift) & 0xfU];
  return text;
}

}  // namespace

Program describe_program(const std::string& path) {
  constexpr std::uint64_t kBasis = 0xcbf29ce484222325;
  constexpr std::uint64_t kPrime = 0x100000001b3;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<unsigned char, 1 << 16> buffer{};
  std::uint64_t hash = kBasis;
  std::int64_t bytes = 0;
  while (file) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    if (count == 0) return {.path = path, .bytes = bytes, .checksum = hexadecimal(hash)};
    bytes += count;
    for (ssize_t i = 0; i < count; ++i)
      hash = (hash ^ buffer.at(static_cast<std::size_t>(i))) * kPrime;
  }
  throw ConfigError(join_message("cannot read the program ", path, ": ", describe_errno(errno)),
                    "workers compare their programs with each other: make it readable");
}

Program describe_own_program() {
  std::error_code unknown;
  Program program = describe_program("/proc/self/exe");
  const auto path = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (!unknown) program.path = path.string();
  return program;
}

}  // namespace trireme::launch
