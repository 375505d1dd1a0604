// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/distributed_tensor.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/check_values.h>
#include <trireme/comm/collectives.h>
#include <trireme/tensor/dispatch/decision.h>
#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/dispatch/kernel.h>
#include <trireme/tensor/dry_run/dry_run.h>
#include <trireme/tensor/dry_run/results.h>
#include <trireme/tensor/expert_axis.h>
#include <trireme/tensor/redistribution/redistribution.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <mutex>
#include <utility>

namespace trireme {
namespace {

using tensor::distributed_meta;
using tensor::is_wrapper;
using tensor::Redistribution;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

void install_once() {
  static std::once_flag once;
  std::call_once(once, [] { tensor::install(); });
}

void expect_distributed(const at::Tensor& tensor, const char* what) {
  if (has_layout(tensor)) return;
  throw UsageError(join_message(what, " expects a distributed tensor, got a plain one of ",
                                tensor.defined() ? tensor.sizes() : c10::IntArrayRef()),
                   "make it one with trireme::distribute or trireme::from_local");
}

void expect_plain(const at::Tensor& tensor, const char* what) {
  if (!tensor.defined()) {
    throw UsageError(join_message(what, " expects a tensor, got an undefined one"), "");
  }
  if (is_wrapper(tensor)) {
    throw UsageError(join_message(what, " expects a plain tensor, got ", describe(tensor)),
                     "use trireme::redistribute to change its layout");
  }
}

// Returns `local` in memory whose dims are nested as `strides` say; no copy where they are already.
at::Tensor in_order(const at::Tensor& local, c10::IntArrayRef strides) {
  if (local.dim() != static_cast<std::int64_t>(strides.size())) return local;  // a flat range
  const auto wanted = tensor::dense_strides(strides, local.sizes());
  if (local.strides() == c10::IntArrayRef(wanted)) return local;
  return at::empty_strided(local.sizes(), wanted, local.options()).copy_(local);
}

bool is_dry_run() {
  const tensor::DryRun* const dry_run = tensor::DryRun::of_thread();
  return dry_run != nullptr && dry_run->mode() == tensor::DryRun::Mode::kInstead;
}

// Returns this rank's part in memory of its own.
at::Tensor part_of_full(const at::Tensor& full, const Layout& layout) {
  if (is_dry_run()) return tensor::meta_part(full, layout);
  const Layout replicated = Layout::replicated(layout.mesh());
  const at::Tensor part =
      Redistribution(full.sizes(), full.scalar_type(), replicated, layout)(full);
  return part.is_alias_of(full) ? part.clone() : part;
}

at::Tensor wrapped(const at::Tensor& local, const Layout& layout, c10::IntArrayRef sizes,
                   c10::IntArrayRef strides) {
  install_once();
  return tensor::wrap(in_order(local, strides), layout, tensor::dense_geometry(sizes, strides));
}

at::Tensor wrapped(const at::Tensor& local, const Layout& layout, c10::IntArrayRef sizes) {
  return wrapped(local, layout, sizes, c10::contiguous_strides(sizes));
}

// Returns `local`, copied where it shares memory with the distributed tensor: a write to one would
// change the other.
at::Tensor in_own_memory(const at::Tensor& local, const at::Tensor& distributed) {
  return local.is_alias_of(distributed_meta(distributed).local) ? local.clone() : local;
}

// Returns this rank's local tensor in another layout: by collectives, or by the dry run if one is
// in progress.
at::Tensor local_in(const at::Tensor& tensor, const Layout& layout, std::string_view label) {
  const auto& meta = distributed_meta(tensor);
  if (meta.layout == layout) return meta.local;
  if (auto* const dry_run = tensor::DryRun::of_thread()) {
    if (is_dry_run() && layout.mesh() != meta.layout.mesh()) {
      throw UsageError(
          join_message(label, " to ", layout.to_string(), " on ", layout.mesh().to_string(),
                       ": what a dry run or a capture has is on the mesh ",
                       meta.layout.mesh().to_string()),
          "give the dry run the mesh that hints name; a record of a pipeline has no "
          "layouts: leave hints out of forward, plan.layouts says them");
    }
    return dry_run->moved(tensor, layout, label);
  }
  return Redistribution(tensor.sizes(), tensor.scalar_type(), meta.layout, layout)(meta.local,
                                                                                   label);
}

// With TRIREME_CHECK=values, throws unless every rank of the mesh gives the same value.
void check_equal_on(const DeviceMesh& mesh, const at::Tensor& value, const char* name,
                    const char* what) {
  if (!comm::checks_values() || is_dry_run() || !mesh.contains_this_rank()) return;
  const comm::NamedValue named = {.name = name, .value = value};
  comm::check_equal_values({&named, 1}, mesh.group(), what);
}

// In the check mode, compares values along each axis on which the layout replicates them.
void check_equal_copies(const Layout& layout, const at::Tensor& value, const char* name,
                        const char* what) {
  const DeviceMesh mesh = layout.mesh();
  if (!comm::checks_values() || is_dry_run() || !mesh.contains_this_rank()) return;
  const comm::NamedValue named = {.name = name, .value = value.detach()};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (layout[axis].is_replicate()) {
      comm::check_equal_values({&named, 1}, mesh.group(axis), what);
    }
  }
}

using Map = std::function<at::Tensor(const at::Tensor&)>;

// An autograd node whose forward and backward are given as functions. autograd::Function saves
// IValues only, so the backward function travels in a capsule.
struct MapHolder : torch::CustomClassHolder {
  explicit MapHolder(Map its_map) : map(std::move(its_map)) {}
  Map map;
};
struct Mapped : torch::autograd::Function<Mapped> {
  static Variable forward(AutogradContext* context, const Variable& tensor, const Map& there,
                          const Map& back) {
    context->saved_data["back"] = c10::IValue::make_capsule(c10::make_intrusive<MapHolder>(back));
    context->set_materialize_grads(false);  // materialized zeros would be plain tensors
    return there(tensor);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[0].defined()) return {Variable(), {}, {}};
    const auto holder = context->saved_data["back"].toCapsule();
    return {static_cast<const MapHolder&>(*holder).map(grads[0]), {}, {}};
  }
};

}  // namespace

bool has_layout(const at::Tensor& tensor) { return is_wrapper(tensor); }

Layout layout_of(const at::Tensor& tensor) {
  expect_distributed(tensor, "layout_of");
  return distributed_meta(tensor).layout;
}

at::Tensor distribute(const at::Tensor& full_tensor, const Layout& layout) {
  expect_plain(full_tensor, "distribute");
  check_equal_on(layout.mesh(), full_tensor.detach(), "the tensor",
                 "tensors given to trireme::distribute");
  return Mapped::apply(
      full_tensor,
      [layout](const at::Tensor& plain) {
        return wrapped(part_of_full(plain, layout), layout, plain.sizes(), plain.strides());
      },
      [](const at::Tensor& gradient) { return full(gradient); });
}

void distribute_in_place(const at::Tensor& tensor, const Layout& layout) {
  expect_plain(tensor, "distribute_in_place");
  install_once();
  const at::NoGradGuard no_grad;
  const at::Tensor local = in_order(part_of_full(tensor.detach(), layout), tensor.strides());
  tensor::convert_in_place(tensor, local, layout,
                           tensor::dense_geometry(tensor.sizes(), tensor.strides()));
}

namespace {

at::Tensor from_part(const at::Tensor& local, const Layout& layout, c10::IntArrayRef sizes) {
  const auto expected = local_sizes(sizes, layout, tensor::coordinate_here(layout.mesh()));
  if (local.sizes() != c10::IntArrayRef(expected)) {
    throw UsageError(
        join_message("from_local got a part of ", local.sizes(), " where ", layout.to_string(),
                     " of ", sizes, " gives this rank ", c10::IntArrayRef(expected)),
        "give the part that local_sizes() tells, or leave the sizes out");
  }
  const std::vector<std::int64_t> global(sizes.begin(), sizes.end());
  const Layout of_gradient = layout.without_partial();
  return Mapped::apply(
      local,
      // Detached: autograd goes on through this node, not through the history of the part.
      [layout, global](const at::Tensor& part) { return wrapped(part.detach(), layout, global); },
      [of_gradient](const at::Tensor& gradient) {
        return is_wrapper(gradient) ? to_local(redistribute(gradient, of_gradient)) : gradient;
      });
}

}  // namespace

at::Tensor from_local(const at::Tensor& local, const Layout& layout, c10::IntArrayRef sizes) {
  expect_plain(local, "from_local");
  check_equal_copies(layout, local, "the part",
                     "parts given to trireme::from_local where the layout has Replicate");
  return from_part(local, layout, sizes);
}

at::Tensor from_local(const at::Tensor& local, const Layout& layout) {
  expect_plain(local, "from_local");
  std::vector<std::int64_t> sizes(local.sizes().begin(), local.sizes().end());
  const DeviceMesh mesh = layout.mesh();
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const Placement& placement = layout[axis];
    if (!placement.is_shard() || placement.dim() >= local.dim()) continue;
    // Of several axes that shard one dim, each sums the sizes that the axes before it found.
    at::Tensor size = at::empty({1}, at::kLong);
    std::int64_t& dim_size = sizes[static_cast<std::size_t>(placement.dim())];
    if (is_dry_run()) {  // assumes that all parts are as long as this one
      dim_size *= mesh.size(axis);
      continue;
    }
    *size.mutable_data_ptr<std::int64_t>() = dim_size;
    comm::all_reduce(size, mesh.group(axis), comm::ReduceOp::kSum, "sizes of from_local");
    dim_size = *size.const_data_ptr<std::int64_t>();
  }
  return from_local(local, layout, sizes);
}

namespace {

// Returns true if the next operator may replace the local tensor by one in another layout.
bool may_be_replaced(const tensor::DistributedMeta& meta) {
  if (!meta.is_own || meta.layout.has_partial()) return meta.is_own;
  const DeviceMesh::State& mesh = *meta.layout.mesh_state();
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    if (meta.layout[axis].is_shard() && tensor::shards_experts(mesh, axis)) return true;
  }
  return false;
}

}  // namespace

at::Tensor to_local(const at::Tensor& tensor) {
  expect_distributed(tensor, "to_local");
  const Layout layout = layout_of(tensor);
  const Layout of_gradient = layout.without_partial();
  const std::vector<std::int64_t> sizes(tensor.sizes().begin(), tensor.sizes().end());
  return Mapped::apply(
      tensor,
      [](const at::Tensor& distributed) {
        // A local tensor that keep_complete may replace must not be shared: only the rank whose
        // next operator needs the values would see the replacement.
        const tensor::DistributedMeta& meta = distributed_meta(distributed);
        return may_be_replaced(meta) ? meta.local.clone() : meta.local.detach();
      },
      [of_gradient, sizes](const at::Tensor& gradient) {
        check_equal_copies(
            of_gradient, gradient, "the gradient of trireme::to_local",
            "gradients that arrive at trireme::to_local where the tensor is whole (ranks that do "
            "different things with it sum their gradients by comm::functional::all_reduce before)");
        return from_part(gradient, of_gradient, sizes);
      });
}

at::Tensor full(const at::Tensor& tensor) {
  if (!has_layout(tensor)) return tensor;
  const Layout layout = layout_of(tensor);
  const Layout of_gradient = layout.without_partial();
  return Mapped::apply(
      tensor,
      [layout](const at::Tensor& distributed) {
        const at::Tensor whole = local_in(distributed, Layout::replicated(layout.mesh()), "full");
        return in_own_memory(whole, distributed);
      },
      [of_gradient](const at::Tensor& gradient) {
        check_equal_on(
            of_gradient.mesh(), gradient, "the gradient of trireme::full",
            "gradients that arrive at trireme::full (ranks that do different things with "
            "the whole tensor take comm::functional::all_gather instead)");
        return distribute(gradient, of_gradient);
      });
}

at::Tensor redistribute(const at::Tensor& tensor, const Layout& layout) {
  expect_distributed(tensor, "redistribute");
  const Layout before = layout_of(tensor);
  if (before == layout) return tensor;
  const Layout of_gradient = before.without_partial();
  return Mapped::apply(
      tensor,
      [layout](const at::Tensor& distributed) {
        const at::Tensor local = local_in(distributed, layout, "redistribute");
        return wrapped(in_own_memory(local, distributed), layout, distributed.sizes(),
                       distributed.strides());
      },
      [of_gradient](const at::Tensor& gradient) { return redistribute(gradient, of_gradient); });
}

namespace detail {

at::Tensor whole_input(const at::Tensor& input) {
  if (!has_layout(input) || !is_dry_run()) return full(input);
  return redistribute(input, Layout::replicated(layout_of(input).mesh()));
}

}  // namespace detail

at::Tensor shard(const at::Tensor& tensor, const Layout& layout) {
  return has_layout(tensor) ? redistribute(tensor, layout) : tensor;
}

std::string describe(const at::Tensor& tensor) {
  TextWriter text;
  text << tensor.scalar_type() << " " << tensor.sizes();
  if (!has_layout(tensor)) return text.str() + ", plain";
  const auto& meta = distributed_meta(tensor);
  text << " on " << meta.layout.mesh().to_string() << " as " << meta.layout.to_string() << ", here "
       << meta.local.sizes();
  return text.str();
}

}  // namespace trireme
