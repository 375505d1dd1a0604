// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/distributed_meta.h>

#include <trireme/tensor/dispatch/planned_layouts.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/ops/empty.h>
#include <c10/core/AutogradState.h>

#include <array>
#include <cstddef>
#include <memory>

namespace trireme::tensor {
namespace {

c10::DispatchKeySet keys_for(const at::Tensor& local) {
  // TensorImpl's constructor adds the autograd keys but not the autocast keys, and PrivateUse2 has
  // no autocast key of its own.
  const auto autocast =
      local.is_cuda() ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;
  return c10::DispatchKeySet(c10::DispatchKey::PrivateUse2) | c10::DispatchKeySet(autocast);
}

#ifdef __SANITIZE_ADDRESS__
constexpr bool kSpares = false;  // reuse would hide a use of a wrapper after it was freed
#else
constexpr bool kSpares = true;
#endif

// Memory of freed wrappers of this thread, for reuse: the memory of a TensorImpl, and an ExtraMeta
// with its DistributedMeta. Wrappers are as short-lived as activations, and four allocations would
// take longer than the rest of making one. The thread that frees a wrapper keeps its memory. The
// class is constant-initialized and has no destructor, because tensors may outlive other thread
// locals.
class Spares {
 public:
  void* take_memory() noexcept { return num_memory_ > 0 ? memory_[--num_memory_] : nullptr; }
  std::unique_ptr<c10::ExtraMeta> take_meta() noexcept {
    return std::unique_ptr<c10::ExtraMeta>(num_metas_ > 0 ? metas_[--num_metas_] : nullptr);
  }

  // Returns false where enough is kept already.
  bool keep_memory(void* memory) noexcept {
    if (num_memory_ == most_) return false;
    empty_at_exit();
    memory_[num_memory_++] = memory;
    return true;
  }
  void keep_meta(std::unique_ptr<c10::ExtraMeta> meta) noexcept {
    if (num_metas_ == most_) return;
    empty_at_exit();
    metas_[num_metas_++] = meta.release();
  }

 private:
  struct AtExit {
    ~AtExit();
  };

  static void empty_at_exit() noexcept;

  static constexpr std::size_t kMost = 256;
  std::array<void*, kMost> memory_ = {};
  std::array<c10::ExtraMeta*, kMost> metas_ = {};
  std::size_t num_memory_ = 0;
  std::size_t num_metas_ = 0;
  std::size_t most_ = kSpares ? kMost : 0;  // 0 once the thread has ended
};

constinit thread_local Spares spares = {};

Spares::AtExit::~AtExit() {
  while (void* const memory = spares.take_memory()) ::operator delete(memory);
  while (spares.num_metas_ > 0) spares.take_meta();
  spares.most_ = 0;
}

void Spares::empty_at_exit() noexcept {
  thread_local const AtExit at_exit;
  static_cast<void>(at_exit);
}

// While it lives, TensorImpls are constructed without a version counter, which LibTorch makes
// dependent on inference mode. The wrapper then reuses a spare one.
class WithoutVersion {
 public:
  WithoutVersion() noexcept
      : state_(c10::AutogradState::get_tls_state()), is_inference_(state_.get_inference_mode()) {
    state_.set_inference_mode(true);
  }
  ~WithoutVersion() { state_.set_inference_mode(is_inference_); }
  WithoutVersion(const WithoutVersion&) = delete;
  WithoutVersion& operator=(const WithoutVersion&) = delete;

  // Returns true if the caller is in inference mode, where tensors have no version counter.
  bool is_inference() const noexcept { return is_inference_; }

 private:
  c10::AutogradState& state_;
  bool is_inference_;
};

// The message of LibTorch's error where something reads the memory of a distributed tensor:
// printing, torch::save, data_ptr() and accessors.
constexpr const char* kNoMemory =
    "a distributed tensor has no memory of its own. To print or save it, take all of it: "
    "trireme::full(x), on every rank; trireme::to_local(x) is this rank's part. Modules and "
    "optimizers are saved by trireme::save_checkpoint. Functions that read memory run on whole "
    "tensors within trireme::run_replicated";

// Returns true if `extra` holds more than the backend's meta. A template, because LibTorch 2.11 has
// no fields for fake tensors.
template <typename ExtraMeta>
bool holds_more(const ExtraMeta& extra) {
  if constexpr (requires { extra.fake_tensor_mode_; }) {
    if (extra.fake_device_ || extra.fake_tensor_mode_) return true;
  }
  return extra.symbolic_shape_meta_ != nullptr;
}

struct DistributedImpl final : c10::TensorImpl {
  // The device of a wrapper over a local meta tensor (planning) is CPU: composite operators then
  // take the same branches as on CPU.
  DistributedImpl(at::Tensor&& local, const Layout& layout, const WithoutVersion& without)
      : TensorImpl(keys_for(local), local.dtype(),
                   local.is_meta() ? c10::Device(c10::DeviceType::CPU) : local.device()) {
    set_storage_access_should_throw();
    hold(std::move(local), layout);
    if (without.is_inference()) return;
    key_set_ =
        key_set_ | c10::getAutogradRelatedKeySetFromBackend(c10::BackendComponent::PrivateUse2Bit);
    version_counter_ = std::exchange(own_meta().spare_version, c10::VariableVersion::DISABLED);
    if (!version_counter_.enabled()) version_counter_ = c10::VariableVersion(0);
  }

  ~DistributedImpl() override {
    // Keeps the meta for the next wrapper, unless something else refers to it.
    if (extra_meta_ == nullptr || !extra_meta_->backend_meta_) return;
    const c10::ExtraMeta& extra = *extra_meta_;
    if (holds_more(extra) || extra.backend_meta_.use_count() != 1) return;
    DistributedMeta& meta = own_meta();
    meta.local.reset();
    meta.layout = Layout();
    const bool is_new = version_counter_.enabled() && version_counter_.unique() &&
                        version_counter_.current_version() == 0;
    if (is_new) meta.spare_version = std::move(version_counter_);
    spares.keep_meta(std::move(extra_meta_));
  }

  DistributedImpl(const DistributedImpl&) = delete;
  DistributedImpl& operator=(const DistributedImpl&) = delete;

  static void* operator new(std::size_t bytes) {
    void* const memory = spares.take_memory();
    return memory != nullptr ? memory : ::operator new(bytes);
  }
  static void operator delete(void* memory) {
    if (!spares.keep_memory(memory)) ::operator delete(memory);
  }

  // Copies what set_sizes_and_strides computed for the example.
  void take_geometry(const DistributedImpl& example) {
    sizes_and_strides_ = example.sizes_and_strides_;
    storage_offset_ = example.storage_offset_;
    numel_ = example.numel_;
    is_contiguous_ = example.is_contiguous_;
    is_channels_last_ = example.is_channels_last_;
    is_channels_last_contiguous_ = example.is_channels_last_contiguous_;
    is_channels_last_3d_ = example.is_channels_last_3d_;
    is_channels_last_3d_contiguous_ = example.is_channels_last_3d_contiguous_;
    is_non_overlapping_and_dense_ = example.is_non_overlapping_and_dense_;
  }

  DistributedMeta& own_meta() const {
    return static_cast<DistributedMeta&>(*extra_meta_->backend_meta_);
  }

  const char* tensorimpl_type_name() const override { return "a distributed tensor"; }

 private:
  void hold(at::Tensor&& local, const Layout& layout) {
    extra_meta_ = spares.take_meta();
    if (extra_meta_ == nullptr) {
      set_backend_meta(c10::make_intrusive<DistributedMeta>(std::move(local), layout));
      extra_meta_->custom_data_ptr_error_msg_ = kNoMemory;
      extra_meta_->custom_storage_error_msg_ = kNoMemory;
      return;
    }
    DistributedMeta& meta = own_meta();
    meta.local = std::move(local);
    meta.layout = layout;
    meta.is_copy_of_view = false;
    meta.as_weight = nullptr;
    meta.is_own = false;
  }
};

// Copies the flags of the local tensor that the dispatcher reads.
void mirror_flags(c10::TensorImpl& impl, const at::Tensor& local) {
  if (local.unsafeGetTensorImpl()->is_wrapped_number()) impl.set_wrapped_number(true);
  if (local.is_conj() != impl.is_conj()) impl._set_conj(local.is_conj());
  if (local.is_neg() != impl.is_neg()) impl._set_neg(local.is_neg());
}

c10::intrusive_ptr<DistributedImpl> make_impl(at::Tensor&& local, const Layout& layout,
                                              c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                              std::int64_t offset) {
  auto impl = c10::make_intrusive<DistributedImpl>(std::move(local), layout, WithoutVersion());
  impl->set_sizes_and_strides(sizes, strides, offset);
  mirror_flags(*impl, impl->own_meta().local);
  return impl;
}

}  // namespace

c10::intrusive_ptr<c10::BackendMeta> DistributedMeta::clone(
    const c10::intrusive_ptr<c10::BackendMeta>& /*meta*/) const {
  auto copy = c10::make_intrusive<DistributedMeta>(
      at::Tensor(
          local.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true)),
      layout);
  copy->is_copy_of_view = is_copy_of_view;
  copy->as_weight = as_weight;
  is_own = false;  // the copy has the same memory
  return copy;
}

Geometry geometry_of(const at::Tensor& tensor) {
  Geometry geometry;
  geometry.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  geometry.strides.assign(tensor.strides().begin(), tensor.strides().end());
  geometry.offset = tensor.storage_offset();
  return geometry;
}

Geometry dense_geometry(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  Geometry geometry;
  geometry.sizes.assign(sizes.begin(), sizes.end());
  geometry.strides = dense_strides(strides, sizes);
  return geometry;
}

at::Tensor wrap(at::Tensor local, const Layout& layout, c10::IntArrayRef sizes,
                c10::IntArrayRef strides, std::int64_t offset) {
  return at::Tensor(make_impl(std::move(local), layout, sizes, strides, offset));
}

at::Tensor wrap(at::Tensor local, const Layout& layout, const Geometry& geometry) {
  if (!geometry.example) {
    return wrap(std::move(local), layout, geometry.sizes, geometry.strides, geometry.offset);
  }
  auto impl = c10::make_intrusive<DistributedImpl>(std::move(local), layout, WithoutVersion());
  impl->take_geometry(static_cast<const DistributedImpl&>(*geometry.example));
  mirror_flags(*impl, impl->own_meta().local);
  return at::Tensor(std::move(impl));
}

void add_example(Geometry& geometry) {
  geometry.example =
      make_impl(at::empty({0}), Layout(), geometry.sizes, geometry.strides, geometry.offset);
}

at::Tensor wrap_replicated(at::Tensor local, const Layout& layout) {
  const c10::TensorImpl& impl = *local.unsafeGetTensorImpl();
  return at::Tensor(
      make_impl(std::move(local), layout, impl.sizes(), impl.strides(), impl.storage_offset()));
}

void convert_in_place(const at::Tensor& tensor, at::Tensor local, const Layout& layout,
                      const Geometry& geometry) {
  // set_data would check that the types match; shallow_copy_from does not.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(
      make_impl(std::move(local), layout, geometry.sizes, geometry.strides, geometry.offset));
  distributed_meta(tensor).as_weight =
      layouts_of_weight(*layout.mesh_state(), tensor.unsafeGetTensorImpl());
}

void replace_local(const at::Tensor& tensor, at::Tensor local, const Layout& layout,
                   const Geometry& geometry) {
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(geometry.sizes, geometry.strides,
                                                      geometry.offset);
  DistributedMeta& meta = distributed_meta(tensor);
  meta.local = std::move(local);
  meta.layout = layout;
}

}  // namespace trireme::tensor
