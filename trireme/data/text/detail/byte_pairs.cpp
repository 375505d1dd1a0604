// SPDX-License-Identifier: Apache-2.0
// A word is a linked list of tokens, and a heap holds the pairs that can be merged. A merge creates
// pairs with its neighbours and leaves stale pairs in the heap. A stale pair is recognized when it
// is popped: its tokens are not those of the list any more.
#include <trireme/data/text/detail/byte_pairs.h>

#include <trireme/data/text/detail/utf8.h>

#include <queue>
#include <tuple>

namespace trireme::data::detail {
namespace {

bool is_printed(char32_t character) {
  return (character > 0x20 && character < 0x7F) ||
         (character > 0xA0 && character <= 0xFF && character != 0xAD);
}

const std::unordered_map<char32_t, char>& bytes_by_character() {
  static const std::unordered_map<char32_t, char> bytes = [] {
    std::unordered_map<char32_t, char> map;
    for (std::size_t byte = 0; byte < 256; ++byte)
      map[first_character(byte_characters()[byte]).value] = static_cast<char>(byte);
    return map;
  }();
  return bytes;
}

constexpr std::int32_t kNone = -1;

struct Node {
  std::int32_t token;
  std::int32_t before;
  std::int32_t after;
};

struct Candidate {
  std::int32_t rank;
  std::int32_t place;  // The position of the left node.
  std::int32_t left;   // The tokens when the pair was found.
  std::int32_t right;
  std::int32_t merged;

  // std::priority_queue has the largest element on top, so the comparison is reversed.
  bool operator<(const Candidate& other) const {
    return std::tie(other.rank, other.place) < std::tie(rank, place);
  }
};

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const std::array<std::string, 256> characters = [] {
    std::array<std::string, 256> all;
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte)
      all[byte] = utf8_of(is_printed(byte) ? byte : next++);
    return all;
  }();
  return characters;
}

std::string bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::string_view rest = token; !rest.empty();) {
    const CodePoint point = first_character(rest);
    const auto found = bytes_by_character().find(point.value);
    if (point.bytes == 0 || found == bytes_by_character().end()) return std::string(token);
    bytes.push_back(found->second);
    rest.remove_prefix(point.bytes);
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) token += byte_characters()[static_cast<unsigned char>(byte)];
  return token;
}

void BytePairs::add(std::int32_t left, std::int32_t right, std::int32_t rank, std::int32_t merged) {
  merges_.insert_or_assign(key(left, right), Merge{rank, merged});
}

const BytePairs::Merge* BytePairs::find(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairs::merge(std::vector<std::int32_t>& tokens) const {
  const auto count = static_cast<std::int32_t>(tokens.size());
  if (count < 2) return;
  std::vector<Node> nodes;
  nodes.reserve(tokens.size());
  for (std::int32_t place = 0; place < count; ++place) {
    nodes.push_back({tokens[static_cast<std::size_t>(place)], place - 1,
                     place + 1 == count ? kNone : place + 1});
  }
  const auto node = [&](std::int32_t place) -> Node& {
    return nodes[static_cast<std::size_t>(place)];
  };

  std::priority_queue<Candidate> candidates;
  const auto consider = [&](std::int32_t place) {
    if (place == kNone || node(place).after == kNone) return;
    const std::int32_t left = node(place).token;
    const std::int32_t right = node(node(place).after).token;
    if (const Merge* const merge = find(left, right))
      candidates.push({merge->rank, place, left, right, merge->merged});
  };
  for (std::int32_t place = 0; place + 1 < count; ++place) consider(place);

  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Node& left = node(best.place);
    if (left.token != best.left || left.after == kNone || node(left.after).token != best.right)
      continue;
    Node& right = node(left.after);
    left.token = best.merged;
    right.token = kNone;
    left.after = right.after;
    if (left.after != kNone) node(left.after).before = best.place;
    consider(left.before);
    consider(best.place);
  }

  tokens.clear();
  for (std::int32_t place = 0; place != kNone; place = node(place).after)
    tokens.push_back(node(place).token);
}

}  // namespace trireme::data::detail
