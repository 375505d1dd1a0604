// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/gradients/reducer.h>

#include <trireme/base/error.h>
#include <trireme/comm/check_values.h>
#include <trireme/parallel/gradients/sparse_sum.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/any.h>
#include <ATen/ops/real.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <ranges>

namespace trireme::detail {

Reducer::Reducer(const std::vector<NamedTensor>& parameters, const std::vector<at::Tensor>& buffers,
                 const Plan& plan, const comm::Group& group)
    : plan_(plan),
      data_groups_(connect_data_groups(plan, group)),
      memories_(memories_of(parameters)),
      buffers_(buffers, group) {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& item : parameters) {
    slots_.push_back({item, item.tensor.scalar_type(), item.tensor.device()});
    // A single rank has all shards, which are offloaded none the less.
    const bool is_cut =
        (data_groups_.shard.size() > 1 || plan_.offload_optimizer) && !item.has_sparse_gradient;
    zero_levels_.push_back(is_cut ? zero_level_of(plan, item.name) : 0);
  }
  std::vector<std::size_t> reversed(parameters.size());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  std::vector<BucketLayout> layouts = assign(reversed);
  std::vector<BucketLayout> cut;
  std::ranges::copy_if(layouts, std::back_inserter(cut),
                       [](const BucketLayout& layout) { return layout.kind > 0; });
  // Slices are assigned by bucket, so sharded parameters keep their first buckets.
  knows_order_ = !cut.empty();
  if (!cut.empty()) shards_.emplace(parameters, cut, plan_, data_groups_.shard);
  buckets_.emplace(memories_, sums_of(plan_), data_groups_, shards());
  make_buckets(std::move(layouts));
  counts_ = at::zeros(tail_.sizes(), at::kDouble);
}

std::vector<BucketLayout> Reducer::assign(const std::vector<std::size_t>& order) const {
  std::vector<std::size_t> dense;
  std::ranges::copy_if(order, std::back_inserter(dense),
                       [&](std::size_t index) { return !memories_[index].has_sparse_gradient; });
  const std::int64_t bytes = bucket_bytes();
  return assign_buckets(memories_, dense, std::min(plan_.first_bucket_bytes, bytes), bytes,
                        zero_levels_);
}

std::int64_t Reducer::bucket_bytes() const {
  if (plan_.bucket_bytes > 0) return plan_.bucket_bytes;
  std::int64_t all = 0;
  for (const NamedTensor& item : memories_) {
    all += item.tensor.numel() * static_cast<std::int64_t>(item.tensor.element_size());
  }
  constexpr std::int64_t kMiB = 1 << 20;
  return std::clamp(all / 16, kMiB, 25 * kMiB);
}

void Reducer::make_buckets(std::vector<BucketLayout> layouts) {
  layouts_ = std::move(layouts);
  const auto tail = static_cast<std::int64_t>(slots_.size()) + kNumExtras;
  tail_is_apart_ = has_hook_ || !buckets_->can_carry_tail(layouts_);
  buckets_->fill(layouts_, tail_is_apart_ ? 0 : tail);
  tail_ = tail_is_apart_ ? at::zeros({tail}, at::kFloat) : buckets_->tail();
  for (std::size_t number = 0; number < buckets_->size(); ++number) {
    for (const std::size_t slot : buckets_->members(number)) slots_[slot].bucket = number;
  }
}

void Reducer::register_comm_hook(std::shared_ptr<CommHook> hook) {
  const at::NoGradGuard no_grad;
  has_hook_ = hook != nullptr;
  buckets_->register_comm_hook(std::move(hook));
  if (has_hook_ && !tail_is_apart_) {
    tail_is_apart_ = true;
    tail_ = at::zeros(tail_.sizes(), at::kFloat);
  }
}

std::vector<comm::Group> Reducer::groups() const {
  std::vector<comm::Group> groups = data_groups_.streams;
  groups.insert(groups.end(), data_groups_.shard_streams.begin(), data_groups_.shard_streams.end());
  groups.insert(groups.end(), {data_groups_.all, data_groups_.shard, data_groups_.replicas});
  if (shards_) groups.push_back(shards_->gathers());
  return groups;
}

void Reducer::check_parameters() const {
  for (const Slot& slot : slots_) {
    const auto& [name, tensor, has_sparse_gradient] = slot.parameter;
    if (!tensor.requires_grad()) {
      throw UsageError(
          join_message("parameter ", name,
                       " was frozen (requires_grad is false) after parallelize"),
          "freeze parameters before parallelize; make a new Parallelized after a change");
    }
    if (tensor.scalar_type() != slot.dtype || tensor.device() != slot.device) {
      throw UsageError(
          join_message("parameter ", name, " is ", tensor.scalar_type(), " on ", tensor.device(),
                       ", parallelize saw ", slot.dtype, " on ", slot.device),
          "move and cast a module before parallelize");
    }
  }
}

void Reducer::check_optimizers() {
  if (!shards_) return;
  if (const at::Tensor* untaken = shards_->optimizers().find_untaken()) {
    const auto found = std::ranges::find_if(
        slots_, [&](const Slot& slot) { return slot.parameter.tensor.is_same(*untaken); });
    for (const Slot& slot : slots_) at::Tensor(slot.parameter.tensor).mutable_grad().reset();
    throw UsageError(join_message("the plan cuts what optimizers step, and parameter ",
                                  found->parameter.name, " is in none that it knows"),
                     "call shard(optimizer) on what parallelize returned, for each optimizer, "
                     "before the first backward(); a parameter that is not to be trained takes "
                     "set_requires_grad(false) before parallelize");
  }
}

// For TRIREME_CHECK=values. Sharded parameters come from one all-gather, so that only slices that
// several ranks hold (hybrid sharding) are compared.
void Reducer::check_values() const {
  std::vector<NamedTensor> parameters;
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    if (zero_levels_[index] == 0) parameters.push_back(slots_[index].parameter);
  }
  const std::string what = join_message("parameters before step ", num_steps_);
  // Only some ranks make each comparison, so succeed_together() tells its result to all of them.
  succeed_together(
      mesh_.defined() ? mesh_.group() : comm::Group::self(), "compare parameters", [&] {
        check_equal_memories(parameters, data_groups_.all, what);
        succeed_together(data_groups_.all, "compare its slices of parameters", [&] {
          if (!shards_) return;
          check_equal_memories(shards_->own_parts(), data_groups_.replicas, "slices of " + what);
        });
      });
  if (!mesh_.defined()) return;
  succeed_together(data_groups_.all, "compare parameters",
                   [&] { check_equal_on_mesh(parameters, mesh_, what); });
}

void Reducer::begin(bool is_active) {
  const at::NoGradGuard no_grad;
  has_begun_ = true;
  const auto parameters = static_cast<std::int64_t>(slots_.size());
  if (shards_) shards_->clear_gradients();
  if (num_steps_++ % comm::kStepsBetweenChecks == 0 && comm::checks_values()) check_values();
  buffers_.start();
  tail_.fill_(1);
  tail_.narrow(0, parameters + kNumber, 1).zero_();
  if (!tail_is_apart_) put_number();  // else finish() does: the host may have to wait for it
  if (!is_active) tail_.narrow(0, parameters + kActiveRanks, 1).zero_();
}

void Reducer::put_number() {
  if (!number_.defined()) return;
  tail_[static_cast<std::int64_t>(slots_.size()) + kNumber].copy_(number_.squeeze());
  number_.reset();
}

void Reducer::set_used_if_present() {
  for (Slot& slot : slots_) {
    if (!slot.is_ready) slot.is_used = slot.parameter.tensor.grad().defined();
  }
}

bool Reducer::uses_any() const { return std::ranges::any_of(slots_, &Slot::is_used); }

void Reducer::complete(std::size_t index) {
  const at::NoGradGuard no_grad;
  Slot& slot = slots_[index];
  if (slot.is_ready) return;
  if (!knows_order_) arrivals_.push_back(index);
  make_ready(slot);
  launch_ready_buckets();
}

void Reducer::complete(const at::Tensor& parameter) {
  const auto found = std::ranges::find_if(
      slots_, [&](const Slot& slot) { return slot.parameter.tensor.is_same(parameter); });
  if (found == slots_.end() || found->is_ready) return;
  found->is_used = parameter.grad().defined();
  complete(static_cast<std::size_t>(found - slots_.begin()));
}

// Marks a gradient as final. It is copied into its bucket now if the bucket has memory of its own,
// and otherwise when the bucket is launched.
void Reducer::make_ready(Slot& slot) {
  // The gradient of an earlier pass may have been set to undefined since.
  slot.is_used = slot.is_used && slot.parameter.tensor.grad().defined();
  const bool is_sparse = slot.parameter.has_sparse_gradient;
  // Nobody needs the number of a sparse one, and the last bucket may be carrying the tail already.
  if (!slot.is_used && !is_sparse) tail_[&slot - slots_.data()].zero_();
  const at::Tensor& gradient = slot.parameter.tensor.grad();
  if (slot.is_used && (gradient.layout() != at::kStrided) != is_sparse) {
    throw UsageError(
        join_message("parameter ", slot.parameter.name, " got a gradient of layout ",
                     gradient.layout(), ", expected a ", is_sparse ? "sparse" : "dense", " one"),
        is_sparse ? "an embedding with sparse gradients must not share its weight with a layer "
                    "that gives dense ones"
                  : "only torch::nn::Embedding and EmbeddingBag are known to give sparse ones; "
                    "name the parameter in Plan::sparse_gradients");
  }
  slot.is_ready = true;
  if (is_sparse) return;
  if (slot.is_used) redistribute_gradient(slot.parameter.tensor);
  if (!buckets_->is_lent(slot.bucket)) store_gradient(slot);
}

// Returns the place of a gradient in its bucket, with the layout of the parameter.
at::Tensor Reducer::gradient_at(std::size_t slot) const {
  return as_like(slots_[slot].parameter.tensor, buckets_->place_of(slot));
}

// Copies the gradient that autograd accumulated into the bucket, unless it already lies there.
void Reducer::store_gradient(Slot& slot) {
  const auto index = static_cast<std::size_t>(&slot - slots_.data());
  const at::Tensor& place = buckets_->place_of(index);
  at::Tensor& gradient = slot.parameter.tensor.mutable_grad();
  const bool is_in_place = gradient.defined() && memory_of(gradient).is_alias_of(place);
  if (!slot.is_used) {
    if (is_in_place) gradient = gradient.clone();  // keeps its value while its place is exchanged
    place.zero_();
  } else if (!is_in_place) {
    place.copy_(memory_of(gradient));
    // Free autograd's memory. For sharded parameters, the optimizer's gradient lies elsewhere.
    gradient = buckets_->zero_level(slot.bucket) > 0 ? at::Tensor() : gradient_at(index);
  }
}

void Reducer::launch_ready_buckets() {
  // Gradients become ready in about the order of their places, so the last place tells most.
  const auto is_ready = [&](std::size_t bucket) {
    return std::ranges::all_of(buckets_->members(bucket) | std::views::reverse,
                               [&](std::size_t slot) { return slots_[slot].is_ready; });
  };
  for (; next_bucket_ < buckets_->size() && is_ready(next_bucket_); ++next_bucket_) {
    launch(next_bucket_);
  }
}

void Reducer::launch(std::size_t bucket) {
  if (buckets_->is_lent(bucket)) {
    buckets_->acquire(bucket);
    for (const std::size_t slot : buckets_->members(bucket)) store_gradient(slots_[slot]);
  }
  buckets_->launch(bucket);
}

void Reducer::finish(double summands) {
  const at::NoGradGuard no_grad;
  if (shards_) shards_->end_step();
  // Parameters that this rank did not use are exchanged as zeros: all ranks must exchange the same
  // buckets in the same order.
  for (Slot& slot : slots_) {
    if (!slot.is_ready) make_ready(slot);
  }
  launch_ready_buckets();
  if (tail_is_apart_) {
    put_number();
    comm::all_reduce(tail_, data_groups_.all, comm::ReduceOp::kSum, "used parameters");
  }
  if (!tail_is_apart_) buckets_->wait(buckets_->size() - 1);
  counts_.copy_(tail_.is_complex() ? at::real(tail_) : tail_);
  sum_of_step_ = counts_.const_data_ptr<double>()[slots_.size() + kNumber];
  const double by = divisor(summands);
  buckets_->finish(by);
  sum_sparse_gradients(by);
  check_same_use();
  hand_out();
  expect_all();
  buffers_.finish();
  if (!knows_order_) learn_order();
}

// Makes everything ready for the gradients of a new step.
void Reducer::expect_all() {
  has_begun_ = false;
  next_bucket_ = 0;
  for (Slot& slot : slots_) slot.is_used = slot.is_ready = false;
}

// Throws if ranks used different parameters of ZeRO level 3. If their bucket was whole anyway, no
// earlier check notices; in a larger module the same code would fail there.
void Reducer::check_same_use() const {
  const double* num_ranks_using = counts_.const_data_ptr<double>();
  const double ranks = data_groups_.all.size();
  std::string names;
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    if (zero_levels_[index] != 3 || num_ranks_using[index] == 0 ||
        num_ranks_using[index] == ranks) {
      continue;
    }
    names += join_message(names.empty() ? "" : ", ", slots_[index].parameter.name, " on ",
                          num_ranks_using[index], " of ", ranks, " ranks");
  }
  if (names.empty()) return;
  throw UsageError(
      "parameters that are cut (ZeRO level 3) got gradients on some ranks alone: " + names,
      kSameOperators);
}

double Reducer::num_active_ranks() const {
  return counts_.const_data_ptr<double>()[slots_.size() + kActiveRanks];
}

double Reducer::divisor(double summands) const {
  if (plan_.gradient_reduction == GradientReduction::kSum) return 1;
  const double ranks =
      plan_.divide_by_active_ranks ? std::max(1.0, num_active_ranks()) : data_groups_.all.size();
  return ranks * summands;
}

void Reducer::sum_sparse_gradients(double divisor) {
  for (const Slot& slot : slots_) {
    const auto& [name, parameter, has_sparse_gradient] = slot.parameter;
    if (!has_sparse_gradient) continue;
    at::Tensor& gradient = parameter.mutable_grad();
    const at::Tensor sum =
        sum_sparse(slot.is_used ? gradient : at::Tensor(), parameter.sizes(),
                   parameter.options().requires_grad(false), data_groups_.all, divisor);
    if (sum.defined()) gradient = sum;
  }
}

// Returns true if the sum of a gradient has an element other than zero on any rank of its mesh.
bool Reducer::has_come(std::size_t slot) const {
  const at::Tensor any = at::any(buckets_->place_of(slot)).to(at::kCPU, at::kByte);
  const at::Tensor& parameter = slots_[slot].parameter.tensor;
  if (has_layout(parameter)) {
    comm::all_reduce(any, layout_of(parameter).mesh().group(), comm::ReduceOp::kMaximum);
  }
  return any.item<std::uint8_t>() != 0;
}

// Sets the gradients of parameters, or those of the slices that optimizers step.
void Reducer::hand_out() {
  const double* num_ranks_using = counts_.const_data_ptr<double>();
  const auto is_used = [&](std::size_t index) { return num_ranks_using[index] > 0; };
  for (std::size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
    if (buckets_->zero_level(bucket) > 0) {
      shards_->set_gradients(buckets_->shard(bucket), buckets_->own(bucket), is_used);
      continue;
    }
    for (const std::size_t slot : buckets_->members(bucket)) {
      // A hook may send what it kept of earlier steps, for a parameter that no rank used now.
      if (is_used(slot) || (has_hook_ && has_come(slot))) {
        slots_[slot].parameter.tensor.mutable_grad() = gradient_at(slot);
      }
    }
  }
  if (shards_) shards_->expect_step(is_used);
}

void Reducer::forget_unsent() {
  const at::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    const bool is_sent = !slot.parameter.has_sparse_gradient && slot.bucket < next_bucket_;
    if (!is_sent) slot.is_used = slot.is_ready = false;
  }
  if (!has_begun_) return;
  // Unless the tail was sent with the last bucket already.
  if (tail_is_apart_ || next_bucket_ < buckets_->size()) put_number();
  number_.reset();
}

void Reducer::abandon() {
  number_.reset();
  arrivals_.clear();
  buckets_->abandon();
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    // The step's passes accumulated here, and the optimizer, which steps slices, will not zero it.
    if (is_sharded(index)) slots_[index].parameter.tensor.mutable_grad().reset();
  }
  expect_all();
}

// Fills the buckets anew in the order in which rank 0's gradients became ready. Parameters that it
// did not use come last.
void Reducer::learn_order() {
  knows_order_ = true;
  std::vector<bool> has_come(slots_.size(), false);
  for (const std::size_t index : arrivals_) has_come[index] = true;
  for (std::size_t index = slots_.size(); index-- > 0;) {
    if (!has_come[index]) arrivals_.push_back(index);
  }
  const std::vector<std::int64_t> own(arrivals_.begin(), arrivals_.end());
  const at::Tensor order = at::tensor(own);
  comm::broadcast(order, 0, data_groups_.all);
  const auto* learned = order.const_data_ptr<std::int64_t>();
  arrivals_ = {};
  std::vector<BucketLayout> layouts = assign({learned, learned + order.numel()});
  if (layouts == layouts_) return;
  std::vector<at::Tensor> places;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    places.push_back(buckets_->place_of(slot));
  }
  make_buckets(std::move(layouts));
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].parameter.has_sparse_gradient) continue;  // has no place
    at::Tensor& gradient = slots_[slot].parameter.tensor.mutable_grad();
    buckets_->place_of(slot).copy_(places[slot]);
    if (gradient.defined() && memory_of(gradient).is_alias_of(places[slot])) {
      gradient = gradient_at(slot);
    }
  }
}

}  // namespace trireme::detail
