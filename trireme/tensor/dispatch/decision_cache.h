// SPDX-License-Identifier: Apache-2.0
// Decisions of this thread, by operator, layouts, shapes and arguments. One cache a thread: no lock
// and no sharing, and threads that act as ranks do not meet.
#pragma once

#include <trireme/tensor/dispatch/decision.h>

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::tensor {

/// The words that tell one call from another, read from its arguments whenever they are asked for:
/// writing the words of long lists down would take longer than comparing them. Refers to what it is
/// made of.
class DecisionKey {
 public:
  DecisionKey(const OperatorFacts& facts, const InputSlots& inputs,
              c10::ArrayRef<c10::IValue> arguments)
      : facts_(facts), inputs_(inputs), arguments_(arguments) {}

  // These throw UsageError for an argument whose type cannot be part of a key.
  std::uint64_t hash() const;
  std::vector<std::uint64_t> words() const;
  /// Whether those are its words.
  bool has(const std::vector<std::uint64_t>& words) const;

  const OperatorFacts& facts() const noexcept { return facts_; }

 private:
  template <class Take>
  void visit(Take take) const;

  const OperatorFacts& facts_;
  const InputSlots& inputs_;
  c10::ArrayRef<c10::IValue> arguments_;
};

/// The decision for that call; null where there is none since rules last changed.
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

/// Forgets this thread's decisions: policies have changed. With rules it happens by itself.
void forget_decisions();

/// How many decisions this thread has made since it began; for tests and benchmarks.
std::int64_t num_decisions_made();

}  // namespace trireme::tensor
