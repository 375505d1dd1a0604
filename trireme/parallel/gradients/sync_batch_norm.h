// SPDX-License-Identifier: Apache-2.0
// Batch norm over the batches of all ranks, for modules that know nothing of it. The forward of
// LibTorch's BatchNorm modules is not virtual, so `aten::batch_norm` itself is taken over, on a
// dispatch key above autograd that one tensor of each module carries; tensor_access.h lets every
// other operator on such a tensor through.
//
//     forward    rank r: count, mean, squares about the mean  --all-gather-->  mean, variance
//     backward   rank r: sum of dy, sum of dy * normalized    --all-reduce-->  gradient of the
//     input
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::detail {

/// at::batch_norm in training mode over the concatenated batches of all ranks: outputs, running
/// statistics and gradients are those of one process with all of them, where this rank's output,
/// and its part of the gradients of weight and bias, which add up to the whole over the ranks, stay
/// here. Batches may differ in every size but that of the channels; some may be empty.
///
/// Collective, and so is its backward where the input requires a gradient: every rank runs the same
/// layers in the same order. One message of 3 + 2C and one of 1 + 2C doubles. Channels are counted
/// by `weight` or a running statistic; the ranks must agree on them.
///
/// fp16 and bf16 are computed in fp32. Each rank takes the mean first and squares about it after,
/// and the ranks' are combined in double and in rank order (Chan, Golub and LeVeque, "Updating
/// Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979): the same bits on all
/// ranks, and outputs within a few (1 + |mean| / deviation) roundings of the input's type (of fp32
/// at least) of one process.
///
/// Throws UsageError on every rank where a rank's input does not fit, where the ranks run different
/// layers, where the input requires a gradient on some ranks alone, and for one value per channel
/// over all ranks; in backward for `create_graph`.
///
/// @param weight, bias, running_mean, running_var [C] each, or undefined.
/// @param name says in errors which layer it is; the ranks' must be equal.
at::Tensor synchronized_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                                   const at::Tensor& bias, const at::Tensor& running_mean,
                                   const at::Tensor& running_var, double momentum, double eps,
                                   const comm::Group& group, const std::string& name = {});

/// While it lives, the BatchNorm1d, 2d and 3d in a module run synchronized_batch_norm where they
/// would take statistics of their own batch: in training mode, and in any mode where they keep no
/// running statistics. Others are not recognised: at::batch_norm with tensors of no such module,
/// InstanceNorm, clones of the module. A rank whose own batch has one value per channel is refused
/// by LibTorch's module before it gets here.
///
/// It does nothing on a group of one. Thread-safety: other ranks may be threads of this process;
/// the module may not run while this is made or destroyed.
class SyncBatchNorm {
 public:
  /// Collective. Throws UsageError, the same on all ranks, where their modules differ and for a
  /// batch norm that has neither weight nor running statistics, by which it could be recognised.
  /// @param group on which no other thread runs collectives meanwhile, backward included.
  SyncBatchNorm(torch::nn::Module& module, const comm::Group& group);
  ~SyncBatchNorm();
  SyncBatchNorm(const SyncBatchNorm&) = delete;
  SyncBatchNorm& operator=(const SyncBatchNorm&) = delete;

  /// Throws UsageError naming the first batch norm that was given other memory (`module.to`), and
  /// with it lost the mark by which it is recognised. Cheap enough for every step.
  void check() const;

 private:
  struct Layer {
    std::string name;
    at::Tensor marked;  // its running mean, or else its weight
  };
  static std::vector<Layer> find_layers(torch::nn::Module& module);

  std::vector<Layer> layers_;
};

/// Called before a batch norm that was given a marked tensor reads its weight and bias, where it
/// has them: a place for what else has to happen then, for the kernel of batch norm comes before
/// the key's fallback.
using BeforeBatchNorm = void (*)(const at::Tensor& parameter);
void set_before_batch_norm(BeforeBatchNorm hook);

}  // namespace trireme::detail
