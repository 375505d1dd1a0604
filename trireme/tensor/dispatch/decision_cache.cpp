// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/decision_cache.h>

#include <trireme/base/error.h>
#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/rules/rule_table.h>

#include <bit>
#include <functional>
#include <list>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace trireme::tensor {
namespace {

struct Entry {
  std::vector<std::uint64_t> words;
  std::unique_ptr<Decision> decision;
};

struct Cache {
  // Decisions by hash. Calls with equal hashes share a list, whose entries do not move.
  std::unordered_map<std::uint64_t, std::list<Entry>> entries;
  // The decision found last for each operator. It is compared before anything is hashed.
  std::vector<const Entry*> latest;
  std::int64_t num_entries = 0;
  std::int64_t num_made = 0;
  std::uint64_t version = 0;  // of the rules and the links that decisions were made with
  int calls_in_progress = 0;
};

constexpr std::int64_t kLargest = 16384;

Cache& cache() {
  thread_local Cache of_thread;
  return of_thread;
}

constexpr std::uint64_t kSeed = 0x9E3779B97F4A7C15;

// Passes the words of an argument that is no tensor to `take`.
template <class Take>
void visit_value(const OperatorFacts& facts, const c10::IValue& value, Take& take) {
  if (value.isInt()) {
    take(static_cast<std::uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    take(value.toBool() ? 1 : 2);
  } else if (value.isNone()) {
    take(kSeed);
  } else if (value.isIntList()) {
    const auto list = value.toIntList();
    take(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) take(static_cast<std::uint64_t>(list.get(i)));
  } else if (value.isBoolList()) {
    const auto list = value.toBoolList();
    take(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) take(list.get(i) ? 1 : 2);
  } else if (value.isDouble()) {
    take(std::bit_cast<std::uint64_t>(value.toDouble()));
  } else if (value.isDevice()) {
    take(static_cast<std::uint64_t>(value.toDevice().type()));
  } else if (value.isString()) {
    take(std::hash<std::string_view>()(value.toStringRef()));
  } else {
    throw UsageError(
        join_message("operator ", facts.name, " has an argument of type ", value.tagKind(),
                     ", which is not supported beside distributed "
                     "tensors"),
        "redistribute its tensors to Replicate and call it on local tensors");
  }
}

}  // namespace

template <class Take>
void DecisionKey::visit(Take take) const {
  take(static_cast<std::uint64_t>(facts_.index) | (leaves_out_plan_ ? 1ULL << 32 : 0));
  for (const InputSlot& input : inputs_) {
    const c10::TensorImpl& impl = *input.tensor->unsafeGetTensorImpl();
    const c10::IntArrayRef sizes = impl.sizes();
    const auto dtype = static_cast<std::uint64_t>(input.tensor->scalar_type());
    const std::uint64_t is_number = impl.is_wrapped_number() ? 1 : 0;
    const bool is_planned = input.meta != nullptr && input.meta->as_weight != nullptr;
    take(input.meta == nullptr ? 0 : input.meta->layout.hash());
    take(dtype | sizes.size() << 8 | is_number << 16 | std::uint64_t{is_planned} << 17 |
         static_cast<std::uint64_t>(input.argument) << 24 |
         static_cast<std::uint64_t>(input.element + 1) << 40);
    if (is_planned) take(reinterpret_cast<std::uintptr_t>(input.meta->as_weight));
    for (const std::int64_t size : sizes) take(static_cast<std::uint64_t>(size));
    for (const std::int64_t stride : impl.strides()) take(static_cast<std::uint64_t>(stride));
    if (facts_.returns_view && input.argument == facts_.viewed) {
      take(static_cast<std::uint64_t>(impl.storage_offset()));
    }
  }
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    if (facts_.is_in_key[i]) visit_value(facts_, arguments_[i], take);
  }
}

std::uint64_t DecisionKey::hash() const {
  // Each word is mixed with its position and then added, so no step waits for the one before it.
  std::uint64_t hash = 0;
  std::uint64_t place = kSeed;
  visit([&](std::uint64_t word) {
    const std::uint64_t product = (word ^ place) * kSeed;
    hash += product ^ (product >> 29);
    place += kSeed;
  });
  return hash;
}

std::vector<std::uint64_t> DecisionKey::words() const {
  std::vector<std::uint64_t> words;
  visit([&](std::uint64_t word) { words.push_back(word); });
  return words;
}

bool DecisionKey::has(const std::vector<std::uint64_t>& words) const {
  const std::uint64_t* next = words.data();
  const std::uint64_t* const end = next + words.size();
  bool is_equal = true;
  visit([&](std::uint64_t word) {
    if (next != end && word == *next) {
      ++next;
    } else {
      is_equal = false;
    }
  });
  return is_equal && next == end;
}

const Decision* find_decision(const DecisionKey& key) {
  Cache& own_cache = cache();
  // Only the caller may be in progress: a call further out still uses its decision.
  const std::uint64_t version = rules_version() + axis_links_version();
  if (own_cache.version != version && own_cache.calls_in_progress <= 1) {
    forget_decisions();
    own_cache.version = version;
  }
  const auto index = static_cast<std::size_t>(key.facts().index);
  if (index >= own_cache.latest.size()) own_cache.latest.resize(index + 1, nullptr);
  const Entry*& latest = own_cache.latest[index];
  // Most calls of an operator are like the one before, and comparing is cheaper than hashing.
  if (latest != nullptr && key.has(latest->words)) return latest->decision.get();
  const auto found = own_cache.entries.find(key.hash());
  if (found == own_cache.entries.end()) return nullptr;
  for (const Entry& entry : found->second) {
    if (!key.has(entry.words)) continue;
    latest = &entry;
    return entry.decision.get();
  }
  return nullptr;
}

const Decision& keep_decision(const DecisionKey& key, std::unique_ptr<Decision> decision) {
  Cache& own_cache = cache();
  if (own_cache.num_entries >= kLargest && own_cache.calls_in_progress <= 1) forget_decisions();
  own_cache.num_entries += 1;
  own_cache.num_made += 1;
  auto& bucket = own_cache.entries[key.hash()];
  bucket.push_back({key.words(), std::move(decision)});
  return *bucket.back().decision;
}

CallInProgress::CallInProgress() noexcept { cache().calls_in_progress += 1; }
CallInProgress::~CallInProgress() { cache().calls_in_progress -= 1; }

void forget_decisions() {
  cache().entries.clear();
  cache().latest.clear();
  cache().num_entries = 0;
}

std::int64_t num_decisions_made() { return cache().num_made; }

}  // namespace trireme::tensor
