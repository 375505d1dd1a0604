// SPDX-License-Identifier: Apache-2.0
// HMAC-SHA-256 (RFC 2104 over FIPS 180-4): a code that only those who know a key can compute. For
// short texts; LibTorch brings SHA-1 only, and that as a text in the global locale.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme::launch {

using MessageCode = std::array<std::uint8_t, 32>;

MessageCode sha256(std::string_view message);
MessageCode hmac_sha256(std::string_view key, std::string_view message);

}  // namespace trireme::launch
