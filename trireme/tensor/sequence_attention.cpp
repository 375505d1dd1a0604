// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/sequence_attention.h>

#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/layout.h>

#include <atomic>
#include <cstddef>

namespace trireme::tensor {

void set_sequence_attention(const DeviceMesh& mesh, SequenceAttention choice) {
  static_cast<void>(Layout::replicated(mesh));  // makes the attachment
  auto& attached =
      static_cast<AttachedLinks&>(*mesh.state()->attachment.load(std::memory_order_acquire));
  if (attached.sequence_attention.exchange(choice, std::memory_order_acq_rel) != choice) {
    outdate_decisions();
  }
}

SequenceAttention sequence_attention(const DeviceMesh::State& mesh) noexcept {
  const auto* const attached =
      static_cast<const AttachedLinks*>(mesh.attachment.load(std::memory_order_acquire));
  return attached == nullptr ? SequenceAttention::kCheapest
                             : attached->sequence_attention.load(std::memory_order_acquire);
}

bool shards_sequences(const DeviceMesh::State& mesh, int axis) noexcept {
  return mesh.axes[static_cast<std::size_t>(axis)].name == kContextAxis;
}

}  // namespace trireme::tensor
