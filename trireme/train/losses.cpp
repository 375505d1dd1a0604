// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/losses.h>

#include <trireme/base/error.h>
#include <trireme/tensor/distributed_tensor.h>
#include <trireme/train/label_checks.h>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>

namespace trireme {

at::Tensor MeanSquaredError::operator()(const at::Tensor& output, const at::Tensor& target) const {
  if (output.sizes() != target.sizes()) {
    throw UsageError(
        join_message("mean squared error needs output and target of one shape: output ",
                     output.sizes(), ", target ", target.sizes()),
        "reshape one of them; nothing is broadcast here");
  }
  if (output.scalar_type() != target.scalar_type()) {
    throw UsageError(
        join_message("mean squared error needs output and target of one dtype: output ",
                     output.dtype(), ", target ", target.dtype()),
        "cast the target column with data::type_cast");
  }
  return at::mse_loss(output, target);
}

at::Tensor CrossEntropy::operator()(const at::Tensor& output, const at::Tensor& target) const {
  if (!(label_smoothing >= 0 && label_smoothing < 1)) {
    throw UsageError(join_message("cross-entropy with a label smoothing of ", label_smoothing),
                     "give a share from 0 to below 1");
  }
  detail::check_labels("cross-entropy", output, target);
  const bool is_soft = detail::is_soft(target);
  const at::Tensor labels =
      is_soft ? target.to(output.scalar_type()) : target.to(at::kLong).contiguous();
  // Labels have no values while a forward is recorded.
  if (labels.is_cpu() && !has_layout(labels) && labels.numel() > 0) {
    is_soft ? detail::check_probabilities(labels)
            : detail::check_label_range(labels, output.size(1));
  }
  return at::cross_entropy_loss(output, labels, /*weight=*/{}, at::Reduction::Mean,
                                /*ignore_index=*/-100, label_smoothing);
}

}  // namespace trireme
