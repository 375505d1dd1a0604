// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/parts/labels.h>

#include <algorithm>
#include <bit>
#include <ranges>
#include <tuple>
#include <utility>

namespace trireme::graph::detail {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// Makes `label` no worse than both labels.
void merge(Label& label, const Label& other) {
  label.kept = std::min(label.kept, other.kept);
  label.peak = std::min(label.peak, other.peak);
  label.cost = std::min(label.cost, other.cost);
  label.through = std::min(label.through, other.through);
  label.rebuilt = std::min(label.rebuilt, other.rebuilt);
  label.counted.unite(other.counted);
  label.inside.unite(other.inside);
  // A tensor within the range costs nothing more only if it counts as rebuilt already.
  label.rebuilt_slots = label.inside;
}

}  // namespace

Slots::Slots(const Line& line)
    : uses_(line.units.size()), made_(line.units.size()), ending_(line.units.size()) {
  std::vector<std::vector<std::size_t>> made_at(line.units.size());
  for (std::size_t i = 0; i < line.tensors.size(); ++i) {
    made_at[at(line.tensors[i].made_by)].push_back(i);
  }
  std::vector<int> free;
  for (std::size_t unit = 0; unit < line.units.size(); ++unit) {
    for (const std::size_t index : made_at[unit]) {
      const SharedTensor& tensor = line.tensors[index];
      int slot = static_cast<int>(bytes_.size());
      if (free.empty()) {
        bytes_.push_back(0);
      } else {
        slot = free.back();
        free.pop_back();
      }
      made_[unit].push_back({.slot = slot, .bytes = tensor.bytes});
      const auto keeps = [&](int reader) {
        return std::ranges::binary_search(tensor.keepers, reader);
      };
      uses_[unit].push_back({.slot = slot, .is_made = true, .keeps = keeps(tensor.made_by)});
      for (const int reader : tensor.readers) {
        uses_[at(reader)].push_back({.slot = slot, .is_made = false, .keeps = keeps(reader)});
      }
      ending_[tensor.readers.empty() ? unit : at(tensor.readers.back())].push_back(slot);
    }
    free.insert(free.end(), ending_[unit].begin(), ending_[unit].end());
  }
}

Label Slots::first_label() const {
  const NumberSet none(bytes_.size());
  return {.counted = none, .inside = none, .rebuilt_slots = none};
}

void Slots::come_to(int unit) {
  for (const Making& making : made_[at(unit)]) bytes_[at(making.slot)] = making.bytes;
}

void Slots::leave(int unit, std::vector<Label>& labels) const {
  for (Label& label : labels) {
    for (const int slot : ending_[at(unit)]) {
      label.counted.remove(slot);
      label.inside.remove(slot);
      label.rebuilt_slots.remove(slot);
    }
  }
}

std::int64_t Slots::bytes(std::size_t word, std::uint64_t slots) const {
  std::int64_t sum = 0;
  for (; slots != 0; slots &= slots - 1) {
    sum += bytes_[word * 64 + static_cast<std::size_t>(std::countr_zero(slots))];
  }
  return sum;
}

// Compares two labels under the assumption that both treat the remaining units in the same way.
// Then `label` may still have to pay for `missing` more kept bytes and `unbuilt` more rebuilt
// bytes.
bool Labels::is_no_worse(const Label& label, const Label& than) const {
  if (label.cost > than.cost || label.through > than.through || label.kept > than.kept ||
      label.kept + label.rebuilt > than.kept + than.rebuilt) {
    return false;
  }
  std::int64_t missing = 0;
  std::int64_t unbuilt = 0;
  for (std::size_t i = 0; i < label.counted.words().size(); ++i) {
    const std::uint64_t counted = label.counted.words()[i];
    const std::uint64_t inside = label.inside.words()[i];
    const std::uint64_t pending = inside & ~label.rebuilt_slots.words()[i];
    const std::uint64_t their_inside = than.inside.words()[i];
    const std::uint64_t their_pending = their_inside & ~than.rebuilt_slots.words()[i];
    missing += slots_.bytes(i, ~counted & (than.counted.words()[i] | (their_inside & ~inside)));
    unbuilt += slots_.bytes(i, pending & ~their_pending);
  }
  return label.kept + missing <= than.kept &&
         label.kept + missing + label.rebuilt + unbuilt <= than.kept + than.rebuilt;
}

std::vector<Label> Labels::best(std::vector<Label> labels) {
  std::vector<Label> kept;
  for (Label& label : labels) {
    const bool is_left_behind =
        std::ranges::any_of(kept, [&](const Label& other) { return is_no_worse(other, label); });
    if (!is_left_behind) kept.push_back(std::move(label));
  }
  make_room(kept);
  return kept;
}

std::vector<Label> Labels::best_closed(std::vector<Label> labels) {
  std::ranges::stable_sort(labels, [](const Label& a, const Label& b) {
    return std::tie(a.cost, a.kept, a.peak) < std::tie(b.cost, b.kept, b.peak);
  });
  return best(std::move(labels));
}

std::vector<Label> Labels::best_open(std::vector<Label> labels) {
  std::ranges::stable_sort(labels, [](const Label& a, const Label& b) {
    return std::tie(a.cost, a.through, a.kept, a.rebuilt) <
           std::tie(b.cost, b.through, b.kept, b.rebuilt);
  });
  return best(std::move(labels));
}

// Groups neighbours by the bytes that they keep. The first and the last group contain the labels
// that keep least and cost least, which stay.
void Labels::make_room(std::vector<Label>& labels) {
  if (labels.size() <= room_) return;
  has_left_out_ = true;
  std::ranges::stable_sort(labels, {}, &Label::kept);
  std::vector<Label> stay;
  for (std::size_t group = 0; group < room_; ++group) {
    const std::size_t begin = group * labels.size() / room_;
    const std::size_t end = (group + 1) * labels.size() / room_;
    const auto members = std::ranges::subrange(labels.begin() + static_cast<std::ptrdiff_t>(begin),
                                               labels.begin() + static_cast<std::ptrdiff_t>(end));
    Label chosen =
        group == 0 ? members.front() : *std::ranges::min_element(members, {}, &Label::cost);
    if (leaving_ == Leaving::kMerged) {
      for (const Label& other : members) merge(chosen, other);
    }
    stay.push_back(std::move(chosen));
  }
  labels = std::move(stay);
}

}  // namespace trireme::graph::detail
