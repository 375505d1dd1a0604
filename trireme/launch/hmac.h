// SPDX-License-Identifier: Apache-2.0
// HMAC-SHA-256 (RFC 2104 over FIPS 180-4): a message authentication code that only holders of a key
// can compute. Meant for short texts. LibTorch provides only SHA-1, and as a text that depends on
// the global locale.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme::launch {

/// A digest or message authentication code of 32 bytes.
using MessageCode = std::array<std::uint8_t, 32>;

/// Returns the SHA-256 digest of a message.
MessageCode sha256(std::string_view message);
/// Returns the HMAC-SHA-256 code of a message under a key.
MessageCode hmac_sha256(std::string_view key, std::string_view message);

/// Returns true if `bytes` are the bytes of `code`. Compares in constant time, so that timing does
/// not reveal how many bytes are right.
bool is_code(const MessageCode& code, std::string_view bytes);

/// Returns a code as bytes.
std::string_view bytes_of(const MessageCode& code);

}  // namespace trireme::launch
