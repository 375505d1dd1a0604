// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/decision_cache.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::tensor {
namespace {

struct Entry {
  std::vector<std::uint64_t> words;
  std::unique_ptr<Decision> decision;
};

struct Cache {
  // By hash; calls with equal hashes are in one bucket of the list.
  std::unordered_map<std::uint64_t, std::vector<Entry>> entries;
  std::int64_t num_entries = 0;
  std::int64_t num_made = 0;
  int calls_in_progress = 0;
};

constexpr std::int64_t kLargest = 16384;

Cache& cache() {
  thread_local Cache of_thread;
  return of_thread;
}

constexpr std::uint64_t kSeed = 0x9E3779B97F4A7C15;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * kSeed;
  return hash ^ (hash >> 29);
}

}  // namespace

DecisionKey::DecisionKey(const OperatorFacts& facts, const InputSlots& inputs,
                         c10::ArrayRef<c10::IValue> arguments) {
  words_.push_back(static_cast<std::uint64_t>(facts.index));
  for (const InputSlot& input : inputs) {
    const c10::TensorImpl& impl = *input.tensor->unsafeGetTensorImpl();
    const c10::IntArrayRef sizes = impl.sizes();
    const c10::IntArrayRef strides = impl.strides();
    const auto dtype = static_cast<std::uint64_t>(input.tensor->scalar_type());
    const std::uint64_t is_number = impl.is_wrapped_number() ? 1 : 0;
    words_.push_back(input.held == nullptr ? 0 : input.held->layout.hash());
    words_.push_back(dtype | sizes.size() << 8 | is_number << 16 |
                     static_cast<std::uint64_t>(input.argument) << 24 |
                     static_cast<std::uint64_t>(input.element + 1) << 40);
    words_.append(sizes.begin(), sizes.end());
    words_.append(strides.begin(), strides.end());
    if (facts.returns_view && input.argument == facts.viewed) {
      words_.push_back(static_cast<std::uint64_t>(impl.storage_offset()));
    }
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (facts.is_in_key[i]) append(facts, arguments[i]);
  }
  hash_ = kSeed;
  for (const std::uint64_t word : words_) hash_ = mixed(hash_, word);
}

void DecisionKey::append(const OperatorFacts& facts, const c10::IValue& value) {
  if (value.isInt()) {
    words_.push_back(static_cast<std::uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    words_.push_back(value.toBool() ? 1 : 2);
  } else if (value.isNone()) {
    words_.push_back(kSeed);
  } else if (value.isIntList()) {
    const auto list = value.toIntList();
    words_.push_back(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      words_.push_back(static_cast<std::uint64_t>(list.get(i)));
    }
  } else if (value.isBoolList()) {
    const auto list = value.toBoolList();
    words_.push_back(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) words_.push_back(list.get(i) ? 1 : 2);
  } else if (value.isDouble()) {
    words_.push_back(std::bit_cast<std::uint64_t>(value.toDouble()));
  } else if (value.isDevice()) {
    words_.push_back(static_cast<std::uint64_t>(value.toDevice().type()));
  } else if (value.isString()) {
    words_.push_back(std::hash<std::string_view>()(value.toStringRef()));
  } else {
    throw UsageError(
        join_message("operator ", facts.name, " has an argument of type ", value.tagKind(),
                     ", which is not supported beside distributed "
                     "tensors"),
        "redistribute its tensors to Replicate and call it on local tensors");
  }
}

const Decision* find_decision(const DecisionKey& key) {
  const auto& entries = cache().entries;
  const auto found = entries.find(key.hash());
  if (found == entries.end()) return nullptr;
  for (const Entry& entry : found->second) {
    if (std::ranges::equal(entry.words, key.words())) return entry.decision.get();
  }
  return nullptr;
}

const Decision& keep_decision(const DecisionKey& key, std::unique_ptr<Decision> decision) {
  Cache& its = cache();
  if (its.num_entries >= kLargest && its.calls_in_progress <= 1) forget_decisions();
  its.num_entries += 1;
  its.num_made += 1;
  auto& bucket = its.entries[key.hash()];
  bucket.push_back({{key.words().begin(), key.words().end()}, std::move(decision)});
  return *bucket.back().decision;
}

CallInProgress::CallInProgress() noexcept { cache().calls_in_progress += 1; }
CallInProgress::~CallInProgress() { cache().calls_in_progress -= 1; }

void forget_decisions() {
  cache().entries.clear();
  cache().num_entries = 0;
}

std::int64_t num_decisions_made() { return cache().num_made; }

}  // namespace trireme::tensor
