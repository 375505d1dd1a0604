// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/direct/direct_operators.h>

#include <trireme/tensor/dispatch/direct/direct_kernel.h>

#include <ATen/ops/_foreach_abs_ops.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_maximum_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_neg_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_foreach_sub_ops.h>
#include <ATen/ops/_foreach_zero_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/threshold_backward_ops.h>

#include <string>
#include <unordered_map>
#include <utility>

namespace trireme::tensor {
namespace {

using Make = torch::CppFunction (*)(const c10::OperatorHandle&, std::unique_ptr<DistributedKernel>);

// Returns a function with the signature of the operator, from which LibTorch infers the schema.
template <class Operator, class Result, class... Arguments>
auto callable(std::shared_ptr<const DirectKernel<Operator>> kernel,
              Result (* /*signature*/)(Arguments...)) {
  return [kernel = std::move(kernel)](Arguments... arguments) -> Result {
    return (*kernel)(std::forward<Arguments>(arguments)...);
  };
}

template <class Operator>
torch::CppFunction make(const c10::OperatorHandle& op, std::unique_ptr<DistributedKernel> boxed) {
  auto kernel = std::make_shared<const DirectKernel<Operator>>(op, std::move(boxed));
  return torch::CppFunction(
      callable<Operator>(std::move(kernel), static_cast<typename Operator::ptr_schema>(nullptr)));
}

template <class... Operators>
std::unordered_map<std::string, Make> by_name() {
  return {{std::string(Operators::name) + "." + Operators::overload_name, &make<Operators>}...};
}

const std::unordered_map<std::string, Make>& direct_operators() {
  namespace ops = at::_ops;
  static const auto all = by_name<
      ops::_foreach_abs, ops::_foreach_abs_, ops::_foreach_add_List, ops::_foreach_add__List,
      ops::_foreach_add_Scalar, ops::_foreach_add__Scalar, ops::_foreach_addcdiv_Scalar,
      ops::_foreach_addcdiv__Scalar, ops::_foreach_addcdiv__ScalarList,
      ops::_foreach_addcmul_Scalar, ops::_foreach_addcmul__Scalar, ops::_foreach_div_List,
      ops::_foreach_div__List, ops::_foreach_div_Scalar, ops::_foreach_div__Scalar,
      ops::_foreach_div__ScalarList, ops::_foreach_lerp_Scalar, ops::_foreach_lerp__Scalar,
      ops::_foreach_maximum__List, ops::_foreach_mul_List, ops::_foreach_mul__List,
      ops::_foreach_mul_Scalar, ops::_foreach_mul__Scalar, ops::_foreach_mul__Tensor,
      ops::_foreach_neg, ops::_foreach_neg_, ops::_foreach_sqrt, ops::_foreach_sqrt_,
      ops::_foreach_sub_List, ops::_foreach_sub__List, ops::_foreach_zero_, ops::add_Tensor,
      ops::add__Tensor, ops::addcdiv, ops::addcdiv_, ops::addcmul, ops::addcmul_, ops::detach,
      ops::div_Tensor, ops::div__Tensor, ops::linear, ops::mm, ops::mul_Tensor, ops::mul__Tensor,
      ops::relu, ops::sqrt, ops::sub_Tensor, ops::sub__Tensor, ops::threshold_backward>();
  return all;
}

}  // namespace

torch::CppFunction kernel_function(const c10::OperatorHandle& op,
                                   std::unique_ptr<DistributedKernel> boxed) {
  const auto& all = direct_operators();
  const auto found = all.find(op.schema().name() + "." + op.schema().overload_name());
  if (found != all.end()) return found->second(op, std::move(boxed));
  return torch::CppFunction::makeFromBoxedFunctor(std::move(boxed));
}

}  // namespace trireme::tensor
