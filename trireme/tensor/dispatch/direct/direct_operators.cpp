// SPDX-License-Identifier: Apache-2.0
// Kernels with the C++ signature of their operator. Boxing arguments into IValues and unboxing them
// takes as long as the rest of a short call, and several times as long for long lists.
#include <trireme/tensor/dispatch/direct/direct_operators.h>

#include <trireme/tensor/dispatch/call_steps.h>
#include <trireme/tensor/dispatch/decision_cache.h>
#include <trireme/tensor/dispatch/plain_inputs.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
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
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/MaybeOwned.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme::tensor {
namespace {

// One call of an operator by its direct kernel: collects its tensors, single or in lists, which are
// never boxed into IValues, and replaces them by local tensors. Use it in this order: add() for
// every argument, is_ready(), local() for every argument, then give() or one of its variants for
// the result. Holds references to the arguments, which must outlive it.
class DirectCall {
 public:
  explicit DirectCall(const OperatorFacts& facts) : facts_(facts) {}
  ~DirectCall();
  DirectCall(const DirectCall&) = delete;
  DirectCall& operator=(const DirectCall&) = delete;

  // Adds the next argument in the order of the schema. Undefined tensors outside lists are
  // skipped.
  void add(const at::Tensor& tensor) { add_input(scan_, tensor, position_++, -1); }
  void add(const std::optional<at::Tensor>& tensor) {
    if (tensor) add_input(scan_, *tensor, position_, -1);
    ++position_;
  }
  void add(at::TensorList list);
  template <class Other>
  void add(const Other& /*no tensor*/) {
    ++position_;
  }

  // Returns true if the call runs as the operator itself on the local tensors as they are, and
  // this is known without a new decision. If it returns false, the boxed kernel must run the call.
  // Throws UsageError for tensors that no call accepts (check_tensors).
  bool is_ready();

  // Returns the local tensor of an argument; a value of another type is returned unchanged. Call
  // it for the arguments in the order of add().
  at::Tensor& local(at::Tensor& tensor) { return tensor.defined() ? locals_[next_++] : tensor; }
  const at::Tensor& local(const at::Tensor& tensor) {
    return tensor.defined() ? locals_[next_++] : undefined_;
  }
  std::optional<at::Tensor> local(const std::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? std::optional<at::Tensor>(locals_[next_++]) : tensor;
  }
  at::TensorList local(at::TensorList list);
  template <class Other>
  Other local(const Other& other) {
    return other;
  }

  // Makes distributed tensors of local results.
  at::Tensor give(at::Tensor result) const { return wrapped(std::move(result), 0); }
  std::vector<at::Tensor> give(std::vector<at::Tensor> results) const;
  // Updates the geometry of `wrapper`, which the call wrote to and returns.
  void give_written(const at::Tensor& wrapper) const;
  // Counts the writes of a call that wrote to lists and returns nothing.
  void give_nothing() const;

 private:
  at::Tensor wrapped(at::Tensor local, std::size_t output) const;

  const OperatorFacts& facts_;
  const CallInProgress in_progress_;
  Scan scan_;
  int position_ = 0;
  bool has_gaps_ = false;               // a list has undefined tensors
  const Decision* decision_ = nullptr;  // null where all inputs are replicated
  Layout replicated_;
  c10::SmallVector<at::Tensor, 8> locals_;  // borrowed without a reference; the wrappers own them
  std::size_t next_ = 0;
  const at::Tensor undefined_;
};

// The kernel of `Operator`, one of at::_ops. It runs calls that only need the operator on local
// tensors. All other calls go to the boxed kernel, and so does the first call of each kind, for
// which no decision has been made. Apart from tensors, the operator may only have arguments whose
// value no rule reads. Thread-safe.
template <class Operator, class Schema = typename Operator::schema>
class DirectKernel;

template <class Operator, class Result, class... Arguments>
class DirectKernel<Operator, Result(Arguments...)> {
 public:
  DirectKernel(c10::OperatorHandle op, std::unique_ptr<DistributedKernel> boxed)
      : op_(std::move(op)),
        facts_(boxed->facts()),
        boxed_(c10::KernelFunction::makeFromBoxedFunctor(std::move(boxed))) {}

  Result operator()(Arguments... arguments) const {
    {
      DirectCall call(facts_);
      (call.add(arguments), ...);
      if (call.is_ready()) return run(call, arguments...);
    }
    return boxed_.template call<Result, Arguments...>(
        op_, c10::DispatchKeySet(c10::DispatchKey::PrivateUse2),
        std::forward<Arguments>(arguments)...);
  }

 private:
  static Result run(DirectCall& call, Arguments... arguments) {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveLocal);
    // Braces fix the order of evaluation: locals are taken in the order of the arguments.
    std::tuple<decltype(call.local(arguments))...> locals{call.local(arguments)...};
    if constexpr (std::is_void_v<Result>) {
      std::apply(Operator::call, locals);
      call.give_nothing();
    } else if constexpr (std::is_reference_v<Result>) {
      std::apply(Operator::call, locals);
      Result written = std::get<0>(std::tie(arguments...));
      call.give_written(written);
      return written;
    } else {
      return call.give(std::apply(Operator::call, locals));
    }
  }

  c10::OperatorHandle op_;
  const OperatorFacts& facts_;  // of the boxed kernel
  c10::KernelFunction boxed_;
};

using Borrowed = c10::MaybeOwnedTraits<at::Tensor>;

// Returns true if a view of the tensor is more than a view of its local tensor.
bool needs_mark(const DistributedMeta* meta) {
  return meta == nullptr || meta->is_copy_of_view || meta->as_weight != nullptr;
}

// Returns true if the operator itself runs on the local tensors as they are.
bool is_plain(const Decision& decision) {
  return !decision.has_paths && decision.kernel == nullptr && decision.local_arguments.empty() &&
         !decision.gathers_view && !decision.has_plan;
}

DirectCall::~DirectCall() {
  for (at::Tensor& local : locals_) Borrowed::destroyBorrow(local);
}

void DirectCall::add(at::TensorList list) {
  scan_.inputs.reserve(scan_.inputs.size() + 2 * list.size());  // another list may follow
  int element = 0;
  for (const at::Tensor& tensor : list) {
    has_gaps_ = has_gaps_ || !tensor.defined();
    add_input(scan_, tensor, position_, element++);
  }
  ++position_;
}

bool DirectCall::is_ready() {
  // A kernel of the rule, an undefined list element or a value in the decision's key needs the
  // boxed path, which has the arguments as IValues.
  const bool has_kernel = facts_.rule != nullptr && facts_.rule->kernel != nullptr;
  if (scan_.first == nullptr || has_gaps_ || facts_.has_key_values || has_kernel) return false;
  if (facts_.hands_on_weight && needs_mark(scan_.inputs[0].meta)) return false;
  check_tensors(facts_, scan_);
  note_view(facts_, scan_);
  if (scan_.is_replicated && !needs_decision(facts_.rule, scan_.first->layout)) {
    replicated_ = scan_.first->layout;
  } else {
    decision_ = find_decision(DecisionKey(facts_, scan_.inputs, {}));
    if (decision_ == nullptr || !is_plain(*decision_)) return false;
  }
  locals_.reserve(scan_.inputs.size());
  for (const InputSlot& slot : scan_.inputs) {
    const at::Tensor& local = slot.meta == nullptr ? *slot.tensor : slot.meta->local;
    locals_.push_back(Borrowed::createBorrow(local));
  }
  if (notes_plain_inputs()) note_plain_inputs(facts_, scan_);
  return true;
}

at::TensorList DirectCall::local(at::TensorList list) {
  const at::TensorList locals = at::TensorList(locals_).slice(next_, list.size());
  next_ += list.size();
  return locals;
}

std::vector<at::Tensor> DirectCall::give(std::vector<at::Tensor> results) const {
  std::size_t output = 0;
  for (at::Tensor& result : results) result = wrapped(std::move(result), output++);
  return results;
}

void DirectCall::give_written(const at::Tensor& wrapper) const {
  follow_local(wrapper, decision_ == nullptr ? nullptr : &decision_->outputs.front());
}

void DirectCall::give_nothing() const {
  if (!facts_.counts_versions) return;
  for (const InputSlot& slot : scan_.inputs) {
    if (slot.argument == facts_.written.front()) count_version(*slot.tensor);
  }
}

at::Tensor DirectCall::wrapped(at::Tensor local, std::size_t output) const {
  if (decision_ == nullptr) return wrap_replicated(std::move(local), replicated_);
  return wrap_output(facts_, std::move(local), decision_->outputs[output]);
}

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
