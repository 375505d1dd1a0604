// SPDX-License-Identifier: Apache-2.0
// The cache of decisions by operator, layouts, shapes and arguments. Each thread has a cache of its
// own: it needs no lock, and threads that act as ranks share nothing.
#pragma once

#include <trireme/tensor/dispatch/decision.h>

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::tensor {

/// The words that identify a call. They are read from the arguments each time, because storing the
/// words of long lists would take longer than comparing them. Holds references to what it is made
/// of.
class DecisionKey {
 public:
  DecisionKey(const OperatorFacts& facts, const InputSlots& inputs,
              c10::ArrayRef<c10::IValue> arguments)
      : facts_(facts), inputs_(inputs), arguments_(arguments) {}

  /// Makes this the key of the same call without the layouts of a plan.
  void leave_out_plan() noexcept { leaves_out_plan_ = true; }

  // hash(), words() and has() throw UsageError for an argument whose type cannot be part of a key.

  std::uint64_t hash() const;
  /// Returns a copy of the words, to be kept with a decision.
  std::vector<std::uint64_t> words() const;
  /// Returns true if `words` are the words of this key.
  bool has(const std::vector<std::uint64_t>& words) const;

  const OperatorFacts& facts() const noexcept { return facts_; }

 private:
  template <class Take>
  void visit(Take take) const;

  const OperatorFacts& facts_;
  const InputSlots& inputs_;
  c10::ArrayRef<c10::IValue> arguments_;
  bool leaves_out_plan_ = false;
};

/// Returns the decision for a call; null if none was made since rules last changed, or links of a
/// mesh that was in use (axis_links.h).
const Decision* find_decision(const DecisionKey& key);

/// Stores a decision and returns it. The cache is emptied first if it holds 16384 decisions (shapes
/// that never repeat) and no other call of this thread is in progress.
const Decision& keep_decision(const DecisionKey& key, std::unique_ptr<Decision> decision);

/// Marks a call of this thread as in progress while it lives. The decisions that it uses are not
/// deleted in the meantime.
class CallInProgress {
 public:
  CallInProgress() noexcept;
  ~CallInProgress();
  CallInProgress(const CallInProgress&) = delete;
  CallInProgress& operator=(const CallInProgress&) = delete;
};

/// Deletes all decisions of this thread. Call it when a policy changes; a change of rules or links
/// does it automatically.
void forget_decisions();

/// Returns the number of decisions that this thread has made; for tests and benchmarks.
std::int64_t num_decisions_made();

}  // namespace trireme::tensor
