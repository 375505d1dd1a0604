// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/losses.h>

#include <trireme/base/error.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/any.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/le.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/mse_loss.h>

#include <algorithm>
#include <vector>

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

namespace trireme::detail {
namespace {

// Returns the shape [N, ...] of class numbers that fit `output` [N, C, ...].
std::vector<std::int64_t> labels_shape(const at::Tensor& output) {
  auto shape = output.sizes().vec();
  shape.erase(shape.begin() + 1);
  return shape;
}

}  // namespace

bool is_soft(const at::Tensor& target) { return at::isFloatingType(target.scalar_type()); }

void check_labels(std::string_view who, const at::Tensor& output, const at::Tensor& target) {
  if (output.dim() < 2) {
    throw UsageError(
        join_message(who, " needs logits [samples, classes], got output ", output.sizes()),
        "give every sample one logit per class");
  }
  const bool is_number = at::isIntegralType(target.scalar_type(), /*includeBool=*/false);
  if (!is_number && !(is_soft(target) && target.sizes() == output.sizes())) {
    throw UsageError(
        join_message(who,
                     " needs class numbers of an integer dtype, or soft labels of the output's "
                     "shape: output ",
                     output.sizes(), ", target of dtype ", target.dtype(), " and shape ",
                     target.sizes()),
        "cast class numbers with data::type_cast(at::kLong)");
  }
  if (is_number && target.sizes() != at::IntArrayRef(labels_shape(output))) {
    throw UsageError(join_message(who, " needs one class number per sample: output ",
                                  output.sizes(), ", target ", target.sizes(), ", expected target ",
                                  at::IntArrayRef(labels_shape(output))),
                     "check the target column and the network's last layer");
  }
}

void check_probabilities(const at::Tensor& probabilities) {
  const at::Tensor is_none =
      probabilities.ge(0).logical_and_(probabilities.le(1)).logical_not_().flatten();
  if (!is_none.any().item<bool>()) return;
  const std::int64_t place = is_none.to(at::kByte).argmax().item<std::int64_t>();
  const std::int64_t row = place / (probabilities.numel() / probabilities.size(0));
  throw DataError(
      join_message("soft label ", probabilities.flatten()[place].item<double>(), " in row ", row,
                   " of the batch is no probability"),
      "soft labels are 0 to 1 and add up to 1 over the classes; other targets need another loss");
}

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

}  // namespace trireme::detail
