// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/step/stage_parameters.h>

#include <trireme/base/error.h>
#include <trireme/parallel/gradients/reducer.h>
#include <trireme/parallel/manual.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

namespace trireme::pipeline {
namespace {

using FirstRanks = std::unordered_map<const c10::TensorImpl*, int>;
using Uses = std::map<std::string, detail::StageUse>;

// Of what no stage uses the first rank's values count.
FirstRanks first_ranks_of(const torch::nn::Module& module, const StagedGraph& staged,
                          const StageRanks& ranks) {
  FirstRanks first;
  for (int rank = 0; rank < staged.program().schedule.num_ranks(); ++rank) {
    for (const auto& [name, tensor] : staged.tensors_of(rank)) {
      first.emplace(tensor.unsafeGetTensorImpl(), ranks.process_of(rank));
    }
  }
  for (const at::Tensor& tensor : module.parameters()) {
    first.emplace(tensor.unsafeGetTensorImpl(), 0);
  }
  for (const at::Tensor& tensor : module.buffers()) first.emplace(tensor.unsafeGetTensorImpl(), 0);
  return first;
}

// By name, of parameters and buffers.
std::shared_ptr<Uses> uses_of(const torch::nn::Module& module, const StagedGraph& staged,
                              const FirstRanks& first, const StageRanks& ranks,
                              const comm::Group& stages) {
  std::unordered_set<const c10::TensorImpl*> own;
  std::unordered_set<const c10::TensorImpl*> used;
  for (int rank = 0; rank < staged.program().schedule.num_ranks(); ++rank) {
    for (const auto& [name, tensor] : staged.tensors_of(rank)) {
      used.insert(tensor.unsafeGetTensorImpl());
      if (ranks.is_own(rank, stages)) own.insert(tensor.unsafeGetTensorImpl());
    }
  }
  auto uses = std::make_shared<Uses>();
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    (*uses)[name] = {.is_own = own.contains(impl) || !used.contains(impl),
                     .first_rank = first.at(impl),
                     .is_first = first.at(impl) == stages.rank()};
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  return uses;
}

// `rank 1`, `ranks 0 and 2`.
std::string list_of(const std::set<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (auto rank = ranks.begin(); rank != ranks.end(); ++rank) {
    if (rank != ranks.begin()) text += std::next(rank) == ranks.end() ? " and " : ", ";
    text += std::to_string(*rank);
  }
  return text;
}

[[noreturn]] void refuse(const std::string& name, const std::set<int>& trained,
                         const std::set<int>& used, const char* where) {
  throw UsageError(
      join_message(where, " ", list_of(used), " along pipe would use ", name, ", which ",
                   list_of(trained), trained.size() == 1 ? " trains" : " train"),
      "begin stages with other modules (plan.stages), so that it has one stage always");
}

}  // namespace

StageParameters::StageParameters(torch::nn::Module& module, const StagedGraph& staged,
                                 const Plan& plan, const comm::Group& group,
                                 const comm::Group& stages, const comm::Group& data,
                                 const detail::ModuleLayouts& layouts, StageRanks& ranks)
    : stages_(stages),
      data_(data),
      ranks_(&ranks),
      used_(used_in(staged)),
      first_ranks_(first_ranks_of(module, staged, ranks)),
      uses_(uses_of(module, staged, first_ranks_, ranks, stages)),
      parallelized_(detail::parallelize_manual(
          module, uses_, plan, group, data, layouts.mesh(),
          [&](const std::vector<at::Tensor>& all) { ranks.place_first(all, staged); })) {
  for (const auto& item : module.named_parameters()) {
    names_[item.value().unsafeGetTensorImpl()].push_back(item.key());
  }
  for (const auto& item : module.named_buffers()) {
    names_[item.value().unsafeGetTensorImpl()].push_back(item.key());
  }
  for (const Parallelized::Part& part : parallelized_.parts()) {
    if (!part.is_own || !part.parameter.requires_grad()) continue;
    if (part.tensor.is_same(part.parameter)) {
      exchanged_.push_back(part.parameter);
    } else {
      cut_.push_back(part.parameter);
    }
  }
}

StageParameters::UsedByName StageParameters::used_in(const StagedGraph& staged) {
  UsedByName used;
  for (int rank = 0; rank < staged.program().schedule.num_ranks(); ++rank) {
    for (const auto& [name, tensor] : staged.tensors_of(rank)) {
      Used& use = used[name];
      use.tensor = tensor;
      use.ranks.insert(rank);
      use.changes = use.changes || tensor.requires_grad();
    }
    for (const auto& [name, tensor] : staged.written_buffers_of(rank)) used[name].changes = true;
  }
  return used;
}

void StageParameters::add_record(const StagedGraph& staged) {
  const UsedByName now = used_in(staged);
  for (const auto& [name, use] : now) {
    const auto before = used_.find(name);
    if (before == used_.end() || before->second.ranks == use.ranks) continue;
    if (!use.changes && !before->second.changes) continue;  // alike everywhere
    refuse(name, before->second.ranks, use.ranks,
           "for a batch of other shapes, in another mode or another function");
  }
  for (const auto& [name, use] : now) {
    const auto [place, is_new] = used_.try_emplace(name, use);
    if (is_new) set_use(use);
    place->second.changes = place->second.changes || use.changes;
  }
}

// What nobody has used so far is on all ranks, with one value.
void StageParameters::set_use(const Used& used) {
  const int first = ranks_->process_of(*used.ranks.begin());
  first_ranks_[used.tensor.unsafeGetTensorImpl()] = first;
  for (const std::string& name : names_.at(used.tensor.unsafeGetTensorImpl())) {
    uses_->at(name) = {
        .is_own = uses_here(used.ranks), .first_rank = first, .is_first = first == stages_.rank()};
  }
}

bool StageParameters::uses_here(const std::set<int>& ranks) const {
  return std::ranges::any_of(ranks, [&](int rank) { return ranks_->is_own(rank, stages_); });
}

void StageParameters::check_evaluation(const StagedGraph& staged) const {
  for (const auto& [name, use] : used_in(staged)) {
    const auto trained = used_.find(name);
    if (trained == used_.end() || std::ranges::includes(trained->second.ranks, use.ranks)) {
      continue;
    }
    refuse(name, trained->second.ranks, use.ranks, "in evaluation");
  }
}

std::vector<detail::NamedTensor> StageParameters::trained_elsewhere() const {
  std::vector<detail::NamedTensor> all;
  for (const auto& [name, use] : used_) {
    if (use.changes && !uses_here(use.ranks)) all.push_back({name, use.tensor});
  }
  return all;
}

void StageParameters::check_before_step() {
  detail::Reducer* const reducer = detail::reducer_of(parallelized_);
  if (reducer != nullptr) reducer->check_before_step();
}

void StageParameters::begin_step() {
  if (detail::reducer_of(parallelized_) == nullptr) return;
  aside_.clear();
  // They may lie where this step's will travel.
  for (const at::Tensor& parameter : exchanged_) aside_.take_copy(parameter);
  for (at::Tensor& parameter : cut_) parameter.mutable_grad().reset();
}

void StageParameters::add_complete(const StagedGraph::NamedTensors& parameters) {
  detail::Reducer* const reducer = detail::reducer_of(parallelized_);
  if (reducer == nullptr) return;
  for (const auto& [name, parameter] : parameters) reducer->add_complete(parameter);
}

void StageParameters::finish_step(double summands) {
  detail::Reducer* const reducer = detail::reducer_of(parallelized_);
  if (reducer == nullptr) return;
  reducer->finish_manual(summands);
  aside_.add_back();
}

int StageParameters::first_rank_of(const at::Tensor& tensor) const {
  const auto found = first_ranks_.find(tensor.unsafeGetTensorImpl());
  return found == first_ranks_.end() ? -1 : found->second;
}

// Of what several ranks hold alike the first counts; rank 0 is the first of all.
bool StageParameters::counts(const at::Tensor& stepped) const {
  detail::Shards* const shards = detail::shards_of(parallelized_);
  const detail::SlicedParameter* const sliced =
      shards == nullptr ? nullptr : shards->optimizers().of_part(stepped);
  const at::Tensor& parameter = sliced == nullptr ? stepped : sliced->parameter;
  if (first_rank_of(parameter) != stages_.rank()) return false;
  if (has_layout(parameter) && !is_first_holder(layout_of(parameter))) return false;
  // Hybrid sharding has the slices of the first ranks again on the next.
  return data_.rank() < (sliced == nullptr ? 1 : shards->group().size());
}

}  // namespace trireme::pipeline
