// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/hmac.h>

#include <bit>
#include <cstddef>
#include <string>

namespace trireme::launch {
namespace {

constexpr std::size_t kBlock = 64;
using State = std::array<std::uint32_t, 8>;

constexpr std::array<std::uint32_t, kBlock> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// Updates the state with one block (FIPS 180-4, section 6.2.2).
void add_block(State& state, std::string_view block) {
  std::array<std::uint32_t, kBlock> words{};
  for (std::size_t i = 0; i < kBlock; ++i) {
    words[i / 4] = words[i / 4] << 8 | static_cast<std::uint8_t>(block[i]);
  }
  for (std::size_t i = 16; i < kBlock; ++i) {
    // The message schedule of section 6.2.2, step 1.
    const std::uint32_t early = words[i - 15];
    const std::uint32_t late = words[i - 2];
    words[i] = words[i - 16] + (std::rotr(early, 7) ^ std::rotr(early, 18) ^ early >> 3) +
               words[i - 7] + (std::rotr(late, 17) ^ std::rotr(late, 19) ^ late >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const std::uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                              ((e & f) ^ (~e & g)) + kRounds[i] + words[i];
    const std::uint32_t two =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + one;
    d = c;
    c = b;
    b = a;
    a = one + two;
  }
  const State changed = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += changed[i];
}

}  // namespace

MessageCode sha256(std::string_view message) {
  // The last block ends with a one bit, zeros, and the length in bits.
  std::string padded(message);
  padded += '\x80';
  while (padded.size() % kBlock != kBlock - 8) padded += '\0';
  const std::uint64_t bits = std::uint64_t{message.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bits >> shift & 0xff);

  State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  for (std::size_t at = 0; at < padded.size(); at += kBlock) {
    add_block(state, std::string_view(padded).substr(at, kBlock));
  }
  MessageCode code{};
  for (std::size_t i = 0; i < code.size(); ++i) {
    code[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)) & 0xff);
  }
  return code;
}

MessageCode hmac_sha256(std::string_view key, std::string_view message) {
  // RFC 2104: keys longer than a block are hashed first, and shorter ones are padded with zeros.
  const MessageCode digest = sha256(key);
  std::string block(key.size() > kBlock ? bytes_of(digest) : key);
  block.resize(kBlock, '\0');
  const auto masked = [&](unsigned char mask) {
    std::string text = block;
    for (char& letter : text) letter = static_cast<char>(static_cast<unsigned char>(letter) ^ mask);
    return text;
  };
  const MessageCode inner = sha256(masked(0x36).append(message));
  return sha256(masked(0x5c).append(bytes_of(inner)));
}

bool is_code(const MessageCode& code, std::string_view bytes) {
  if (bytes.size() != code.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < code.size(); ++i) {
    difference |= static_cast<unsigned>(code.at(i) ^ static_cast<std::uint8_t>(bytes[i]));
  }
  return difference == 0;
}

std::string_view bytes_of(const MessageCode& code) {
  return {reinterpret_cast<const char*>(code.data()), code.size()};
}

}  // namespace trireme::launch
