// SPDX-License-Identifier: Apache-2.0
// Redistribution: the collectives and copies that bring a tensor from one layout to another, found
// as the cheapest path over layouts (docs/design/redistribution.md).
//
// States are layouts; a step changes the placement of one axis.
//   Shard -> Replicate: all-gather        Shard(i) -> Shard(j): all-to-all
//   Partial -> Replicate: all-reduce      Partial -> Shard: reduce-scatter
//   Replicate -> Shard: own slice         Replicate, Shard -> Partial: the value in one place, the
//                                         neutral element elsewhere; no communication in both
// Sizes that do not divide travel padded to the longest part.
#pragma once

#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tensor {

struct Program;

/// One step of a path.
struct RedistributionStep {
  enum class Kind { kAllGather, kAllToAll, kAllReduce, kReduceScatter, kSlice, kToPartial };
  Kind kind = Kind::kSlice;
  int axis = 0;  ///< of the mesh
  Layout from, to;
  double bytes_sent = 0;  ///< by one rank
  double seconds = 0;     ///< estimated
};

/// `all-gather`, `all-to-all`, `all-reduce`, `reduce-scatter`, `slice` or `neutral elements`.
const char* to_string(RedistributionStep::Kind kind);

/// A path between two layouts for tensors of one size and dtype: a cheap value that is made once
/// (tens of microseconds for two axes) and carried out often.
///
/// Every element keeps its bits, whatever the dtype; what is reduced is folded as the group folds
/// (in rank order where its summation order is that). Partial(sum) of bool is the logical or, as
/// LibTorch's `+` of bools, Partial(product) the logical and. The neutral elements that become
/// Partial are -0.0 for a sum of floating point, which keeps the sign of zeros, 0 for others, 1,
/// -inf or the lowest, inf or the highest; for an average every rank has the value itself, and the
/// average is that value to the bit where the ranks are a power of two, else to a rounding.
/// Averages over engines other than shared memory and NCCL are sums, then divided.
///
/// Thread-safety: const methods may be called concurrently.
class Redistribution {
 public:
  /// Finds the cheapest path. Not collective; the same on every rank, for it depends on sizes,
  /// dtype, layouts and format only. A rank that is not in the mesh may make one, to read it.
  ///
  /// @param format how all dims lie in memory, in locals on all ranks and in results: a local in
  /// another format is copied first. ChannelsLast keeps images as they are; not for FlatShard.
  ///
  /// Throws UsageError where the meshes are not the same one or have more than eight axes of
  /// several ranks, a layout does not fit the sizes, has Partials whose order would matter (sum and
  /// maximum), or has a Partial that the dtype has not: of float8 and the like, maximum and minimum
  /// of complex numbers, average of bool.
  Redistribution(c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype, const Layout& from,
                 const Layout& to, at::MemoryFormat format = at::MemoryFormat::Contiguous);

  const std::vector<RedistributionStep>& steps() const noexcept { return steps_; }

  /// Estimated seconds, of communication and of copies.
  double seconds() const noexcept { return seconds_; }
  double bytes_sent() const noexcept { return bytes_sent_; }
  bool is_local() const noexcept { return bytes_sent_ == 0; }

  /// Carries it out on this rank's part of the tensor. Blocking and collective over the groups of
  /// the axes that its steps change, if there are any. Returns `local` itself where there is
  /// nothing to do. Otherwise the result is contiguous (in the format given) memory of its own,
  /// except after slices that need no copy: it is a part of `local` then. `label` names the tensor
  /// in errors. Below autograd. Throws UsageError where `local` is not what this rank holds in
  /// `from`, and CommError.
  at::Tensor operator()(const at::Tensor& local, std::string_view label = {}) const;

  /// `tensor: Partial(sum) -> Shard(0) by reduce-scatter, 96 bytes`, one line a step; `nothing to
  /// do` where there is none.
  std::string to_string() const;

  /// What this rank does; null where there is nothing to do and on ranks outside the mesh.
  const std::shared_ptr<const Program>& program() const noexcept { return program_; }

 private:
  std::vector<RedistributionStep> steps_;
  std::shared_ptr<const Program> program_;
  double seconds_ = 0;
  double bytes_sent_ = 0;
};

/// Estimated seconds of the cheapest path; 0 where the layouts are equal. Throws as Redistribution.
double redistribution_seconds(c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype,
                              const Layout& from, const Layout& to,
                              at::MemoryFormat format = at::MemoryFormat::Contiguous);

/// Redistributes several tensors at once: steps of the same kind, axis, dtype and Partial of all of
/// them travel as one collective, except those that send 64 KiB and more. Blocking and collective;
/// every rank gives the same tensors in the same order. Returns what each alone would give, to the
/// bit; results may lie in one piece of memory, each at a multiple of 64 bytes. Throws UsageError
/// where the numbers of paths and tensors differ.
std::vector<at::Tensor> redistribute_together(const std::vector<const Redistribution*>& paths,
                                              const std::vector<at::Tensor>& locals);

}  // namespace trireme::tensor
