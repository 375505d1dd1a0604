// SPDX-License-Identifier: Apache-2.0
// CopyOnWrite: lets a save write tensors from where they are, and copies them only if they are to
// change before they are written. Internal to this component.
#pragma once

#include <trireme/checkpoint/tensor_part.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace trireme::checkpoint {

/// Memory for copies of tensors, which is kept from one save to the next.
class StagingMemory {
 public:
  /// Copies tensors, which may be on any device, and returns the copies on the CPU, in the same
  /// order. Copies of earlier calls are overwritten.
  std::vector<at::Tensor> copy(const std::vector<at::Tensor>& tensors);

 private:
  at::Tensor memory_;  // [n] bytes
};

/// The tensors of one save. One thread writes them, while another one trains.
class CopyOnWrite {
 public:
  /// Notes the tensors of parts that are to be written. Those that copy_rest() does not copy later
  /// are copied at once, and the copies take their place in `parts`: all if `copies_all`, and else
  /// those with `changes_any_time` and those on accelerators.
  CopyOnWrite(std::vector<TensorPart>& parts, bool copies_all, StagingMemory& memory);
  CopyOnWrite(const CopyOnWrite&) = delete;
  CopyOnWrite& operator=(const CopyOnWrite&) = delete;
  ~CopyOnWrite() = default;

  /// Calls `use` with all bytes of a part, in order, in blocks of `block_bytes`, which do not
  /// change during a call. For the writing thread, once for each part. Throws UsageError if it
  /// notices that a tensor was changed before copy_rest(), and what made copy_rest() fail. Changes
  /// are noticed where LibTorch counts them for that tensor, which it does not for memory that
  /// tensors share without being views of each other.
  void read(const TensorPart& part, std::int64_t block_bytes,
            const std::function<void(std::span<const std::byte>)>& use);

  /// Copies what has not been written or copied yet. Afterwards the tensors may be changed. Never
  /// waits for a disk, but for the copy of a block, or of a tensor that is not dense. An error is
  /// thrown by read().
  /// @param memory another one than that of the constructor.
  void copy_rest(StagingMemory& memory) noexcept;

 private:
  struct Entry {
    at::Tensor given;           // in one of the parts
    std::string name;           // of that part
    std::uint32_t version = 0;  // of `given` when the save began
    at::Tensor values;          // the memory of `given` until they are copied
    int parts = 0;              // that have not been written
    bool is_copied = false;
  };
  void check_unchanged(const Entry& entry) const;

  std::mutex mutex_;  // guards what is below; held while a block is copied for the reader
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  std::exception_ptr failure_;
  std::atomic<bool> is_copying_ = false;  // the reader stands back, because mutexes are not fair
};

}  // namespace trireme::checkpoint
