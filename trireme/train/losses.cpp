// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/losses.h>

#include <trireme/base/error.h>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace trireme {
namespace {

// The target [N, ...] that fits `output` [N, C, ...].
std::vector<std::int64_t> labels_shape(const at::Tensor& output) {
  auto shape = output.sizes().vec();
  shape.erase(shape.begin() + 1);
  return shape;
}

void check_class_numbers(const at::Tensor& output, const at::Tensor& target) {
  if (output.dim() < 2) {
    throw UsageError(
        join_message("cross-entropy needs logits [samples, classes], got output ", output.sizes()),
        "give every sample one logit per class");
  }
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) {
    throw UsageError(
        join_message("cross-entropy needs class numbers of an integer dtype, got target of dtype ",
                     target.dtype(), " and shape ", target.sizes()),
        "cast labels with data::type_cast(at::kLong)");
  }
  if (target.sizes() != at::IntArrayRef(labels_shape(output))) {
    throw UsageError(join_message("cross-entropy needs one class number per sample: output ",
                                  output.sizes(), ", target ", target.sizes(), ", expected target ",
                                  at::IntArrayRef(labels_shape(output))),
                     "check the target column and the network's last layer");
  }
}

// `labels` is contiguous, int64, on the CPU.
void check_label_range(const at::Tensor& labels, std::int64_t classes) {
  const std::int64_t* begin = labels.const_data_ptr<std::int64_t>();
  const std::int64_t* end = begin + labels.numel();
  const std::int64_t* wrong = std::find_if(
      begin, end, [classes](std::int64_t label) { return label < 0 || label >= classes; });
  if (wrong == end) return;
  const std::int64_t row = (wrong - begin) / (labels.numel() / labels.size(0));
  throw DataError(
      join_message("label ", *wrong, " in row ", row, " of the batch is no class: the network has ",
                   classes, " outputs, so labels are 0 to ", classes - 1),
      "make the last layer as wide as there are classes, or correct the labels");
}

}  // namespace

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
  check_class_numbers(output, target);
  const at::Tensor labels = target.to(at::kLong).contiguous();
  if (labels.is_cpu()) check_label_range(labels, output.size(1));
  return at::cross_entropy_loss(output, labels, /*weight=*/{}, at::Reduction::Mean,
                                /*ignore_index=*/-100, label_smoothing);
}

}  // namespace trireme
