// SPDX-License-Identifier: Apache-2.0
// The position of each action in the list of its rank. Internal to the verifier.
#pragma once

#include <trireme/schedule/verifier/verify.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace trireme::schedule {

/// A table of the positions of all actions, each of which must be valid by itself.
class Positions {
 public:
  /// Builds the table.
  explicit Positions(const Schedule& schedule);

  /// Returns actions that occur a second time. Gather and free may occur repeatedly.
  std::vector<Finding> find_repeated() const { return repeated_; }

  /// Returns actions that are missing, and the second one of two actions that exclude each other.
  std::vector<Finding> find_missing(bool has_messages) const;

  /// Returns actions that come before another one of the same rank on which they depend.
  std::vector<Finding> find_misplaced(bool has_messages) const;

 private:
  using Position = std::int64_t;
  static constexpr Position kAbsent = -1;

  // The four ends of messages of one micro-batch over one edge.
  enum MessageEnd : std::uint8_t {
    kActivationsSent,
    kActivationsReceived,
    kGradientsSent,
    kGradientsReceived,
    kNumMessageEnds
  };

  std::size_t pair(int stage, int micro_batch) const;
  Position of(ActionKind kind, int stage, int micro_batch) const;
  Position backward_of(int stage, int micro_batch) const;
  Position weight_gradient_of(int stage, int micro_batch) const;
  Position& slot_of(const Action& action);
  Position message(std::size_t edge, int micro_batch, MessageEnd end) const;

  void find_missing_computation(std::vector<Finding>& findings) const;
  void find_missing_messages(std::vector<Finding>& findings) const;
  void find_missing_reductions(std::vector<Finding>& findings) const;
  void find_missing_steps(std::vector<Finding>& findings) const;

  // Check one micro-batch in one stage, one micro-batch over one edge, the reductions and the step
  // of one stage, and the gathered parameters of one rank.
  void check_pair(int stage, int micro_batch, std::vector<Finding>& findings) const;
  void check_edge(std::size_t edge, int micro_batch, bool has_messages,
                  std::vector<Finding>& findings) const;
  void check_end_of_stage(int stage, std::vector<Finding>& findings) const;
  void check_parameters(int rank, std::vector<Finding>& findings) const;

  // Adds a finding if `action` comes before `needed`, both of stages on `rank`.
  void expect_after(int rank, Position action, Position needed,
                    std::vector<Finding>& findings) const;

  const Schedule& schedule_;
  std::array<std::vector<Position>, kNumActionKinds> by_pair_;   // kinds with a micro-batch
  std::array<std::vector<Position>, kNumActionKinds> by_stage_;  // step, and reduce of all
  std::array<std::vector<Position>, kNumMessageEnds> by_edge_;
  std::map<std::pair<int, int>, std::size_t> edges_;
  std::vector<bool> has_gathers_;  // for each stage
  std::vector<Finding> repeated_;
};

}  // namespace trireme::schedule
