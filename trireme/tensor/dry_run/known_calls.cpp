// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dry_run/known_calls.h>

#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/rules/rule_table.h>

#include <bit>
#include <string_view>
#include <utility>

namespace trireme::tensor {
namespace {

// Appends an argument with a number for its type, so that 1 and 1.0 differ.
class ArgumentWords {
 public:
  explicit ArgumentWords(CallWords& words) : words_(words) {}

  // Returns false for a type that is not compared.
  bool append(const c10::IValue& value) {
    if (value.isNone()) {
      begin(Type::kNone);
    } else if (value.isTensor()) {
      begin(value.toTensor().defined() ? Type::kTensor : Type::kUndefined);
    } else if (value.isBool()) {
      begin(Type::kBool);
      words_.push_back(value.toBool() ? 1 : 0);
    } else if (value.isInt()) {
      begin(Type::kInt);
      words_.push_back(static_cast<std::uint64_t>(value.toInt()));
    } else if (value.isDouble()) {
      begin(Type::kDouble);
      words_.push_back(std::bit_cast<std::uint64_t>(value.toDouble()));
    } else if (value.isDevice()) {
      begin(Type::kDevice);
      words_.push_back(static_cast<std::uint64_t>(value.toDevice().type()));
      words_.push_back(static_cast<std::uint64_t>(value.toDevice().index()));
    } else if (value.isString()) {
      begin(Type::kString);
      append_text(value.toStringRef());
    } else if (value.isList()) {
      begin(Type::kList);
      return append_list(value.toListRef());
    } else {
      return false;
    }
    return true;
  }

 private:
  enum class Type : std::uint8_t {
    kNone,
    kTensor,
    kUndefined,
    kBool,
    kInt,
    kDouble,
    kDevice,
    kString,
    kList
  };

  void begin(Type type) { words_.push_back(static_cast<std::uint64_t>(type)); }

  void append_text(std::string_view text) {
    words_.push_back(text.size());
    for (const char letter : text) words_.push_back(static_cast<unsigned char>(letter));
  }

  bool append_list(c10::ArrayRef<c10::IValue> list) {
    words_.push_back(list.size());
    for (const c10::IValue& item : list) {
      if (!append(item)) return false;
    }
    return true;
  }

  CallWords& words_;
};

std::uint64_t flags_of(const InputSlot& input) {
  std::uint64_t flags = input.tensor->unsafeGetTensorImpl()->is_wrapped_number() ? 1 : 0;
  if (input.meta != nullptr && input.meta->is_copy_of_view) flags |= 2;
  return flags;
}

void append_input(const InputSlot& input, CallWords& words) {
  const c10::TensorImpl& impl = *input.tensor->unsafeGetTensorImpl();
  const bool is_wrapped = input.meta != nullptr;
  words.push_back(is_wrapped ? input.meta->layout.hash() : 0);
  words.push_back(is_wrapped ? reinterpret_cast<std::uintptr_t>(input.meta->as_weight) : 0);
  words.push_back(flags_of(input) | static_cast<std::uint64_t>(input.tensor->scalar_type()) << 8 |
                  static_cast<std::uint64_t>(impl.dim()) << 16 |
                  static_cast<std::uint64_t>(input.argument) << 24 |
                  static_cast<std::uint64_t>(input.element + 1) << 32);
  for (const std::int64_t size : impl.sizes()) words.push_back(static_cast<std::uint64_t>(size));
  for (const std::int64_t stride : impl.strides()) {
    words.push_back(static_cast<std::uint64_t>(stride));
  }
  words.push_back(static_cast<std::uint64_t>(impl.storage_offset()));
}

}  // namespace

std::optional<CallWords> words_of(const c10::OperatorHandle& op, const Scan& scan,
                                  c10::ArrayRef<c10::IValue> arguments,
                                  const PlannedLayouts* plan) {
  CallWords words;
  constexpr std::size_t kUsual = 64;
  words.reserve(kUsual);
  // The schema of an operator has one address as long as the operator is registered.
  words.push_back(reinterpret_cast<std::uintptr_t>(&op.schema()));
  words.push_back(reinterpret_cast<std::uintptr_t>(plan));
  words.push_back(rules_version() + axis_links_version());
  for (const InputSlot& input : scan.inputs) append_input(input, words);
  ArgumentWords others(words);
  for (const c10::IValue& value : arguments) {
    if (!others.append(value)) return std::nullopt;
  }
  return words;
}

std::shared_ptr<const CallOutcome> KnownCalls::find(const CallWords& words) const {
  const auto found = calls_.find(words);
  return found == calls_.end() ? nullptr : found->second;
}

void KnownCalls::keep(CallWords words, std::shared_ptr<const CallOutcome> outcome) {
  calls_.emplace(std::move(words), std::move(outcome));
}

std::size_t HashOfWords::operator()(const CallWords& words) const noexcept {
  // Each word is mixed with its position and then added, so no step waits for the one before it.
  constexpr std::uint64_t kSeed = 0x9E3779B97F4A7C15;
  constexpr int kShift = 29;
  std::uint64_t hash = 0;
  std::uint64_t place = kSeed;
  for (const std::uint64_t word : words) {
    const std::uint64_t product = (word ^ place) * kSeed;
    hash += product ^ (product >> kShift);
    place += kSeed;
  }
  return hash;
}

}  // namespace trireme::tensor
