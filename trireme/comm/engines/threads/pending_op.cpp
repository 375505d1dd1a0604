// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/threads/pending_op.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace trireme::comm::threads {
namespace {

// Each rank has one device, whose stream its operations wait for.
at::Device device_of(OperationKind kind, int rank, const std::vector<at::Tensor>& inputs,
                     const std::vector<at::Tensor>& outputs) {
  std::optional<at::Device> device;
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const at::Tensor& tensor : *tensors) {
      if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_meta()) {
        throw UsageError(
            join_message(name_of(kind), " between threads was given ",
                         tensor.defined() ? join_message("a tensor on ", tensor.device(),
                                                         " of layout ", tensor.layout())
                                          : std::string("an undefined tensor"),
                         ", expected a dense one with memory"),
            "give it memory first, or tensor.to_dense()");
      }
      if (!device) device = tensor.device();
      if (tensor.device() == *device) continue;
      throw UsageError(join_message(name_of(kind), " was given tensors on ", *device, " and ",
                                    tensor.device(), " by rank ", rank),
                       "give tensors of one device; other ranks may use other devices");
    }
  }
  return device.value_or(at::kCPU);
}

// Returns a single tensor unchanged, with its strides; otherwise a tensor for each piece.
std::vector<at::Tensor> tensors_of(const Buffer& buffer) {
  if (buffer.num_pieces() == 1 && buffer.is_block()) return {buffer.whole()};
  return buffer.pieces();
}

}  // namespace

PendingOp::PendingOp(const Operation& operation, int which)
    : call(summary_of(operation)),
      rank(which),
      inputs(tensors_of(operation.input)),
      outputs(tensors_of(operation.output)),
      device(device_of(operation.kind, rank, inputs, outputs)),
      ready(record_current(device)),
      work(c10::intrusive_ptr<PendingOperation>()) {}

PendingOp::~PendingOp() {
  if (!is_done() || !copied_ || is_followed_.load(std::memory_order_acquire)) return;
  try {
    for (const c10::Event& event : *copied_) event.synchronize();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): its next user is told
  }
}

void PendingOp::finish(std::shared_ptr<const Events> copied) {
  copied_ = std::move(copied);
  is_done_.store(true, std::memory_order_release);
}

bool PendingOp::has_ended() const {
  return is_done() && (!copied_ || std::ranges::all_of(*copied_, [](const c10::Event& event) {
           return event.query();
         }));
}

void PendingOp::wait_on_stream() {
  if (copied_) wait_on_device(device, *copied_);
  is_followed_.store(true, std::memory_order_release);
}

}  // namespace trireme::comm::threads
