// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dry_run/results.h>

#include <trireme/tensor/rules/sizes.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <utility>

namespace trireme::tensor {
namespace {

// New memory has no gaps and starts at offset 0, as the kernel makes it.
Geometry geometry_of_new(const at::Tensor& global) {
  return dense_geometry(global.sizes(), global.strides());
}

// Makes the results one after the other, in the order of the returns.
class Results {
 public:
  Results(const OperatorFacts& facts, const Prediction& prediction)
      : facts_(facts), prediction_(prediction) {}

  at::Tensor next() {
    const std::size_t index = output_++;
    if (index >= prediction_.outputs.size()) return {};
    const at::Tensor& global = prediction_.outputs[index];
    if (!global.defined()) return without_shape();
    const Layout& layout = prediction_.layout(index);
    const bool is_view = facts_.returns_view && !prediction_.is_copy_of_view;
    const at::Tensor result = wrap(
        meta_part(global, layout), layout,
        is_view || prediction_.decision == nullptr ? geometry_of(global) : geometry_of_new(global));
    if (facts_.returns_view) distributed_meta(result).is_copy_of_view = prediction_.is_copy_of_view;
    distributed_meta(result).as_weight = prediction_.as_weight;
    distributed_meta(result).is_own = !is_view;
    made_.push_back(result);
    return result;
  }

  // Updates a tensor that the call writes to and returns.
  void follow(const c10::IValue& written, int argument) {
    const bool is_out = facts_.is_out[static_cast<std::size_t>(argument)];
    const std::size_t index = output_++;
    if (!written.isTensor() || index >= prediction_.outputs.size()) return;
    const at::Tensor& tensor = written.toTensor();
    const at::Tensor& global = prediction_.outputs[index];
    if (!global.defined() || !is_wrapper(tensor)) return;
    const bool has_same_sizes = tensor.sizes() == global.sizes();
    if (is_out && has_same_sizes) return;  // the result is redistributed to the layout that it has
    if (!is_out && prediction_.is_redistributed_back(argument)) return;
    const Layout& layout = prediction_.layout(index);
    if (!is_out && has_same_sizes && tensor.strides() == global.strides() &&
        distributed_meta(tensor).layout == layout) {
      return;
    }
    Geometry geometry = geometry_of(global);
    if (is_out) geometry.strides = c10::contiguous_strides(geometry.sizes);
    replace_local(tensor, meta_part(global, layout), layout, geometry);
    made_.push_back(tensor);
  }

  std::vector<at::Tensor> made() { return std::move(made_); }

 private:
  // Only the kernel of a recurrent layer knows the size of its workspace, and backward asks for the
  // workspace again: an empty tensor stands for it. Other undefined results stay undefined.
  at::Tensor without_shape() const {
    if (facts_.name != "aten::mkldnn_rnn_layer") return {};
    return at::empty({0}, at::TensorOptions().dtype(at::kByte));
  }

  const OperatorFacts& facts_;
  const Prediction& prediction_;
  std::size_t output_ = 0;
  std::vector<at::Tensor> made_;
};

}  // namespace

const Layout& Prediction::layout(std::size_t output) const {
  if (decision == nullptr) return replicated;
  const auto& all = decision->outputs;
  return all[std::min(output, all.size() - 1)].layout;
}

bool Prediction::is_redistributed_back(int argument) const {
  const int input = decision == nullptr ? -1 : decision->call->input_of(argument);
  return input >= 0 && decision->inputs[static_cast<std::size_t>(input)].back.has_value();
}

at::Tensor meta_part(const at::Tensor& global, const Layout& layout) {
  const auto sizes = local_sizes(global.sizes(), layout, coordinate_here(layout.mesh()));
  const auto strides = static_cast<std::int64_t>(sizes.size()) == global.dim()
                           ? dense_strides(global.strides(), sizes)
                           : c10::contiguous_strides(sizes);  // a flat range
  const at::Tensor part = at::empty_strided(
      sizes, strides, at::TensorOptions().dtype(global.scalar_type()).device(at::kMeta));
  if (global.is_conj()) part._set_conj(true);
  if (global.is_neg()) part._set_neg(true);
  return part;
}

std::vector<at::Tensor> give_results(const OperatorFacts& facts, const c10::FunctionSchema& schema,
                                     torch::jit::Stack& stack, const Prediction& prediction) {
  Results results(facts, prediction);
  std::vector<c10::IValue> given;
  std::size_t value = 0;
  const c10::IValue* arguments = stack.data() + (stack.size() - facts.num_arguments);
  for (std::uint32_t i = 0; i < facts.num_returns; ++i) {
    const int argument = facts.return_is_argument[i];
    const c10::TypePtr& type = schema.returns()[i].type();
    if (argument >= 0) {
      results.follow(arguments[argument], argument);
      given.push_back(arguments[argument]);
    } else if (type->kind() == c10::TypeKind::TensorType) {
      given.emplace_back(results.next());
    } else if (type->kind() == c10::TypeKind::ListType) {
      c10::List<at::Tensor> list;
      const std::size_t length = prediction.outputs.size() + 1 - facts.num_returns;
      for (std::size_t element = 0; element < length; ++element) list.push_back(results.next());
      given.emplace_back(std::move(list));
    } else {
      given.push_back(prediction.values.at(value++));
    }
  }
  torch::jit::drop(stack, facts.num_arguments);
  for (c10::IValue& result : given) stack.push_back(std::move(result));
  return results.made();
}

}  // namespace trireme::tensor
