// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/zero/optimizer_slices.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/optim/lamb.h>
#include <trireme/optim/state_fields.h>
#include <trireme/parallel/buckets/bucket_layout.h>
#include <trireme/parallel/module/local_memory.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/optim.h>

#include <algorithm>
#include <memory>
#include <typeinfo>
#include <utility>

namespace trireme::detail {
namespace {

namespace optim = torch::optim;
using State = optim::OptimizerParamState;

// Returns a copy of this rank's part of `like_parameter`, a tensor in the parameter's layout.
at::Tensor part_of(const at::Tensor& like_parameter, const SlicedParameter& sliced) {
  const at::Tensor tensor = memory_like(sliced.parameter, like_parameter);
  return tensor.as_strided({sliced.part.numel()}, {1}, tensor.storage_offset() + sliced.offset)
      .to(sliced.part.device(), tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

// Returns the range of `piece` in `of_part`, a tensor shaped as the part, starting at `begin`.
at::Tensor like(const at::Tensor& piece, const at::Tensor& of_part, std::int64_t begin) {
  return slice_of(of_part, of_part.storage_offset() + begin, piece.sizes(), piece.strides());
}

std::unique_ptr<State> cut(const State& whole, const SlicedParameter& sliced) {
  std::unique_ptr<State> state = whole.clone();
  for (at::Tensor* tensor : fields_of(*state).tensors) {
    if (!tensor->defined()) continue;
    *tensor = part_of(*tensor, sliced);
  }
  return state;
}

using States = std::remove_reference_t<decltype(std::declval<optim::Optimizer&>().state())>;

std::unique_ptr<State> extract(States& states, const at::Tensor& tensor) {
  const auto found = states.find(tensor.unsafeGetTensorImpl());
  if (found == states.end()) return nullptr;
  std::unique_ptr<State> state = std::move(found->second);
  states.erase(found);
  return state;
}

// Replaces each tensor of each group by those that `replace(tensor, stepped)` appends to `stepped`.
template <typename Replace>
void replace_stepped(optim::Optimizer& optimizer, const Replace& replace) {
  for (optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    std::vector<at::Tensor> stepped;
    for (const at::Tensor& tensor : group.params()) replace(tensor, stepped);
    group.params() = std::move(stepped);
  }
}

}  // namespace

void check_can_step_parts(const optim::Optimizer& optimizer) {
  if (has_known_state(optimizer)) return;
  throw UsageError(
      join_message("an optimizer of type ", c10::demangle(typeid(optimizer).name()),
                   " cannot step slices of parameters: ",
                   dynamic_cast<const optim::LBFGS*>(&optimizer) != nullptr
                       ? "LBFGS takes inner products over all of them"
                       : "only SGD, Adam, AdamW, RMSprop and Adagrad are known to treat every "
                         "element alone, and LAMB to add up norms over ranks"),
      "use one of those, or a plan with zero_level 0");
}

OptimizerSlices::OptimizerSlices(std::vector<SlicedParameter> parameters,
                                 std::vector<std::int64_t> bucket_elements, comm::Group group)
    : parameters_(std::move(parameters)),
      bucket_elements_(std::move(bucket_elements)),
      group_(std::move(group)) {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const SlicedParameter& sliced = parameters_[index];
    parts_[sliced.part.unsafeGetTensorImpl()] = index;
    for (const at::Tensor& piece : sliced.pieces) parts_[piece.unsafeGetTensorImpl()] = index;
  }
}

const SlicedParameter* OptimizerSlices::of_part(const at::Tensor& part) const {
  const auto found = parts_.find(part.unsafeGetTensorImpl());
  return found == parts_.end() ? nullptr : &parameters_[found->second];
}

bool OptimizerSlices::steps_parts(const optim::Optimizer& optimizer) const {
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    if (std::ranges::any_of(group.params(), [&](const auto& tensor) { return is_part(tensor); })) {
      return true;
    }
  }
  return false;
}

const SlicedParameter* OptimizerSlices::find(const at::Tensor& parameter) const {
  const auto found = std::ranges::find_if(parameters_, [&](const SlicedParameter& sliced) {
    return sliced.parameter.is_same(parameter);
  });
  return found == parameters_.end() ? nullptr : &*found;
}

const optim::Optimizer* OptimizerSlices::taker_of(const at::Tensor& parameter) const {
  const auto found = takers_.find(parameter.unsafeGetTensorImpl());
  return found == takers_.end() ? nullptr : found->second;
}

const at::Tensor* OptimizerSlices::find_untaken() const {
  const auto found = std::ranges::find_if(parameters_, [&](const SlicedParameter& sliced) {
    // A part held only by the shards and this list has no optimizer any more.
    const at::Tensor& held = sliced.pieces.empty() ? sliced.part : sliced.pieces.front();
    const std::size_t own_holders = held.numel() > 0 ? 2 : 1;
    return taker_of(sliced.parameter) == nullptr || held.use_count() <= own_holders;
  });
  return found == parameters_.end() ? nullptr : &found->parameter;
}

void OptimizerSlices::take_over(optim::Optimizer& optimizer) {
  check_can_step_parts(optimizer);
  if (steps_parts(optimizer)) {
    throw UsageError("this optimizer steps slices of the parameters already",
                     "call shard once for each optimizer");
  }
  // A destroyed optimizer may have had the same address.
  std::erase(taken_, &optimizer);
  std::unordered_map<const c10::TensorImpl*, const SlicedParameter*> sliced;
  for (const SlicedParameter& parameter : parameters_) {
    sliced[parameter.parameter.unsafeGetTensorImpl()] = &parameter;
  }
  bool has_any = false;
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      has_any = has_any || sliced.contains(parameter.unsafeGetTensorImpl());
    }
  }
  if (!has_any) {
    throw UsageError("this optimizer has none of the parameters that the plan cuts",
                     "give shard an optimizer of the module's parameters; one that was sharded "
                     "before needs unshard before its Parallelized goes");
  }
  for (optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (at::Tensor& stepped : group.params()) {
      const auto found = sliced.find(stepped.unsafeGetTensorImpl());
      if (found == sliced.end()) continue;  // belongs to another module, or is frozen
      at::Tensor parameter = std::exchange(stepped, found->second->part);
      const std::unique_ptr<State> whole = extract(optimizer.state(), parameter);
      takers_[parameter.unsafeGetTensorImpl()] = &optimizer;
      const at::Tensor gradient = std::exchange(parameter.mutable_grad(), {});
      if (stepped.numel() == 0) continue;
      // A gradient with other strides cannot be cut by an offset, and is dropped.
      const bool is_like = gradient.defined() && gradient.layout() == at::kStrided &&
                           gradient.strides() == parameter.strides();
      if (is_like) {
        stepped.mutable_grad() = part_of(gradient, *found->second);
      }
      if (whole) optimizer.state()[stepped.unsafeGetTensorImpl()] = cut(*whole, *found->second);
    }
  }
  taken_.push_back(&optimizer);
  split(optimizer);
  set_lamb_parts(optimizer, this, group_, [this](const at::Tensor& tensor) {
    const SlicedParameter* const sliced = of_part(tensor);
    return sliced == nullptr ? nullptr : &sliced->parameter;
  });
}

void OptimizerSlices::split(optim::Optimizer& optimizer) const {
  std::unordered_map<const c10::TensorImpl*, const SlicedParameter*> in_pieces;
  for (const SlicedParameter& sliced : parameters_) {
    if (!sliced.pieces.empty()) in_pieces[sliced.part.unsafeGetTensorImpl()] = &sliced;
  }
  replace_stepped(optimizer, [&](const at::Tensor& tensor, std::vector<at::Tensor>& stepped) {
    const auto found = in_pieces.find(tensor.unsafeGetTensorImpl());
    if (found == in_pieces.end()) {
      stepped.push_back(tensor);
      return;
    }
    const std::vector<at::Tensor>& pieces = found->second->pieces;
    stepped.insert(stepped.end(), pieces.begin(), pieces.end());
    const at::Tensor gradient = std::exchange(at::Tensor(tensor).mutable_grad(), {});
    const std::unique_ptr<State> whole = extract(optimizer.state(), tensor);
    std::int64_t begin = 0;
    for (const at::Tensor& piece : pieces) {
      if (gradient.defined()) at::Tensor(piece).mutable_grad() = like(piece, gradient, begin);
      if (whole) {
        std::unique_ptr<State> state = whole->clone();
        for (at::Tensor* field : fields_of(*state).tensors) {
          if (field->defined()) *field = like(piece, *field, begin);
        }
        optimizer.state()[piece.unsafeGetTensorImpl()] = std::move(state);
      }
      begin += piece.numel();
    }
  });
}

void OptimizerSlices::join(optim::Optimizer& optimizer) const {
  const at::NoGradGuard no_grad;
  std::unordered_map<const c10::TensorImpl*, const SlicedParameter*> of_piece;
  for (const SlicedParameter& sliced : parameters_) {
    for (const at::Tensor& piece : sliced.pieces) of_piece[piece.unsafeGetTensorImpl()] = &sliced;
  }
  replace_stepped(optimizer, [&](const at::Tensor& tensor, std::vector<at::Tensor>& stepped) {
    const auto found = of_piece.find(tensor.unsafeGetTensorImpl());
    if (found == of_piece.end()) {
      stepped.push_back(tensor);
      return;
    }
    const SlicedParameter& sliced = *found->second;
    if (!tensor.is_same(sliced.pieces.front())) return;  // the first piece stands for all
    stepped.push_back(sliced.part);
    std::vector<std::unique_ptr<State>> states;
    for (const at::Tensor& piece : sliced.pieces) {
      states.push_back(extract(optimizer.state(), piece));
    }
    if (!states.front()) return;
    std::unique_ptr<State> whole = states.front()->clone();
    const auto fields = fields_of(*whole).tensors;
    for (std::size_t field = 0; field < fields.size(); ++field) {
      if (!fields[field]->defined()) continue;
      std::vector<at::Tensor> values;
      for (const auto& state : states) values.push_back(*fields_of(*state).tensors[field]);
      *fields[field] = at::cat(values);
      // Freed at once, so that only one field exists twice at a time.
      for (const auto& state : states) fields_of(*state).tensors[field]->reset();
    }
    optimizer.state()[sliced.part.unsafeGetTensorImpl()] = std::move(whole);
  });
}

void OptimizerSlices::check_taken(const optim::Optimizer& optimizer) const {
  if (std::ranges::find(taken_, &optimizer) != taken_.end()) return;
  throw UsageError("this optimizer does not step slices of these parameters",
                   "call unshard for one that shard was called for");
}

void OptimizerSlices::give_back(optim::Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  const auto taken = std::ranges::find(taken_, &optimizer);
  join(optimizer);
  // Only ranks that have a part of a parameter know if it has state, so the maximum is exchanged.
  const auto count = static_cast<std::int64_t>(parameters_.size());
  const at::Tensor known = at::zeros({count, 2}, at::kLong);  // steps + 1, which tensors (bits)
  std::int64_t* const known_data = known.mutable_data_ptr<std::int64_t>();
  std::vector<std::unique_ptr<State>> own(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    own[i] = extract(optimizer.state(), parameters_[i].part);
    if (!own[i]) continue;
    const StateFields fields = fields_of(*own[i]);
    known_data[2 * i] = 1 + (fields.step == nullptr ? 0 : *fields.step);
    for (std::size_t field = 0; field < fields.tensors.size(); ++field) {
      if (fields.tensors[field]->defined()) known_data[2 * i + 1] |= std::int64_t{1} << field;
    }
  }
  comm::all_reduce(known, group_, comm::ReduceOp::kMaximum, "optimizer state");
  std::vector<std::unique_ptr<State>> whole(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (known_data[2 * i] == 0) continue;
    whole[i] = make_state(optimizer);
    if (std::int64_t* step = fields_of(*whole[i]).step) *step = known_data[2 * i] - 1;
  }
  // One all-gather for each bucket and each tensor of the state.
  for (std::size_t bucket = 0; bucket < bucket_elements_.size(); ++bucket) {
    for (std::size_t field = 0; field < kMostStateTensors; ++field) {
      std::vector<std::size_t> having;
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        const bool has = (known_data[2 * i + 1] >> field & 1) != 0;
        if (has && parameters_[i].bucket == bucket) having.push_back(i);
      }
      if (having.empty()) continue;
      const at::Tensor all =
          at::zeros({bucket_elements_[bucket]},
                    parameters_[having.front()].memory.options().requires_grad(false));
      for (const std::size_t i : having) {
        const SlicedParameter& sliced = parameters_[i];
        if (!own[i]) continue;
        all.narrow(0, sliced.place + sliced.offset, sliced.part.numel())
            .copy_(*fields_of(*own[i]).tensors[field]);
      }
      const std::int64_t slice = all.numel() / group_.size();
      at::Tensor own_slice = all.narrow(0, group_.rank() * slice, slice);
      // Only shared memory allows input and output to overlap.
      if (group_.shared_memory() == nullptr) own_slice = own_slice.clone();
      comm::all_gather(all, own_slice, group_, "optimizer state");
      for (const std::size_t i : having) {
        const at::Tensor& memory = parameters_[i].memory;
        *fields_of(*whole[i]).tensors[field] =
            as_like(parameters_[i].parameter,
                    slice_of(all, parameters_[i].place, memory.sizes(), memory.strides()).clone());
      }
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (whole[i]) {
      optimizer.state()[parameters_[i].parameter.unsafeGetTensorImpl()] = std::move(whole[i]);
    }
  }
  std::unordered_map<const c10::TensorImpl*, at::Tensor> parameter_of;
  for (const SlicedParameter& sliced : parameters_) {
    parameter_of[sliced.part.unsafeGetTensorImpl()] = sliced.parameter;
  }
  for (optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (at::Tensor& stepped : group.params()) {
      const auto found = parameter_of.find(stepped.unsafeGetTensorImpl());
      if (found == parameter_of.end()) continue;
      stepped = found->second;
      takers_.erase(stepped.unsafeGetTensorImpl());
    }
  }
  taken_.erase(taken);
  forget_lamb_parts(optimizer, this);
}

}  // namespace trireme::detail
