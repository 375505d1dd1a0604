// SPDX-License-Identifier: Apache-2.0
// TraceReplay: decides the calls of a trace for other layouts on another mesh. Calls that are alike
// and whose inputs have the same layouts are decided once, so that a network of many equal layers
// costs little more than one of two.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/tensor/dry_run/call_trace.h>
#include <trireme/tensor/dry_run/dry_run.h>
#include <trireme/tensor/layout.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::tensor {

/// The calls of a trace with the layouts that a dry run on the mesh would give them. Must be used
/// on the thread that made it.
class TraceReplay {
 public:
  /// Follows all calls. Throws UsageError as a dry run.
  /// @param trace a complete one; must outlive the replay.
  /// @param leaves the layouts of the leaves, all on one mesh.
  /// @param axis the axis of along_axis(); -1 for none.
  TraceReplay(const CallTrace& trace, const DeviceMesh& mesh, const std::vector<Layout>& leaves,
              int axis = -1);

  /// Returns false if a result has another geometry than in the trace: a dry run might make other
  /// calls from there on. Nothing else is known then.
  bool is_as_traced() const noexcept { return is_as_traced_; }

  /// Returns what calls were decided. Names and origins of tensors are left out.
  const std::vector<DryRunCall>& decided() const noexcept { return decided_; }
  /// Returns for each call of the trace its position in decided().
  const std::vector<std::size_t>& positions() const noexcept { return positions_; }
  /// Returns the calls of decided(), to be decided again along the axis; empty without one.
  const std::vector<std::shared_ptr<const CallAlongAxis>>& along_axis() const noexcept {
    return along_axis_;
  }
  /// Returns the layout of a tensor of the trace after all calls.
  const Layout& layout(int number) const {
    return states_[codes_[static_cast<std::size_t>(number)]].layout;
  }

 private:
  // The number of a state in states_. 0: replicated.
  using Code = std::uint32_t;
  static constexpr Code kPlain = ~Code{0};

  struct State {
    Layout layout;
    bool is_copy_of_view = false;
    bool is_own_copy = false;  // a copy of a view of which no view has been taken

    bool operator==(const State&) const = default;
  };
  // What a call does with its inputs in given states.
  struct Outcome {
    std::vector<Code> before{};  // states of the inputs
    std::vector<Code> after{};
    std::vector<Code> outputs{};
    std::size_t position = 0;  // in decided_
  };

  Code code_of(const State& state);
  Code code_of(const at::Tensor& tensor);
  void follow(const CallTrace& trace, int axis);
  const Outcome* outcome_of(const TracedKind& kind, std::size_t number, DryRun& dry_run);
  bool decide(const TracedKind& kind, Outcome& outcome, DryRun& dry_run);
  at::Tensor tensor_of(const TracedKind::Input& input, Code code) const;

  std::vector<State> states_;
  std::vector<Code> codes_;                     // by tensor
  std::vector<std::vector<Outcome>> outcomes_;  // by kind
  std::vector<Code> before_;                    // states of the inputs of the present call
  std::vector<DryRunCall> decided_;
  std::vector<std::shared_ptr<const CallAlongAxis>> along_axis_;
  std::vector<std::size_t> positions_;
  bool is_as_traced_ = true;
};

}  // namespace trireme::tensor
