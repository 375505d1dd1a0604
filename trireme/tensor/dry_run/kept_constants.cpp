// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dry_run/kept_constants.h>

#include <trireme/tensor/dry_run/interception.h>

#include <ATen/ops/_lazy_clone.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace trireme::tensor {
namespace {

thread_local KeptConstants* constants_of_thread = nullptr;

// Smaller tensors are computed again, and compared by their values.
constexpr std::size_t kSmallBytes = 4096;
constexpr std::size_t kMostBytes = std::size_t{256} << 20;  // of all that is kept

// The operator itself runs, and what it calls is not intercepted.
struct Below {
  c10::impl::ExcludeDispatchKeyGuard exclude{c10::DispatchKeySet(kBelowAutograd) | kAboveLocal};
};

// Returns true if an operator makes memory whose values nobody has set.
bool leaves_values_open(std::string_view name) {
  constexpr std::array<std::string_view, 3> kBeginnings = {"aten::empty", "aten::new_empty",
                                                           "aten::_empty"};
  return std::ranges::any_of(kBeginnings,
                             [&](std::string_view text) { return name.starts_with(text); });
}

// Returns true if a call gives one new tensor that follows from its arguments.
bool is_function(const c10::OperatorHandle& op, const OperatorFacts& facts) {
  return facts.num_returns == 1 && facts.written.empty() && !facts.returns_view &&
         !facts.may_return_input && !leaves_values_open(facts.name) &&
         op.schema().returns()[0].type()->kind() == c10::TypeKind::TensorType &&
         !op.hasTag(at::Tag::nondeterministic_seeded);
}

bool has_plain_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
         !tensor.is_conj() && !tensor.is_neg() && tensor.has_storage();
}

}  // namespace

KeptConstants::KeptConstants() {
  if (constants_of_thread != nullptr) return;
  constants_of_thread = this;
  is_of_thread_ = true;
}

KeptConstants::~KeptConstants() {
  if (is_of_thread_) constants_of_thread = nullptr;
}

KeptConstants* KeptConstants::of_thread() noexcept { return constants_of_thread; }

// Returns false if the values are neither few nor known.
bool KeptConstants::append_values(const at::Tensor& tensor, CallWords& words) const {
  if (!has_plain_memory(tensor)) return false;
  if (tensor.nbytes() < kSmallBytes) {
    const at::Tensor values = tensor.contiguous();
    const std::size_t begin = words.size();
    words.resize(begin + (values.nbytes() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t), 0);
    if (values.nbytes() > 0) {
      std::memcpy(words.data() + begin, values.const_data_ptr(), values.nbytes());
    }
    return true;
  }
  const c10::Storage& storage = tensor.storage();
  const auto found = lent_.find(storage.unsafeGetStorageImpl());
  // A write gives the storage memory of its own.
  if (found == lent_.end() || !c10::impl::cow::is_cow_data_ptr(storage.data_ptr())) return false;
  words.push_back(found->second.number);
  return true;
}

bool KeptConstants::append_values_of_all(const Scan& scan, CallWords& words) const {
  return std::ranges::all_of(
      scan.inputs, [&](const InputSlot& input) { return append_values(*input.tensor, words); });
}

bool KeptConstants::take(const c10::OperatorHandle& op, const OperatorFacts& facts,
                         const Scan& scan, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  if (!is_function(op, facts)) return false;
  const Below below;
  const c10::ArrayRef<c10::IValue> arguments(stack.data() + (stack.size() - facts.num_arguments),
                                             facts.num_arguments);
  std::optional<CallWords> words = words_of(op, scan, arguments, nullptr);
  if (!words || !append_values_of_all(scan, *words)) return false;
  words->push_back(static_cast<std::uint64_t>(c10::get_default_dtype_as_scalartype()));
  auto found = results_.find(*words);
  if (found == results_.end()) {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kBelowAutograd),
                       &stack);
    const at::Tensor& result = stack.back().toTensor();
    const bool is_kept =
        result.defined() && has_plain_memory(result) && result.nbytes() >= kSmallBytes &&
        bytes_ + result.nbytes() <= kMostBytes && result.storage().use_count() == 1 &&
        c10::impl::cow::has_simple_data_ptr(*result.storage().unsafeGetStorageImpl());
    if (!is_kept) return true;
    bytes_ += result.nbytes();
    found = results_.emplace(std::move(*words), Kept{result, results_.size()}).first;
    torch::jit::drop(stack, 1);
  } else {
    torch::jit::drop(stack, facts.num_arguments);
  }
  stack.emplace_back(lend(found->second));
  return true;
}

at::Tensor KeptConstants::lend(const Kept& kept) {
  at::Tensor copy = at::_lazy_clone(kept.tensor);
  const c10::intrusive_ptr<c10::StorageImpl> storage = copy.storage().getWeakStorageImpl().lock();
  if (lent_.size() >= 2 * lent_at_check_ + 64) forget_freed();
  lent_.insert_or_assign(storage.get(), Lent{c10::weak_intrusive_ptr(storage), kept.number});
  return copy;
}

// The weak reference keeps the address of a storage from being used again.
void KeptConstants::forget_freed() {
  std::erase_if(lent_, [](const auto& item) { return item.second.storage.expired(); });
  lent_at_check_ = lent_.size();
}

}  // namespace trireme::tensor
