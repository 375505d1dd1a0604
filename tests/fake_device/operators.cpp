// SPDX-License-Identifier: Apache-2.0
// Operators of the fake devices. A few are their own, because they make memory, move it, or
// only look at it in another way; all others are the processor's, on tensors of the processor in
// the same memory.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <tests/fake_device/device.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace trireme::testing::fake {
namespace {

using c10::DeviceIndex;
using torch::jit::Stack;

// The bytes between the first and the last element.
Access access_to(const at::Tensor& tensor, bool writes) {
  if (tensor.numel() == 0) return {};
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return {.data = static_cast<const char*>(tensor.storage().data()) +
                  tensor.storage_offset() * static_cast<std::int64_t>(tensor.itemsize()),
          .bytes = static_cast<std::size_t>(last + 1) * tensor.itemsize(),
          .writes = writes};
}

at::Tensor tensor_in(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                      like.storage_offset());
  return tensor;
}

// What one operator borrows from a device: its tensors as the processor's.
class Borrowed {
 public:
  explicit Borrowed(std::string name) : name_(std::move(name)) {}

  void set_device(DeviceIndex index, const std::string& what) {
    TORCH_CHECK(!device_ || *device_ == index, name_, " was given ", what,
                " on fake:", static_cast<int>(index),
                " beside others on fake:", device_ ? static_cast<int>(*device_) : -1);
    device_ = index;
  }
  std::optional<DeviceIndex> device() const { return device_; }

  // Returns the processor's tensor in the same memory.
  at::Tensor lend(const at::Tensor& tensor, bool writes) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_privateuseone()) {
      TORCH_CHECK(tensor.dim() == 0, name_, " was given a tensor of sizes ", tensor.sizes(), " on ",
                  tensor.device(), " beside others on a fake device");
      return tensor;
    }
    set_device(tensor.get_device(), c10::str("a tensor of sizes ", tensor.sizes()));
    accesses_.push_back(access_to(tensor, writes));
    c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    auto& lent = tensors_[impl];
    if (!lent.alias.defined()) {
      lent = {.own = tensor,
              .alias = tensor_in(lend(tensor.storage()), c10::DispatchKey::CPU, tensor)};
    }
    lent.is_written = lent.is_written || writes;
    return lent.alias;
  }

  // Gives the device's stream what the operator does.
  void begin() const {
    if (device_) Machine::get().run(current_place(*device_), accesses_);
  }

  // What is written may have been given other sizes, and memory of the processor.
  void end() {
    for (auto& [impl, lent] : tensors_) {
      if (!lent.is_written) continue;
      const c10::Storage& memory = lent.alias.storage();
      const c10::Storage& own = lent.own.storage();
      if (memory.data() != on_host(own.data())) {
        resize(own, memory.nbytes());
        if (memory.nbytes() > 0) {
          std::memcpy(on_host(own.mutable_data()), memory.data(), memory.nbytes());
        }
      }
      if (lent.alias.sizes() != lent.own.sizes() || lent.alias.strides() != lent.own.strides()) {
        impl->set_sizes_and_strides(lent.alias.sizes(), lent.alias.strides(),
                                    lent.alias.storage_offset());
      }
    }
  }

  // Returns the device's tensor for a result: a view of one that was lent, or new.
  at::Tensor take(const at::Tensor& result) {
    if (!result.defined() || !device_) return result;
    const c10::StorageImpl* const memory = result.storage().unsafeGetStorageImpl();
    auto found = std::ranges::find_if(storages_, [&](const auto& entry) {
      return entry.second.alias.unsafeGetStorageImpl() == memory;
    });
    if (found == storages_.end()) {
      const c10::Storage copy = copy_of(result.storage());
      found = storages_
                  .emplace(copy.unsafeGetStorageImpl(),
                           LentStorage{.own = copy, .alias = result.storage()})
                  .first;
    }
    at::Tensor own = tensor_in(found->second.own, c10::DispatchKey::PrivateUse1, result);
    return own;
  }

 private:
  struct LentTensor {
    at::Tensor own;
    at::Tensor alias;
    bool is_written = false;
  };
  struct LentStorage {
    c10::Storage own;
    c10::Storage alias;
  };

  c10::Storage lend(const c10::Storage& own) {
    auto& lent = storages_[own.unsafeGetStorageImpl()];
    if (!lent.alias) {
      lent = {.own = own,
              .alias = c10::Storage(c10::Storage::use_byte_size_t(), own.nbytes(),
                                    c10::DataPtr(on_host(own.mutable_data()), c10::kCPU),
                                    c10::GetCPUAllocator(), /*resizable=*/true)};
    }
    return lent.alias;
  }

  c10::Storage copy_of(const c10::Storage& memory) const {
    const c10::DeviceGuard guard(c10::Device(c10::kPrivateUse1, *device_));
    c10::Allocator* const allocator = c10::GetAllocator(c10::kPrivateUse1);
    c10::Storage copy(c10::Storage::use_byte_size_t(), memory.nbytes(),
                      allocator->allocate(memory.nbytes()), allocator, /*resizable=*/true);
    if (memory.nbytes() > 0) {
      std::memcpy(on_host(copy.mutable_data()), memory.data(), memory.nbytes());
    }
    const Access written = {.data = copy.data(), .bytes = memory.nbytes(), .writes = true};
    Machine::get().run(current_place(*device_), {&written, 1});
    return copy;
  }

  std::string name_;
  std::optional<DeviceIndex> device_;
  std::vector<Access> accesses_;
  std::map<c10::TensorImpl*, LentTensor> tensors_;
  std::map<c10::StorageImpl*, LentStorage> storages_;
};

c10::IValue lend(Borrowed& borrowed, const c10::IValue& value, bool writes) {
  if (value.isTensor()) return borrowed.lend(value.toTensor(), writes);
  if (value.isTensorList()) {
    c10::List<at::Tensor> lent;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      lent.push_back(borrowed.lend(tensor, writes));
    }
    return lent;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> lent;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      lent.push_back(tensor ? std::optional(borrowed.lend(*tensor, writes)) : std::nullopt);
    }
    return lent;
  }
  if (value.isDevice() && value.toDevice().is_privateuseone()) {
    const c10::Device device = value.toDevice();
    const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
    borrowed.set_device(device.has_index() ? device.index() : guard.getDevice().index(),
                        "its device");
    return c10::Device(c10::kCPU);
  }
  return value;
}

c10::IValue take(Borrowed& borrowed, const c10::IValue& value) {
  if (value.isTensor()) return borrowed.take(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> taken;
    for (const at::Tensor& tensor : value.toTensorVector()) taken.push_back(borrowed.take(tensor));
    return taken;
  }
  return value;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// The argument that an operator in place, or with `out`, returns.
std::optional<std::size_t> returned_argument(const c10::FunctionSchema& schema,
                                             const c10::Argument& result) {
  if (!is_written(result)) return std::nullopt;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (is_written(argument) &&
        argument.alias_info()->beforeSets() == result.alias_info()->beforeSets()) {
      return i;
    }
  }
  return std::nullopt;
}

void wait_on_host(DeviceIndex device) {
  Machine& machine = Machine::get();
  machine.wait_on_host(machine.progress_of(current_place(device)));
}

// The processor's kernel of any operator.
void run_on_processor(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t num_arguments = schema.arguments().size();
  const std::size_t begin = stack->size() - num_arguments;
  const std::vector<c10::IValue> given(stack->begin() + static_cast<std::ptrdiff_t>(begin),
                                       stack->end());
  Borrowed borrowed(schema.operator_name().name);
  for (std::size_t i = 0; i < num_arguments; ++i) {
    (*stack)[begin + i] = lend(borrowed, given[i], is_written(schema.arguments()[i]));
  }
  for (std::size_t i = 0; i < num_arguments; ++i) {
    if (!given[i].isNone() || schema.arguments()[i].name() != "generator") continue;
    if (!borrowed.device()) continue;
    const at::Device device(c10::kPrivateUse1, *borrowed.device());
    (*stack)[begin + i] = at::globalContext().defaultGenerator(device);
  }
  borrowed.begin();
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  borrowed.end();

  const std::size_t num_results = schema.returns().size();
  const std::size_t results = stack->size() - num_results;
  bool tells_host = false;
  for (std::size_t i = 0; i < num_results; ++i) {
    c10::IValue& result = (*stack)[results + i];
    const auto same = returned_argument(schema, schema.returns()[i]);
    if (same) {
      result = given[*same];
    } else if (result.isTensor() || result.isTensorList()) {
      result = take(borrowed, result);
    } else {
      tells_host = true;
    }
  }
  if (tells_host && borrowed.device()) wait_on_host(*borrowed.device());
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(at::Device(c10::kPrivateUse1)));
  return at::detail::empty_generic(sizes, c10::GetAllocator(c10::kPrivateUse1),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(at::Device(c10::kPrivateUse1)));
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(c10::kPrivateUse1),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor on_processor(Borrowed& borrowed, const at::Tensor& tensor, bool writes) {
  return tensor.is_privateuseone() ? borrowed.lend(tensor, writes) : tensor;
}

// As CUDA does it: on the current stream of the device that is read, behind what the current stream
// of the other device was given, which then waits for it. A copy that blocks lets the host wait.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Borrowed reading("copy_");
  Borrowed writing("copy_");
  const at::Tensor source = on_processor(reading, from, false);
  const at::Tensor destination = on_processor(writing, to, true);
  Machine& machine = Machine::get();
  const auto source_device = reading.device();
  const auto destination_device = writing.device();
  const Place place = current_place(source_device ? *source_device : *destination_device);
  const std::array accesses = {access_to(from, false), access_to(to, true)};
  if (source_device && destination_device && *source_device != *destination_device) {
    const Place other = current_place(*destination_device);
    machine.wait_on_stream(place, machine.progress_of(other));
    machine.run(place, accesses);
    machine.wait_on_stream(other, machine.progress_of(place));
  } else {
    machine.run(place, accesses);
  }
  destination.copy_(source);
  const bool with_processor = !source_device || !destination_device;
  const at::Tensor& others = source_device ? to : from;
  if (with_processor && !(non_blocking && others.is_pinned())) {
    machine.wait_on_host(machine.progress_of(place));
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return at::_copy_from(from, to);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  Borrowed borrowed("item");
  const at::Tensor alias = borrowed.lend(tensor, false);
  borrowed.begin();
  wait_on_host(*borrowed.device());
  return alias.item();
}

void make_room(const at::Tensor& tensor) {
  const std::size_t bytes =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                       static_cast<std::size_t>(tensor.storage_offset()));
  if (tensor.numel() > 0 && tensor.storage().nbytes() < bytes) resize(tensor.storage(), bytes);
}

const at::Tensor& resize_tensor(const at::Tensor& tensor, at::IntArrayRef sizes,
                                std::optional<at::MemoryFormat> format) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (tensor.sizes() != sizes) impl->set_sizes_contiguous(sizes);
  if (format) impl->empty_tensor_restride(*format);
  make_room(tensor);
  return tensor;
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage source, std::int64_t offset,
                        at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::native::checkSetStorage(tensor, std::move(source), offset, sizes, strides);
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (strides.data() != nullptr) {
    impl->set_sizes_and_strides(sizes, strides);
  } else {
    impl->set_sizes_contiguous(sizes);
  }
  make_room(tensor);
  return tensor;
}

at::Tensor& set_whole_storage(at::Tensor& tensor, at::Storage source) {
  return at::native::set_(tensor, std::move(source));
}

at::Tensor& set_nothing(at::Tensor& tensor) {
  c10::Allocator* const allocator = c10::GetAllocator(c10::kPrivateUse1);
  const c10::DeviceGuard guard(tensor.device());
  const c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, allocator->allocate(0), allocator,
                             /*resizable=*/true);
  return set_storage(tensor, nothing, 0, {0}, {});
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool is_transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  Borrowed borrowed("convolution");
  const at::Tensor in = borrowed.lend(input, false);
  const at::Tensor by = borrowed.lend(weight, false);
  const std::optional<at::Tensor> plus =
      bias ? std::optional(borrowed.lend(*bias, false)) : std::nullopt;
  borrowed.begin();
  return borrowed.take(at::convolution(in, by, plus, stride, padding, dilation, is_transposed,
                                       output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool is_transposed,
    at::IntArrayRef output_padding, std::int64_t groups, std::array<bool, 3> wanted) {
  Borrowed borrowed("convolution_backward");
  const at::Tensor of_output = borrowed.lend(gradient, false);
  const at::Tensor in = borrowed.lend(input, false);
  const at::Tensor by = borrowed.lend(weight, false);
  borrowed.begin();
  const std::array<std::int64_t, 1> bias_sizes = {gradient.size(1)};
  const auto [of_input, of_weight, of_bias] =
      at::convolution_backward(of_output, in, by, at::OptionalIntArrayRef(bias_sizes), stride,
                               padding, dilation, is_transposed, output_padding, groups, wanted);
  return {borrowed.take(of_input), borrowed.take(of_weight), borrowed.take(of_bias)};
}

// Module::to asks it, whose own answer knows the devices of LibTorch alone.
bool has_compatible_type(const at::Tensor& tensor, const at::Tensor& other) {
  const auto is_plain = [](const at::Tensor& one) {
    return one.layout() == at::kStrided && (one.is_cpu() || one.is_privateuseone());
  };
  return is_plain(tensor) && is_plain(other);
}

// LibTorch asks devices for this where it runs bernoulli_, div_ and mul on the processor. To have
// its bits, the mask is what those multiply by: noise that is scaled already.
std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double probability,
                                           std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input)};
  const at::Tensor noise = at::empty_like(input).bernoulli_(1 - probability);
  noise.div_(1 - probability);
  return {input.mul(noise), noise};
}

at::Tensor dropout_backward(const at::Tensor& gradient, const at::Tensor& noise, double /*scale*/) {
  return gradient.mul(noise);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_processor>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  library.impl("resize_", TORCH_FN(resize_tensor));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("record_stream", TORCH_FN(record_stream));
  library.impl("set_", TORCH_FN(set_nothing));
  library.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  library.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_type));
  library.impl("native_dropout", TORCH_FN(dropout));
  library.impl("native_dropout_backward", TORCH_FN(dropout_backward));
  library.impl("convolution_overrideable", TORCH_FN(convolution));
  library.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

}  // namespace
}  // namespace trireme::testing::fake
