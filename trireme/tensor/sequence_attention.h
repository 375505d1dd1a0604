// SPDX-License-Identifier: Apache-2.0
// How attention runs where an axis of the mesh shards the sequence of queries, keys and values
// (docs/design/context-parallel.md).
#pragma once

#include <trireme/mesh/device_mesh.h>

#include <cstdint>

namespace trireme {

/// The axis along which embeddings and linear layers begin to shard dim 1 of their input, the
/// sequence of [batch, sequence, …], if nothing shards it yet. Layouts of results never change
/// their values.
inline constexpr const char* kContextAxis = "context";

/// How ranks that hold parts of one sequence compute attention together.
enum class SequenceAttention : std::uint8_t {
  kCheapest,  ///< the one of the others that takes the least estimated time
  kRing,      ///< keys and values travel from rank to rank while each rank computes blocks
  kHeads,     ///< all-to-all: every rank computes the whole sequence of some heads
  kGather     ///< keys and values are gathered on every rank
};

namespace tensor {

/// Sets how attention runs along the axes of a mesh; kCheapest before the first call. Operators
/// that were called before may be decided in another way afterwards. Not collective, but all ranks
/// of the mesh must set the same. Sub-meshes have a choice of their own. Thread-safe. Throws
/// UsageError if the mesh is undefined.
void set_sequence_attention(const DeviceMesh& mesh, SequenceAttention choice);

/// Returns the choice of a mesh.
SequenceAttention sequence_attention(const DeviceMesh::State& mesh) noexcept;

/// Returns true if an axis of a mesh is the one along which sequences are sharded (kContextAxis).
bool shards_sequences(const DeviceMesh::State& mesh, int axis) noexcept;

}  // namespace tensor
}  // namespace trireme
