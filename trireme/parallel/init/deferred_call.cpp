// SPDX-License-Identifier: Apache-2.0
// Decides what happens to an operator while a module is constructed under deferred():
//
//     made of other operators      runs; those others are handled instead
//     allocates more than kSmall   makes a tensor without memory
//     a view, or metadata only     runs as usual
//     reads or writes a deferred   is recorded; its results are deferred too, with the shapes that
//     tensor, or random numbers    its meta kernel computes
//     anything else                runs as usual
//
// An operator that returns a number, or whose result shapes depend on values, gets the values of
// its inputs for the duration of the call, unless they depend on random numbers.
#include <trireme/parallel/init/deferred_call.h>

#include <trireme/base/error.h>
#include <trireme/tensor/ivalue_tensors.h>

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::detail {
namespace {

// Small constants are cheap. Code that makes them often reads them by pointers, not by operators.
constexpr std::size_t kSmall = std::size_t{1} << 20;

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_generator(const c10::Argument& argument) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  const c10::TypePtr type = optional ? optional->getElementType() : argument.type();
  return type->kind() == c10::TypeKind::GeneratorType;
}

// A number wrapped in a tensor takes no part in type promotion, and its copy must not either.
void keep_wrapped_number(const at::Tensor& from, const at::Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) {
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
}

// One call of an operator, with what its schema says about it.
class Call {
 public:
  Call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack)
      : op_(op), keys_(keys), stack_(stack), arguments_(op.schema().arguments()) {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      writes_ = writes_ || is_written(arguments_[i]);
      writes_out_ = writes_out_ || (is_written(arguments_[i]) && arguments_[i].kwarg_only());
      if (is_generator(arguments_[i])) generator_ = i;
      tensor::visit_tensors(value(i), [&](const at::Tensor& tensor) {
        Construction::give_up_if_written(tensor);
        is_deferred_ = is_deferred_ || Construction::find(tensor) != nullptr;
      });
    }
    is_random_ = generator_ || op.hasTag(at::Tag::nondeterministic_seeded);
  }

  void run(const std::shared_ptr<Construction>& construction) {
    construction_ = construction;
    if (op_.hasTag(at::Tag::inplace_view)) return run_recorded();
    if (is_allocation()) return allocate();
    if (is_composite() || (!writes_ && is_view())) return run_recorded();
    const bool draws_now = construction_->deferral() == Deferral::kShapes;
    if (!is_deferred_ && (!is_random_ || draws_now)) return run_plainly();
    if (writes_ && writes_nothing()) {  // an empty out= argument, which the call resizes
      return is_deferred_ || (is_random_ && writes_out_) ? evaluate() : run_plainly();
    }
    if (is_random_ && !generator_) return evaluate();
    if (writes_) return record_write();
    if (!record_result()) evaluate();
  }

 private:
  const c10::IValue& value(std::size_t i) const {
    return torch::jit::peek(stack_, i, arguments_.size());
  }
  // Calls `visit` with each tensor among the arguments and the position of its argument.
  template <typename Visit>
  void for_each_tensor(const Visit& visit) const {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      tensor::visit_tensors(value(i), [&](const at::Tensor& tensor) { visit(tensor, i); });
    }
  }
  std::string name() const { return toString(op_.operator_name()); }

  bool has_kernel(c10::DispatchKey key) const { return op_.hasKernelForDispatchKey(key); }
  bool is_allocation() const {
    const std::string& name = op_.schema().name();
    return name == "aten::empty_strided" ||
           (name == "aten::empty" && op_.schema().overload_name() == "memory_format");
  }
  bool is_view() const {
    const auto& returns = op_.schema().returns();
    return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& value) {
      return value.alias_info() != nullptr && !value.alias_info()->isWrite();
    });
  }
  // In-place operators are recorded as a whole. The kernel of copy_, for example, is the same for
  // all backends (composite), but reads memory.
  bool is_composite() const {
    if (has_kernel(c10::DispatchKey::CompositeImplicitAutograd)) return true;
    if (writes_ && !writes_out_) return false;
    return (has_kernel(c10::DispatchKey::CompositeExplicitAutograd) ||
            has_kernel(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) &&
           !has_kernel(c10::DispatchKey::CPU) && !has_kernel(c10::DispatchKey::CUDA);
  }
  bool writes_nothing() const {
    bool nothing = true;
    for_each_tensor([&](const at::Tensor& tensor, std::size_t i) {
      nothing = nothing && (!is_written(arguments_[i]) || tensor.numel() == 0);
    });
    return nothing;
  }

  void run_recorded() {
    op_.redispatchBoxed(keys_ & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDeferredKey),
                        &stack_);
  }
  void run_plainly() {
    const c10::impl::ExcludeDispatchKeyGuard not_recorded(kDeferredKey);
    run_recorded();
  }
  std::optional<torch::jit::Stack> run_on_meta();

  void allocate();
  void check_shapes(const torch::jit::Stack& results);
  void record_write();
  bool record_result();
  void evaluate();

  void replace_arguments(torch::jit::Stack results) {
    torch::jit::drop(stack_, arguments_.size());
    for (c10::IValue& result : results) stack_.push_back(std::move(result));
  }
  bool fills(const at::Tensor& tensor) const;
  void take(const at::Tensor& tensor) const;
  void check_is_ours(const at::Tensor& tensor) const;
  torch::jit::Stack recorded_arguments(Record& record) const;
  at::Tensor recorded(const at::Tensor& tensor, bool is_written, std::vector<Use>& uses) const;
  c10::Device device_of_results() const;

  const c10::OperatorHandle& op_;
  const c10::DispatchKeySet keys_;
  torch::jit::Stack& stack_;
  const std::vector<c10::Argument>& arguments_;
  std::shared_ptr<Construction> construction_;
  bool writes_ = false;
  bool writes_out_ = false;
  bool is_deferred_ = false;
  bool is_random_ = false;
  std::optional<std::size_t> generator_;
  std::string failure_on_meta_;
};

// Returns nothing if the meta kernel fails, an argument is not dense, or a result is no tensor.
std::optional<torch::jit::Stack> Call::run_on_meta() {
  bool is_dense = true;
  for_each_tensor([&](const at::Tensor& tensor, std::size_t) {
    is_dense = is_dense &&
               (!tensor.defined() || (tensor.layout() == c10::kStrided && !tensor.is_quantized()));
  });
  if (!is_dense) return std::nullopt;
  for (const c10::Argument& result : op_.schema().returns()) {
    const bool is_list = result.type()->kind() == c10::TypeKind::ListType;
    const c10::TypePtr type =
        is_list ? result.type()->castRaw<c10::ListType>()->getElementType() : result.type();
    if (type->kind() != c10::TypeKind::TensorType) return std::nullopt;
  }
  const c10::impl::ExcludeDispatchKeyGuard not_recorded(kDeferredKey);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto to_meta = [](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    at::Tensor meta =
        at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
    keep_wrapped_number(tensor, meta);
    return meta;
  };
  try {
    torch::jit::Stack stack;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (arguments_[i].name() == "device") {
        stack.emplace_back(c10::Device(c10::kMeta));
      } else if (i == generator_) {
        stack.emplace_back();
      } else {
        stack.push_back(tensor::map_tensors(value(i), to_meta));
      }
    }
    op_.callBoxed(stack);
    return stack;
  } catch (const c10::NotImplementedError&) {
    return std::nullopt;
  } catch (const c10::Error& error) {
    failure_on_meta_ =
        join_message("; without values LibTorch says: ", error.what_without_backtrace());
    return std::nullopt;  // evaluate() retries with values, and works or reports the error
  }
}

c10::Device Call::device_of_results() const {
  std::optional<c10::Device> device;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].name() == "device" && value(i).isDevice()) return value(i).toDevice();
  }
  bool is_number = true;  // tensors of dimension 0 do not decide the device if there are others
  for_each_tensor([&](const at::Tensor& tensor, std::size_t) {
    if (!tensor.defined() || !is_number) return;
    if (!device || tensor.dim() > 0) device = tensor.device();
    is_number = tensor.dim() == 0;
  });
  return device.value_or(c10::kCPU);
}

void Call::allocate() {
  const auto argument = [&](std::string_view name) {
    const auto found =
        std::find_if(arguments_.begin(), arguments_.end(),
                     [&](const c10::Argument& candidate) { return candidate.name() == name; });
    return value(static_cast<std::size_t>(found - arguments_.begin()));
  };
  const c10::Device asked = argument("device").toOptional<c10::Device>().value_or(c10::kCPU);
  const bool is_ordinary =
      argument("layout").toOptional<c10::Layout>().value_or(c10::kStrided) == c10::kStrided &&
      !argument("pin_memory").toOptional<bool>().value_or(false) && !asked.is_meta();
  const auto meta = is_ordinary ? run_on_meta() : std::nullopt;
  if (!meta || meta->front().toTensor().storage().nbytes() <= kSmall) return run_plainly();
  const c10::Device device = asked.has_index() || asked.is_cpu()
                                 ? asked
                                 : c10::impl::VirtualGuardImpl(asked.type()).getDevice();
  replace_arguments({construction_->make(meta->front().toTensor(), device)});
}

// Returns true if an in-place operator overwrites all memory of `tensor` and reads none of it.
bool Call::fills(const at::Tensor& tensor) const {
  static constexpr std::array<std::string_view, 11> kFilling = {
      "aten::zero_",      "aten::fill_",       "aten::copy_",      "aten::normal_",
      "aten::uniform_",   "aten::random_",     "aten::bernoulli_", "aten::exponential_",
      "aten::geometric_", "aten::log_normal_", "aten::cauchy_"};
  if (std::find(kFilling.begin(), kFilling.end(), op_.schema().name()) == kFilling.end()) {
    return false;
  }
  std::size_t num_uses = 0;
  for_each_tensor([&](const at::Tensor& other, std::size_t) {
    if (other.defined() && other.has_storage() &&
        other.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) {
      ++num_uses;
    }
  });
  return num_uses == 1 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == tensor.storage().nbytes();
}

// Makes an ordinary tensor deferred, because the values written to it are not known yet.
void Call::take(const at::Tensor& tensor) const {
  const bool is_ordinary =
      tensor.layout() == c10::kStrided && !tensor.is_quantized() && tensor.has_storage() &&
      tensor.storage().resizable() &&
      tensor.storage().allocator() == c10::GetAllocator(tensor.device().type());
  if (!is_ordinary) {
    throw UsageError(
        join_message("the constructor under trireme::deferred() writes by ", name(),
                     " into a tensor ", tensor.sizes(),
                     " whose memory LibTorch did not allocate, or that is not dense; expected an "
                     "ordinary tensor"),
        "make a tensor for it in the constructor, or build the module without deferred()");
  }
  construction_->take(tensor, !fills(tensor));
}

void Call::check_is_ours(const at::Tensor& tensor) const {
  const Construction::Place* place = Construction::find(tensor);
  if (place == nullptr || place->construction == construction_) return;
  throw UsageError(join_message(name(),
                                " in a constructor under trireme::deferred() uses the "
                                "values of a tensor ",
                                tensor.sizes(), " from another call of deferred()"),
                   "build both modules in one call of deferred(), or materialize the first");
}

// Returns a stand-in for a deferred tensor, or a copy of an ordinary one, which may change before
// the record is run.
at::Tensor Call::recorded(const at::Tensor& tensor, bool is_written, std::vector<Use>& uses) const {
  if (!tensor.defined()) return tensor;
  const Construction::Place* place = Construction::find(tensor);
  if (place == nullptr) {
    at::Tensor copy = tensor.clone();
    keep_wrapped_number(tensor, copy);
    return copy;
  }
  const Access access = !is_written     ? Access::kRead
                        : fills(tensor) ? Access::kFill
                                        : Access::kUpdate;
  const auto known = std::find_if(uses.begin(), uses.end(),
                                  [&](const Use& use) { return use.block == place->block; });
  if (known == uses.end()) {
    uses.push_back({place->block, access});
  } else if (is_written) {
    known->access = Access::kUpdate;
  }
  return construction_->stand_in(tensor);
}

torch::jit::Stack Call::recorded_arguments(Record& record) const {
  const c10::impl::ExcludeDispatchKeyGuard not_recorded(kDeferredKey);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  torch::jit::Stack arguments;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    if (i == generator_) {
      const auto given = value(i).toOptional<at::Generator>();
      arguments.emplace_back(construction_->draw_from(
          given && given->defined() ? *given
                                    : at::globalContext().defaultGenerator(device_of_results()),
          record));
      continue;
    }
    arguments.push_back(tensor::map_tensors(value(i), [&](const at::Tensor& tensor) {
      return recorded(tensor, is_written(arguments_[i]), record.uses);
    }));
  }
  return arguments;
}

// Checks the shapes now. A mismatch found when the record is run would be far from its cause.
void Call::check_shapes(const torch::jit::Stack& results) {
  const auto meta = run_on_meta();
  std::string failure = failure_on_meta_;
  for (std::size_t i = 0; meta && i < results.size(); ++i) {
    if (!results[i].isTensor()) continue;
    const at::IntArrayRef has = results[i].toTensor().sizes();
    const at::IntArrayRef expected = (*meta)[i].toTensor().sizes();
    if (has != expected) failure = join_message("; it writes ", expected, " into ", has);
  }
  if (failure.empty()) return;
  throw UsageError(
      join_message("the constructor under trireme::deferred() calls ", name(), failure),
      "give it tensors of fitting sizes and types");
}

void Call::record_write() {
  torch::jit::Stack results;
  for (const c10::Argument& result : op_.schema().returns()) {
    for (std::size_t i = 0; result.alias_info() != nullptr && i < arguments_.size(); ++i) {
      const auto* alias = arguments_[i].alias_info();
      if (alias == nullptr || alias->beforeSets() != result.alias_info()->beforeSets()) continue;
      results.push_back(value(i));
      break;
    }
  }
  if (results.size() != op_.schema().returns().size()) return evaluate();
  for_each_tensor([&](const at::Tensor& tensor, std::size_t) { check_is_ours(tensor); });
  check_shapes(results);
  for_each_tensor([&](const at::Tensor& tensor, std::size_t i) {
    const bool becomes_deferred =
        is_written(arguments_[i]) && tensor.defined() && Construction::find(tensor) == nullptr;
    if (becomes_deferred) take(tensor);
  });
  Record record{op_, {}, {}, {}, {}, {}};
  record.arguments = recorded_arguments(record);
  construction_->add(std::move(record));
  replace_arguments(std::move(results));
}

bool Call::record_result() {
  const auto meta = run_on_meta();
  if (!meta) return false;
  for_each_tensor([&](const at::Tensor& tensor, std::size_t) { check_is_ours(tensor); });
  Record record{op_, {}, {}, {}, {}, {}};
  record.arguments = recorded_arguments(record);
  const c10::Device device = device_of_results();
  torch::jit::Stack results;
  for (const c10::IValue& result : *meta) {
    results.push_back(tensor::map_tensors(result, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return record.results.emplace_back();
      record.uses.push_back({construction_->num_blocks(), Access::kMake});
      at::Tensor made = construction_->make(tensor, device);
      record.results.push_back(construction_->stand_in(made));
      return made;
    }));
  }
  construction_->add(std::move(record));
  replace_arguments(std::move(results));
  return true;
}

void Call::evaluate() {
  std::vector<bool> read(construction_->num_blocks(), false);
  bool writes_deferred = false;
  for_each_tensor([&](const at::Tensor& tensor, std::size_t i) {
    check_is_ours(tensor);
    const Construction::Place* place = Construction::find(tensor);
    if (place == nullptr) return;
    read[place->block] = true;
    writes_deferred = writes_deferred || is_written(arguments_[i]);
  });
  if (is_random_ || writes_deferred) {
    throw UsageError(join_message("the constructor under trireme::deferred() calls ", name(),
                                  ", which cannot be recorded"),
                     "build the module without deferred()");
  }
  if (construction_->is_random(read)) {
    throw UsageError(
        join_message("the constructor under trireme::deferred() calls ", name(),
                     ", which needs the initial values of a tensor that is filled at random; those "
                     "are drawn when the module is made parallel",
                     failure_on_meta_),
        "let the constructor not depend on drawn values, or build the module without deferred()");
  }
  std::vector<std::pair<std::size_t, c10::DataPtr>> values;
  construction_->run(read, false, [&](std::size_t block, c10::DataPtr memory) {
    values.emplace_back(block, std::move(memory));
  });
  struct Loan {
    Construction& construction;
    ~Loan() { construction.end_loans(); }
  } const loan{*construction_};
  for (auto& [block, memory] : values) construction_->lend(block, std::move(memory));
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    c10::IValue& argument = stack_[stack_.size() - arguments_.size() + i];
    argument = tensor::map_tensors(argument, [&](const at::Tensor& tensor) {
      return Construction::find(tensor) ? construction_->stand_in(tensor) : tensor;
    });
  }
  run_plainly();
}

}  // namespace

void call_deferred(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack& stack, const std::shared_ptr<Construction>& construction) {
  Call(op, keys, stack).run(construction);
}

}  // namespace trireme::detail
