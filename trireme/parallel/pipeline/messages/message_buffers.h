// SPDX-License-Identifier: Apache-2.0
// Buffers and Outgoing: the memory of messages. A stage and its backward read a received tensor
// where it was received, so a buffer is free when nothing refers to its memory any more. It is then
// reused, in the same step or a later one.
#pragma once

#include <trireme/parallel/pipeline/pipeline_program.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

namespace trireme::pipeline {

/// A pool of buffers for received tensors, by shape and dtype. Not thread-safe.
class Buffers {
 public:
  /// @param device where the buffers are made.
  explicit Buffers(at::Device device);
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  /// A buffer in use. It returns to the pool when no reference to the memory of `tensor` is left.
  struct Lent {
    at::Tensor tensor;   ///< has the requested shape
    at::Tensor message;  ///< the same memory, flat; references to it do not keep the buffer in use
  };
  /// Returns a free buffer of that shape and dtype, or allocates one if none is free.
  Lent take(const Shape& shape, at::ScalarType dtype);

  /// Returns the number of buffers, in use and free.
  std::size_t size() const noexcept { return size_; }

 private:
  struct Memory;
  using Key = std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, at::ScalarType>;
  at::Device device_;
  std::map<Key, std::vector<std::shared_ptr<Memory>>> memories_;
  std::size_t size_ = 0;
};

/// A tensor that is being sent. It keeps its memory alive until release(), and no longer, even if
/// the engine destroys its message later.
class Outgoing {
 public:
  /// @param tensor the tensor to send. It is copied if its strides are not those of `shape`.
  /// @param shape the shape that the receiver expects.
  Outgoing(const at::Tensor& tensor, const Shape& shape);

  /// Returns the memory as a flat tensor.
  const at::Tensor& message() const noexcept { return message_; }
  /// Releases the tensor. Call it when the send has completed.
  void release();

 private:
  std::shared_ptr<at::Tensor> tensor_;
  at::Tensor message_;
};

/// Returns true if two tensors share memory. Returns false if one has no storage, such as a sparse
/// tensor.
bool share_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace trireme::pipeline
