// SPDX-License-Identifier: Apache-2.0
// Plain tensors among the arguments of operators on distributed ones. Every rank of the mesh is to
// have the same values there, which nothing else would notice: ranks along `tensor` that read
// different rows compute with halves of two batches.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/tensor/dispatch/call_steps.h>
#include <trireme/tensor/dispatch/operator_facts.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::tensor {

/// Records what meets tensors that are distributed over a mesh, while it lives. Thread-safe.
class PlainInputs {
 public:
  explicit PlainInputs(const DeviceMesh& mesh);
  PlainInputs(const PlainInputs&) = delete;
  PlainInputs& operator=(const PlainInputs&) = delete;
  ~PlainInputs();

  /// Throws UsageError where ranks of the mesh have given the same calls different values since the
  /// last time. Ranks that made other calls, for a log say, are not compared. Collective over the
  /// mesh, blocking.
  void check();

 private:
  friend void note_plain_inputs(const OperatorFacts& facts, const Scan& scan);
  struct Seen {
    std::string call;  // operator, sizes and type
    std::int64_t digest = 0;
  };
  DeviceMesh mesh_;
  std::vector<Seen> seen_;
};

/// Records plain inputs for those that want to know. With TRIREME_CHECK=values compares them at
/// once, over the ranks of the mesh, and throws UsageError where they differ.
void note_plain_inputs(const OperatorFacts& facts, const Scan& scan);

/// Returns true where note_plain_inputs has anything to do.
bool notes_plain_inputs();

}  // namespace trireme::tensor
