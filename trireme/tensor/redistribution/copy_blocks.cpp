// SPDX-License-Identifier: Apache-2.0
// Copies rows of bytes between tensors and buffers, so any dtype will do. Host memory is copied by
// loops of memcpy: an operator for each block would take longer than a short collective.
#include <trireme/tensor/redistribution/redistribution_program.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace trireme::tensor {
namespace {

struct Rows {
  std::byte* to;
  std::int64_t to_stride;
  const std::byte* from;
  std::int64_t from_stride;
};

template <std::size_t Bytes>
void copy_fixed(const Rows& rows, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    std::memcpy(rows.to + row * rows.to_stride, rows.from + row * rows.from_stride, Bytes);
  }
}

// Rows of a single element are common: a shard of the last dim may be one column.
void copy_range(const Rows& rows, std::size_t bytes, std::int64_t begin, std::int64_t end) {
  switch (bytes) {
    case 1:
      return copy_fixed<1>(rows, begin, end);
    case 2:
      return copy_fixed<2>(rows, begin, end);
    case 4:
      return copy_fixed<4>(rows, begin, end);
    case 8:
      return copy_fixed<8>(rows, begin, end);
    case 16:
      return copy_fixed<16>(rows, begin, end);
    default:
      for (std::int64_t row = begin; row < end; ++row) {
        std::memcpy(rows.to + row * rows.to_stride, rows.from + row * rows.from_stride, bytes);
      }
  }
}

void copy_rows(const Rows& rows, std::int64_t count, std::int64_t bytes) {
  constexpr std::int64_t kBytesOfThread = 256L * 1024;
  if (count * bytes <= kBytesOfThread) {
    return copy_range(rows, static_cast<std::size_t>(bytes), 0, count);
  }
  at::parallel_for(0, count, std::max<std::int64_t>(1, kBytesOfThread / bytes),
                   [&](std::int64_t begin, std::int64_t end) {
                     copy_range(rows, static_cast<std::size_t>(bytes), begin, end);
                   });
}

at::Tensor rows_of(const at::Tensor& tensor, const Block& block) {
  return alias(tensor, {block.rows, block.row}, {block.stride, 1},
               tensor.storage_offset() + block.offset);
}

at::Tensor rows_of_slot(const at::Tensor& slots, std::int64_t begin, const Block& block) {
  return alias(slots, {block.rows, block.row}, {block.row, 1}, slots.storage_offset() + begin);
}

}  // namespace

void copy_to_slots(const at::Tensor& slots, std::int64_t begin, std::int64_t pitch,
                   const at::Tensor& tensor, const Blocks& blocks) {
  const auto item = static_cast<std::int64_t>(tensor.element_size());
  for (const Block& block : blocks) {
    if (block.elements() != 0 && tensor.is_cpu()) {
      copy_rows(
          {.to = static_cast<std::byte*>(slots.mutable_data_ptr()) + begin * item,
           .to_stride = block.row * item,
           .from = static_cast<const std::byte*>(tensor.const_data_ptr()) + block.offset * item,
           .from_stride = block.stride * item},
          block.rows, block.row * item);
    } else if (block.elements() != 0) {
      rows_of_slot(slots, begin, block).copy_(rows_of(tensor, block));
    }
    begin += pitch;
  }
}

void copy_from_slots(const at::Tensor& tensor, const Blocks& blocks, const at::Tensor& slots,
                     std::int64_t begin, std::int64_t pitch) {
  const auto item = static_cast<std::int64_t>(tensor.element_size());
  for (const Block& block : blocks) {
    if (block.elements() != 0 && tensor.is_cpu()) {
      copy_rows({.to = static_cast<std::byte*>(tensor.mutable_data_ptr()) + block.offset * item,
                 .to_stride = block.stride * item,
                 .from = static_cast<const std::byte*>(slots.const_data_ptr()) + begin * item,
                 .from_stride = block.row * item},
                block.rows, block.row * item);
    } else if (block.elements() != 0) {
      rows_of(tensor, block).copy_(rows_of_slot(slots, begin, block));
    }
    begin += pitch;
  }
}

}  // namespace trireme::tensor
