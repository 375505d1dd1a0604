// SPDX-License-Identifier: Apache-2.0
// Compares the plain tensors among the arguments of operators on distributed tensors. Every rank of
// the mesh must pass the same values, and nothing else checks this. Ranks along `tensor` that read
// different rows would compute with halves of two batches.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/tensor/dispatch/call_steps.h>
#include <trireme/tensor/dispatch/operator_facts.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::tensor {

/// Records, during its lifetime, the plain tensors that operators receive together with tensors on
/// a mesh. Thread-safe.
class PlainInputs {
 public:
  /// Starts recording for a mesh.
  explicit PlainInputs(const DeviceMesh& mesh);
  PlainInputs(const PlainInputs&) = delete;
  PlainInputs& operator=(const PlainInputs&) = delete;
  ~PlainInputs();

  /// Throws UsageError if ranks of the mesh have passed different values to the same calls since
  /// the last check. Ranks that made other calls, for example for a log, are not compared.
  /// Collective over the mesh and blocking.
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

/// Records the plain inputs of a call in every PlainInputs of its mesh. With TRIREME_CHECK=values
/// compares them at once over the ranks of the mesh, and throws UsageError if they differ.
void note_plain_inputs(const OperatorFacts& facts, const Scan& scan);

/// Returns true if note_plain_inputs() has anything to do.
bool notes_plain_inputs();

}  // namespace trireme::tensor
