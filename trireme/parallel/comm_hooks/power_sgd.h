// SPDX-License-Identifier: Apache-2.0
// A hook that exchanges gradients as products of two thin matrices (Vogels et al., "PowerSGD",
// NeurIPS 2019, algorithms 1 and 2).
#pragma once

#include <trireme/parallel/gradients/comm_hook.h>

#include <ATen/core/Generator.h>

#include <cstdint>
#include <map>

namespace trireme {

/// Options of PowerSgdCommHook. They must be the same on all ranks.
struct PowerSgdOptions {
  /// Rank of the approximation. 1 to 4 are common; higher ranks cost more time and bytes.
  std::int64_t rank = 1;

  /// The number of steps before the gradients of a parameter are compressed. Early steps matter
  /// most.
  std::int64_t start_iteration = 1000;

  /// The factor by which compression must reduce the number of elements, at least. Matrices that
  /// it reduces by less are sent whole.
  double min_compression_rate = 2;

  /// True to add to the next gradient what the approximation lost of this one.
  bool error_feedback = true;

  /// True to start each power iteration from the right factor of the last step; false to start from
  /// a random one.
  bool warm_start = true;

  /// Seed of the random right factors, which are the same on all ranks.
  std::uint64_t seed = 0;

  /// A column of a factor counts as linearly dependent on the columns before it if
  /// orthogonalization leaves no more than this fraction of its length. It then adds nothing.
  double orthogonalization_epsilon = 1e-6;
};

/// Approximates the sum of each gradient with two or more dimensions. The gradient is seen as a
/// matrix M of its first dimension by all others, and S is the sum of M over ranks. One step of
/// power iteration is made:
///
///     P = orthonormal(sum of M Q)      Q' = sum of M^T P      result = P Q'^T  (= P P^T S)
///     left over on this rank = M - P (M^T P)^T, added to the next M
///
/// so rank * (rows + cols) elements are exchanged. With rank = min(rows, cols) the result is S,
/// within rounding. Vectors, and matrices that compression would not make small enough, are summed
/// unchanged, in one message for each bucket.
///
/// What is left over is the loss of this rank's own part (algorithm 2 of the paper), and stays
/// bounded on every rank. Its sum over ranks equals that of PyTorch's hook, and so does the result.
/// It needs as much memory as the gradients. It is in the units of the gradients: when a LossScale
/// changes, it keeps the scale of its step.
///
/// If a matrix is not finite on one rank, the result is not finite on all ranks, and the state of
/// that matrix stays as it was. Other matrices go on, even if a LossScale skips the step.
///
/// Only fp32 and fp64 are compressed; other types are summed unchanged. On a group of one nothing
/// changes. The right factors are exchanged after backward has ended. Not thread-safe.
class PowerSgdCommHook final : public CommHook {
 public:
  /// Throws UsageError for options out of range. If options differ between ranks, the first start()
  /// throws UsageError on all ranks.
  explicit PowerSgdCommHook(const PowerSgdOptions& options = {});

  std::function<void()> start(GradientBucket& bucket, const comm::Group& group) override;

 private:
  // The state that is kept for a parameter.
  struct Parameter {
    std::int64_t iterations = 0;
    at::Tensor left_over;  // [rows, cols]; undefined at first
    at::Tensor right;      // Q [cols, rank]; undefined at first
  };
  struct Matrix;
  struct Round;

  void check_agreement(const comm::Group& group);
  bool pays(const at::Tensor& gradient) const;
  Matrix as_matrix(const at::Tensor& gradient, const std::string& name);
  at::Tensor next_right(const Matrix& matrix);
  void finish(Round& round, const comm::Group& group);
  void decompress(Matrix& matrix, const at::Tensor& own_right, const at::Tensor& right);

  PowerSgdOptions options_;
  bool is_agreed_ = false;
  at::Generator generator_;
  std::map<std::string, Parameter> parameters_;
};

}  // namespace trireme
