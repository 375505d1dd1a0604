// SPDX-License-Identifier: Apache-2.0
// Byte pair encoding of one word (Sennrich, Haddow, Birch, "Neural Machine Translation of Rare
// Words with Subword Units", 2016), and the printable characters that stand for bytes in GPT-2's
// files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::data::detail {

/// Returns the character of each byte, in UTF-8 (`bytes_to_unicode` in GPT-2's encoder.py).
///
/// A printable byte of Latin-1 that is not a space is its own character. The other bytes get the
/// characters from U+0100 on, in order.
const std::array<std::string, 256>& byte_characters();

/// Returns the bytes of a token in such a file. If it has a character that stands for no byte,
/// returns the bytes of the token itself.
std::string bytes_of_token(std::string_view token);

/// Returns the token of these bytes as such a file writes it.
std::string token_of_bytes(std::string_view bytes);

/// The pairs of tokens that merge into one token, each with a rank. Const methods may be called
/// concurrently.
class BytePairs {
 public:
  /// Adds a pair that merges into the token `merged`. A pair that is added again replaces the
  /// earlier one.
  void add(std::int32_t left, std::int32_t right, std::int32_t rank, std::int32_t merged);

  /// Merges pairs until none is left. The pair of lowest rank merges first; among equal ranks, the
  /// leftmost. Takes O(n log n) for n tokens.
  void merge(std::vector<std::int32_t>& tokens) const;

 private:
  struct Merge {
    std::int32_t rank;
    std::int32_t merged;
  };

  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  // std::hash of an integer is the identity, which would put all pairs with the same right token
  // into one bucket.
  struct Mix {
    std::size_t operator()(std::uint64_t pair) const {
      pair *= 0x9E3779B97F4A7C15U;
      return pair ^ pair >> 32;
    }
  };
  const Merge* find(std::int32_t left, std::int32_t right) const;

  std::unordered_map<std::uint64_t, Merge, Mix> merges_;
};

}  // namespace trireme::data::detail
