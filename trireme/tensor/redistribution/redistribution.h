// SPDX-License-Identifier: Apache-2.0
// Redistribution: the collectives and copies that bring a tensor from one layout to another, on the
// cheapest path between layouts (docs/design/redistribution.md). A step changes the placement of
// one axis:
//   Shard -> Replicate         all-gather
//   Shard(i) -> Shard(j)       all-to-all
//   Partial -> Replicate       all-reduce
//   Partial -> Shard           reduce-scatter
//   Replicate -> Shard         slice, without communication
//   Replicate -> Partial       the value at one coordinate, neutral elements at the others
//   Shard -> Partial           the own part, neutral elements around it
// Parts of different sizes are padded to the longest one.
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
  /// The operation of the step.
  enum class Kind { kAllGather, kAllToAll, kAllReduce, kReduceScatter, kSlice, kToPartial };
  Kind kind = Kind::kSlice;
  int axis = 0;           ///< mesh axis whose placement changes
  Layout from;            ///< layout before the step
  Layout to;              ///< layout after the step
  double bytes_sent = 0;  ///< by one rank
  double seconds = 0;     ///< estimated
};

/// Returns `all-gather`, `all-to-all`, `all-reduce`, `reduce-scatter`, `slice` or
/// `neutral elements`.
const char* to_string(RedistributionStep::Kind kind);

/// A path between two layouts for tensors of one size and dtype. Finding it takes tens of
/// microseconds for two axes; it can then be used for any number of tensors.
///
/// Moved elements keep their bits, whatever the dtype. Partial values are reduced as the group
/// reduces, in rank order where that is its summation order. For bool, Partial(sum) is the logical
/// or, as LibTorch's `+` is, and Partial(product) the logical and.
///
/// The neutral elements of Partial placements are:
///   - sum: -0.0 for floating point, which keeps the sign of zeros, and 0 for integers;
///   - product: 1;
///   - maximum: -inf or the lowest value; minimum: inf or the highest value;
///   - average: none; every rank gets the value itself. Reducing it gives back the value to the bit
///     if the number of ranks is a power of two, and up to rounding otherwise.
///
/// Engines other than shared memory and NCCL compute averages as a sum and a division.
///
/// Thread-safety: const methods may be called concurrently.
class Redistribution {
 public:
  /// Finds the cheapest path. Not collective: the path depends on sizes, dtype, layouts and format
  /// only, so all ranks find the same. A rank outside the mesh may make a path to read its steps.
  ///
  /// @param sizes global sizes of the tensor.
  /// @param dtype dtype of the tensor.
  /// @param from layout of the local tensors that are given.
  /// @param to layout of the result.
  /// @param format memory format of the local tensors and of the result. A local tensor in another
  /// format is copied first. ChannelsLast keeps images in their format. Not for FlatShard.
  ///
  /// Throws UsageError in these cases:
  ///   - the meshes are different, or have more than eight axes of several ranks;
  ///   - a layout does not fit the sizes;
  ///   - Partials in one layout depend on the order of reduction, such as sum and maximum;
  ///   - the dtype does not have a Partial: any of float8 and other rare dtypes, maximum and
  ///     minimum of complex numbers, average of bool.
  Redistribution(c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype, const Layout& from,
                 const Layout& to, at::MemoryFormat format = at::MemoryFormat::Contiguous);

  /// Returns the steps in order; none if the layouts are equal.
  const std::vector<RedistributionStep>& steps() const noexcept { return steps_; }

  /// Returns the estimated seconds of communication and copies.
  double seconds() const noexcept { return seconds_; }
  /// Returns the bytes that one rank sends.
  double bytes_sent() const noexcept { return bytes_sent_; }
  /// Returns true if nothing is communicated.
  bool is_local() const noexcept { return bytes_sent_ == 0; }

  /// Redistributes this rank's local tensor. Blocking, and collective over the groups of the axes
  /// that the steps change. Not recorded by autograd.
  ///
  /// Returns `local` itself where there is nothing to do. Otherwise the result has memory of its
  /// own and is contiguous in the format of the path. After slices that need no copy it is a view
  /// of `local` instead. `label` names the tensor in errors. Throws UsageError where `local` does
  /// not have the sizes and dtype of `from`, and CommError.
  at::Tensor operator()(const at::Tensor& local, std::string_view label = {}) const;

  /// Returns text such as `tensor: Partial(sum) -> Shard(0) by reduce-scatter, 96 bytes`, one line
  /// for each step; `nothing to do` if there is none.
  std::string to_string() const;

  /// Returns what this rank does. Null where there is nothing to do, and on ranks outside the mesh.
  const std::shared_ptr<const Program>& program() const noexcept { return program_; }

 private:
  std::vector<RedistributionStep> steps_;
  std::shared_ptr<const Program> program_;
  double seconds_ = 0;
  double bytes_sent_ = 0;
};

/// Returns the estimated seconds of the cheapest path; 0 where the layouts are equal. Throws as the
/// constructor of Redistribution.
double redistribution_seconds(c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype,
                              const Layout& from, const Layout& to,
                              at::MemoryFormat format = at::MemoryFormat::Contiguous);

/// Redistributes several tensors at once. Steps of different tensors are merged into one collective
/// if they have the same kind, axis, dtype and reduction. Steps that send 64 KiB or more stay
/// alone.
///
/// Blocking and collective: every rank gives the same tensors in the same order. Returns what each
/// path alone would return, to the bit. Results may be parts of one piece of memory, each at a
/// multiple of 64 bytes. Throws UsageError where the numbers of paths and tensors differ.
std::vector<at::Tensor> redistribute_together(const std::vector<const Redistribution*>& paths,
                                              const std::vector<at::Tensor>& locals);

}  // namespace trireme::tensor
