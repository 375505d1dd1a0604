// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/labels.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <vector>

namespace trireme::detail {
namespace {

// The target [N, ...] that fits `output` [N, C, ...].
std::vector<std::int64_t> labels_shape(const at::Tensor& output) {
  auto shape = output.sizes().vec();
  shape.erase(shape.begin() + 1);
  return shape;
}

}  // namespace

void check_labels(std::string_view who, const at::Tensor& output, const at::Tensor& target) {
  if (output.dim() < 2) {
    throw UsageError(
        join_message(who, " needs logits [samples, classes], got output ", output.sizes()),
        "give every sample one logit per class");
  }
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) {
    throw UsageError(
        join_message(who, " needs class numbers of an integer dtype, got target of dtype ",
                     target.dtype(), " and shape ", target.sizes()),
        "cast labels with data::type_cast(at::kLong)");
  }
  if (target.sizes() != at::IntArrayRef(labels_shape(output))) {
    throw UsageError(join_message(who, " needs one class number per sample: output ",
                                  output.sizes(), ", target ", target.sizes(), ", expected target ",
                                  at::IntArrayRef(labels_shape(output))),
                     "check the target column and the network's last layer");
  }
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
