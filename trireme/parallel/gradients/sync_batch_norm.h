// SPDX-License-Identifier: Apache-2.0
// Synchronized batch norm for unmodified modules: statistics are computed over the batches of all
// ranks. The forward of LibTorch's BatchNorm modules is not virtual, so `aten::batch_norm` itself
// is replaced, on a dispatch key above autograd that marks one tensor of each module. The fallback
// in tensor_access.h lets every other operator on such a tensor through.
//
//     forward    rank r: count, mean, squares about the mean  --all-gather-->  mean, variance
//     backward   rank r: sum of dy, sum of dy * normalized    --all-reduce-->  gradient of input
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::detail {

/// Computes at::batch_norm in training mode over the concatenated batches of all ranks. Returns
/// this rank's part of the output. Outputs, running statistics and the gradient of the input are
/// those that one process would compute from all batches. Gradients of weight and bias are this
/// rank's summands: their sum over ranks is the gradient of the whole. Batches may differ in every
/// size except the number of channels, and may be empty.
///
/// Collective, and its backward is too if the input requires a gradient: every rank must run the
/// same layers in the same order. Forward exchanges one message of 3 + 2C doubles, backward one of
/// 1 + 2C. C is the size of `weight` or of a running statistic, and must be the same on all ranks.
///
/// fp16 and bf16 are computed in fp32. Each rank computes its mean first, then the squares about
/// it. The results of the ranks are combined in double, in rank order (Chan, Golub and LeVeque,
/// "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979). All ranks
/// get the same bits. Outputs differ from those of one process by a few (1 + |mean| / deviation)
/// roundings of the input's type, or of fp32 for narrower types.
///
/// Throws UsageError on every rank if:
/// - the input of a rank does not fit the layer,
/// - ranks run different layers,
/// - the input requires a gradient on some ranks only, or
/// - there is one value per channel over all ranks.
///
/// Backward throws UsageError for `create_graph`.
/// @param weight [C], or undefined; the same goes for `bias`, `running_mean` and `running_var`.
/// @param name identifies the layer in errors; must be the same on all ranks.
at::Tensor synchronized_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                                   const at::Tensor& bias, const at::Tensor& running_mean,
                                   const at::Tensor& running_var, double momentum, double eps,
                                   const comm::Group& group, const std::string& name = {});

/// A module that is a batch norm without being one of LibTorch's classes, such as one of Python.
/// Its forward calls at::batch_norm.
class BatchNormOfOtherKind {
 public:
  virtual ~BatchNormOfOtherKind() = default;
  /// Returns its running mean, or its weight if it has none; undefined if it has neither.
  virtual at::Tensor marked() const = 0;
};

/// Synchronizes the BatchNorm1d, 2d and 3d of a module while it lives, and those of other kinds.
/// They call synchronized_batch_norm() where they would otherwise use the statistics of their own
/// batch: in training mode, and in any mode if they keep no running statistics.
///
/// Not synchronized are direct calls of at::batch_norm with other tensors, InstanceNorm, and clones
/// of the module. LibTorch's own check still applies before: it refuses a rank's batch with one
/// value per channel.
///
/// Does nothing on a group of one. Other ranks may be threads of the same process. The module must
/// not run while this object is created or destroyed.
class SyncBatchNorm {
 public:
  /// Finds and marks the layers. Collective. Throws UsageError on every rank if the modules differ
  /// between ranks, if a layer has neither weight nor running statistics by which it could be
  /// recognised, or if a layer is synchronized already.
  /// @param group must not be used by other threads meanwhile, nor during forward and backward.
  SyncBatchNorm(torch::nn::Module& module, const comm::Group& group);
  ~SyncBatchNorm();
  SyncBatchNorm(const SyncBatchNorm&) = delete;
  SyncBatchNorm& operator=(const SyncBatchNorm&) = delete;

  /// Throws UsageError naming the first layer whose tensors were given other memory (as by
  /// `module.to`), which removes the mark. Cheap enough to call in every step.
  void check() const;

 private:
  struct Layer {
    std::string name;
    at::Tensor marked;  // its running mean, or its weight if it has none
  };
  static std::vector<Layer> find_layers(torch::nn::Module& module);

  std::vector<Layer> layers_;
};

/// A function that is called before a batch norm with a marked tensor reads its weight and its
/// bias. The kernel of batch norm replaces the fallback of tensor_access.h, so accesses of sharded
/// parameters must be reported by this function.
using BeforeBatchNorm = void (*)(const at::Tensor& parameter);
/// Sets the function that is called, for all threads.
void set_before_batch_norm(BeforeBatchNorm hook);

}  // namespace trireme::detail
