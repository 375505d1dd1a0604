// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/show/names.h>

#include <c10/util/ArrayRef.h>

#include <algorithm>

namespace trireme::graph::detail {
namespace {

bool begins_letter(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }

}  // namespace

std::string shape_of(const Value& value) {
  return plain_text(value.dtype, " ", c10::IntArrayRef(value.sizes));
}

std::string short_name(const Graph& graph, ValueId id) {
  if (id == kNoValue) return "nothing";
  const Value& value = graph.value(id);
  return value.kind == ValueKind::kResult && value.node >= 0 ? plain_text("%", id) : value.name;
}

std::size_t letters_in(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_letter));
}

std::string shortened(std::string_view text, std::size_t letters) {
  if (letters_in(text) <= letters) return std::string(text);
  std::size_t begin = text.size();
  for (std::size_t kept = 0; kept + 1 < letters; ++kept) {
    --begin;
    while (!begins_letter(text[begin])) --begin;
  }
  return "…" + std::string(text.substr(begin));
}

}  // namespace trireme::graph::detail
