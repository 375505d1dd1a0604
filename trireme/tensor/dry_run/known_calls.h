// SPDX-License-Identifier: Apache-2.0
// What a dry run finds out about a call, kept for later calls that are alike. The layers of a
// network mostly differ in their parameters only.
#pragma once

#include <trireme/tensor/dispatch/call_steps.h>
#include <trireme/tensor/dispatch/decision.h>
#include <trireme/tensor/dry_run/results.h>

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace trireme::tensor {

/// What is equal for calls that are alike.
struct CallOutcome {
  Prediction prediction;
  /// Collectives that redistribute each input, and back if it is written; empty without a decision.
  std::vector<std::vector<Exchange>> exchanges;
  std::vector<std::vector<Exchange>> back;
  std::vector<Exchange> inside;  ///< collectives of the rule's kernel
  bool gathers_view = false;     ///< the result is a copy although the operator is a view
  double flops = 0;              ///< FLOPs of the whole call
  std::int64_t ranks_at_work = 1;
  double imbalance = 1;
  std::shared_ptr<const CallAlongAxis> along_axis;  ///< null if calls are not kept
};

/// The words that tell calls apart: the operator, the geometry, dtype and layout of each tensor,
/// the layouts of a plan, the values of all other arguments, and the version of rules and links.
using CallWords = std::vector<std::uint64_t>;

/// Returns the words of a call; std::nullopt if an argument is of a type that is not compared.
/// @param plan the layouts of a plan that apply to the call; may be null.
std::optional<CallWords> words_of(const c10::OperatorHandle& op, const Scan& scan,
                                  c10::ArrayRef<c10::IValue> arguments, const PlannedLayouts* plan);

/// Hashes words, for unordered containers.
struct HashOfWords {
  std::size_t operator()(const CallWords& words) const noexcept;
};

/// Outcomes of calls by their words. Not thread-safe.
class KnownCalls {
 public:
  /// Returns the outcome of an earlier call of the same words; null if there was none.
  std::shared_ptr<const CallOutcome> find(const CallWords& words) const;
  void keep(CallWords words, std::shared_ptr<const CallOutcome> outcome);

 private:
  std::unordered_map<CallWords, std::shared_ptr<const CallOutcome>, HashOfWords> calls_;
};

}  // namespace trireme::tensor
