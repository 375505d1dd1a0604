// SPDX-License-Identifier: Apache-2.0
// Memory for messages. What has been received lies where a stage and its backward read it, so a
// buffer is free again when nothing refers to its memory any more; it is used again then, in this
// step or a later one.
#pragma once

#include <trireme/parallel/pipeline/program/pipeline_program.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

namespace trireme::pipeline {

/// Not thread-safe.
class Buffers {
 public:
  explicit Buffers(at::Device device);
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  struct Lent {
    at::Tensor tensor;   ///< of the shape that was asked for
    at::Tensor message;  ///< the same memory, flat; an engine may keep it without keeping it lent
  };
  /// Lends a free buffer of that shape and dtype, or a new one where all are lent.
  Lent take(const Shape& shape, at::ScalarType dtype);

  /// How many there are, lent and free.
  std::size_t size() const noexcept { return size_; }

 private:
  struct Memory;
  using Key = std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, at::ScalarType>;
  at::Device device_;
  std::map<Key, std::vector<std::shared_ptr<Memory>>> memories_;
  std::size_t size_ = 0;
};

/// A tensor that is being sent. Keeps its memory until `release`, even where the engine forgets its
/// message late.
class Outgoing {
 public:
  /// @param tensor given the strides of `shape` where it has others, by a copy.
  Outgoing(const at::Tensor& tensor, const Shape& shape);

  /// The memory, flat.
  const at::Tensor& message() const noexcept { return message_; }
  /// To be called when it has been sent.
  void release();

 private:
  std::shared_ptr<at::Tensor> tensor_;
  at::Tensor message_;
};

/// Whether two tensors lie in the same memory; never where one has none of its own, as sparse ones.
bool share_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace trireme::pipeline
