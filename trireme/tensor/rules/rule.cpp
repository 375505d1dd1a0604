// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/rule.h>

#include <trireme/base/error.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

namespace trireme::tensor {

Call::Call(const c10::FunctionSchema& schema, std::vector<c10::IValue> arguments,
           std::vector<at::Tensor> inputs, std::vector<int> argument_of_input)
    : schema_(&schema),
      arguments_(std::move(arguments)),
      inputs_(std::move(inputs)),
      argument_of_input_(std::move(argument_of_input)) {}

int Call::position(std::string_view argument_name) const {
  const auto& arguments = schema_->arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == argument_name) return static_cast<int>(i);
  }
  return -1;
}

int Call::input_of(int position) const {
  for (int input = 0; input < num_inputs(); ++input) {
    if (argument_of(input) == position) return input;
  }
  return -1;
}

bool Call::is_in_place() const noexcept {
  if (schema_->arguments().empty()) return false;
  const c10::AliasInfo* alias = schema_->arguments().front().alias_info();
  return alias != nullptr && alias->isWrite();
}

// Other axes count if they shard the dim already; axes after this one may still change.
std::int64_t AxisCall::parts(int input, std::int64_t dim) const {
  const Layout& layout = layouts[static_cast<std::size_t>(input)];
  std::int64_t product = ranks;
  for (const int other : layout.axes_of(dim)) {
    if (other != axis) product *= layout.mesh().size(other);
  }
  return product;
}

LocalCall::LocalCall(const c10::OperatorHandle& op, torch::jit::Stack& stack, const Call* call,
                     c10::ArrayRef<Layout> inputs, c10::ArrayRef<Layout> outputs,
                     c10::ArrayRef<c10::IntArrayRef> input_sizes,
                     c10::ArrayRef<c10::IntArrayRef> output_sizes)
    : op_(op),
      stack_(stack),
      call_(call),
      inputs_(inputs),
      outputs_(outputs),
      input_sizes_(input_sizes),
      output_sizes_(output_sizes) {}

c10::IValue& LocalCall::argument(int position) {
  // The arguments are the last values on the stack.
  const std::size_t first = stack_.size() - op_.schema().arguments().size();
  return stack_[first + static_cast<std::size_t>(position)];
}

bool LocalCall::has_tensor(int position) {
  const c10::IValue& value = argument(position);
  return value.isTensor() && value.toTensor().defined();
}

void LocalCall::call_operator() { op_.callBoxed(stack_); }

c10::IValue& LocalCall::result(int position) {
  const std::size_t first = stack_.size() - op_.schema().returns().size();
  return stack_[first + static_cast<std::size_t>(position)];
}

void LocalCall::give(std::vector<c10::IValue> results) {
  torch::jit::drop(stack_, op_.schema().arguments().size());
  for (c10::IValue& result : results) stack_.push_back(std::move(result));
}

}  // namespace trireme::tensor
