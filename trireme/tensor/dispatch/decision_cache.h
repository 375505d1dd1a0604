// SPDX-License-Identifier: Apache-2.0
// Decisions of this thread, by operator, layouts, shapes and arguments. One cache a thread: no lock
// and no sharing, and threads that act as ranks do not meet.
#pragma once

#include <trireme/tensor/dispatch/decision.h>

#include <c10/util/SmallVector.h>

#include <cstdint>

namespace trireme::tensor {

/// The words that tell one call from another.
class DecisionKey {
 public:
  /// Throws UsageError for an argument whose type cannot be part of a key.
  DecisionKey(const OperatorFacts& facts, const InputSlots& inputs,
              c10::ArrayRef<c10::IValue> arguments);

  std::uint64_t hash() const noexcept { return hash_; }
  c10::ArrayRef<std::uint64_t> words() const noexcept { return words_; }

 private:
  void append(const OperatorFacts& facts, const c10::IValue& value);

  c10::SmallVector<std::uint64_t, 64> words_;
  std::uint64_t hash_ = 0;
};

/// The decision for that call; null where there is none yet.
const Decision* find_decision(const DecisionKey& key);

/// Keeps a decision and returns it. The cache is emptied where it has grown beyond 16384 decisions
/// (shapes that never repeat) and no call of this thread is under way.
const Decision& keep_decision(const DecisionKey& key, std::unique_ptr<Decision> decision);

/// Calls of this thread that hold decisions.
class CallInProgress {
 public:
  CallInProgress() noexcept;
  ~CallInProgress();
  CallInProgress(const CallInProgress&) = delete;
  CallInProgress& operator=(const CallInProgress&) = delete;
  CallInProgress(CallInProgress&&) = delete;
  CallInProgress& operator=(CallInProgress&&) = delete;
};

/// Forgets this thread's decisions: rules or policies have changed.
void forget_decisions();

/// How many decisions this thread has made since it began; for tests and benchmarks.
std::int64_t num_decisions_made();

}  // namespace trireme::tensor
