// SPDX-License-Identifier: Apache-2.0
// Gradients travel as products of two thin matrices (Vogels et al., "PowerSGD", NeurIPS 2019,
// algorithms 1 and 2).
#pragma once

#include <trireme/parallel/gradients/comm_hook.h>

#include <ATen/core/Generator.h>

#include <cstdint>
#include <map>

namespace trireme {

struct PowerSgdOptions {
  /// Of the approximation. 1 to 4 are common; more costs more time and bytes.
  std::int64_t rank = 1;

  /// Steps of each parameter before its gradients are compressed: early ones matter most.
  std::int64_t start_iteration = 1000;

  /// A matrix is compressed where that takes so many times fewer elements, at least.
  double min_compression_rate = 2;

  /// What the approximation lost is added to the gradient of the next step.
  bool error_feedback = true;

  /// The last step's right factor begins the next power iteration; otherwise a random one does.
  bool warm_start = true;

  /// Of the random right factors, which all ranks draw alike.
  std::uint64_t seed = 0;

  /// A column of a factor that keeps no more than this part of its length beside the columns before
  /// it counts as dependent on them, and adds nothing.
  double orthogonalization_epsilon = 1e-6;
};

/// Takes each gradient of two dimensions and more as a matrix M [rows, cols] of its first dimension
/// by the others, and makes of the sum S of all ranks' M, with one step of power iteration:
///
///     P = orthonormal(sum of M Q)      Q' = sum of M^T P      result = P Q'^T  (= P P^T S)
///     left over on this rank = M - P (M^T P)^T, added to the next M
///
/// so rank * (rows + cols) elements travel. With rank = min(rows, cols) the result is S, within
/// rounding. Vectors, and matrices that it does not pay for, are summed as they are, in one message
/// for each bucket.
///
/// What is left over is what this rank's own part lost (algorithm 2 of the paper), and so stays
/// bounded on every rank; its sum over ranks, and with it the result, is that of PyTorch's hook. It
/// takes as much memory as the gradients. It is in the units of the gradients: when a LossScale
/// changes, it keeps the scale of its step. Where a matrix is not finite on a rank, all ranks
/// get one that is not, and what is kept of that matrix stays as it was; the others go on, also
/// when a LossScale passes over the step.
///
/// Compresses fp32 and fp64; gradients of other types travel whole. A group of one changes nothing.
/// The right factors travel when backward is over. Not thread-safe.
class PowerSgdCommHook final : public CommHook {
 public:
  /// Throws UsageError for options that cannot be; the first start does on all ranks where options
  /// differ between ranks.
  explicit PowerSgdCommHook(const PowerSgdOptions& options = {});

  std::function<void()> start(GradientBucket& bucket, const comm::Group& group) override;

 private:
  // What is kept of a parameter.
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
