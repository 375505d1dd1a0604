// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/step/stage_parameters.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/check_values.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/buckets/buffer_broadcast.h>
#include <trireme/parallel/gradients/reducer.h>
#include <trireme/parallel/init/deferred_scope.h>
#include <trireme/parallel/module/local_memory.h>
#include <trireme/tensor/distributed_tensor.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <unordered_set>

namespace trireme::pipeline {
namespace {

using FirstRanks = std::unordered_map<const c10::TensorImpl*, int>;
using Uses = std::map<std::string, detail::StageUse>;

// Returns the first process that uses each tensor. Tensors that no stage uses belong to process 0.
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

// Returns the use of every parameter and buffer, under each of its names.
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

// Returns a text such as `rank 1` or `ranks 0 and 2`.
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
    : group_(group),
      stages_(stages),
      data_(data),
      ranks_(&ranks),
      used_(used_in(staged)),
      first_ranks_(first_ranks_of(module, staged, ranks)),
      uses_(uses_of(module, staged, first_ranks_, ranks, stages)),
      parallelized_(detail::parallelize_manual(
          module, uses_, plan, group, data, layouts.mesh(),
          [&](const std::vector<at::Tensor>& all) { ranks.place_first(all, staged); })),
      layouts_(layouts) {
  for (const auto& item : module.named_parameters()) {
    names_[item.value().unsafeGetTensorImpl()].push_back(item.key());
  }
  for (const auto& item : module.named_buffers()) {
    names_[item.value().unsafeGetTensorImpl()].push_back(item.key());
  }
  if (stages_.size() > 1) {
    for (const at::Tensor& parameter : module.parameters()) partial_.add(parameter);
    norm_check_ = std::make_unique<detail::PartNormCheck>(
        "a pipeline, of which each rank has its own stages", "step.sharing()");
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
    if (!use.changes && !before->second.changes) continue;  // a constant; see share_constants()
    refuse(name, before->second.ranks, use.ranks,
           "for a batch of other shapes, in another mode or another function");
  }
  for (const auto& [name, use] : now) {
    const auto [place, is_new] = used_.try_emplace(name, use);
    if (is_new) set_use(use);
    place->second.changes = place->second.changes || use.changes;
  }
  share_constants(now);
}

// Sends tensors that no rank trains to ranks that use them for the first time. Those may have no
// memory for them, or values from before a checkpoint was loaded.
void StageParameters::share_constants(const UsedByName& now) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, use] : now) {
    const auto before = used_.find(name);
    if (before == used_.end() || use.changes || before->second.changes) continue;
    std::set<int>& ranks = before->second.ranks;
    if (std::ranges::includes(ranks, use.ranks)) continue;
    if (stages_.size() == 1) {  // devices of this process, to which the tensor is copied
      ranks.insert(use.ranks.begin(), use.ranks.end());
      continue;
    }
    at::Tensor tensor = use.tensor;
    if (detail::is_deferred(tensor)) {
      tensor.set_data(at::empty_strided(tensor.sizes(), tensor.strides(),
                                        tensor.options().requires_grad(false)));
      layouts_.distribute({tensor});
    }
    detail::broadcast_strided(detail::memory_of(tensor), ranks_->process_of(*ranks.begin()),
                              stages_, name);
    ranks.insert(use.ranks.begin(), use.ranks.end());
    if (!uses_here(ranks)) continue;
    for (const std::string& own : names_.at(tensor.unsafeGetTensorImpl())) {
      uses_->at(own).is_own = true;
    }
  }
}

// Assigns a tensor that no record has used so far. It needs no communication: all ranks still hold
// its initial value.
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

void StageParameters::add_evaluation(const StagedGraph& staged) {
  for (const auto& [name, use] : used_in(staged)) {
    const auto trained = used_.find(name);
    if (trained == used_.end() || std::ranges::includes(trained->second.ranks, use.ranks)) {
      continue;
    }
    if (!use.changes && !trained->second.changes) continue;
    refuse(name, trained->second.ranks, use.ranks, "in evaluation");
  }
  share_constants(used_in(staged));
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
  if (reducer == nullptr) return;
  reducer->check_parameters();
  reducer->check_optimizers();
  if (detail::Shards* const shards = reducer->shards()) shards->check_without_waiting();
}

// Implements TRIREME_CHECK=values for pipelines. The Reducer compares parameters along `data`. This
// function compares them on the ranks that work on one stage together, and between stages that
// share a weight.
void StageParameters::check_values() const {
  const std::string what = join_message("parameters before step ", num_steps_);
  std::vector<detail::NamedTensor> own;
  std::vector<const UsedByName::value_type*> tied;
  TextWriter digests;
  for (const auto& item : used_) {
    const auto& [name, use] = item;
    const bool is_cut =
        std::ranges::any_of(cut_, [&](const at::Tensor& cut) { return cut.is_same(use.tensor); });
    if (!use.tensor.requires_grad()) continue;
    const bool is_compared = uses_here(use.ranks) && !is_cut;
    if (is_compared) own.push_back({name, use.tensor});
    if (stages_.size() == 1 || use.ranks.size() < 2) continue;
    tied.push_back(&item);
    digests << (is_compared ? comm::digest_of_values(detail::memory_of(use.tensor)) : 0) << "\n";
  }
  if (layouts_.mesh().defined()) detail::check_equal_on_mesh(own, layouts_.mesh(), what);
  if (tied.empty()) return;
  std::deque<TextReader> texts;
  for (const std::string& text : comm::all_gather_text(digests.str(), stages_)) {
    texts.emplace_back(text);
  }
  for (const auto* const item : tied) {
    std::set<std::int64_t> different;
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      std::int64_t digest = 0;
      texts[rank] >> digest;
      if (item->second.ranks.contains(static_cast<int>(rank))) different.insert(digest);
    }
    if (different.size() < 2) continue;
    throw UsageError(
        join_message("TRIREME_CHECK=values: of the ", what, " ", item->first, " differs on ",
                     list_of(item->second.ranks), " along pipe, whose stages share it"),
        "give all ranks the same initial values, and each the same optimizer for it");
  }
}

void StageParameters::begin_step() {
  if (norm_check_) norm_check_->stop();
  if (num_steps_++ % comm::kStepsBetweenChecks == 0 && comm::checks_values()) {
    detail::succeed_together(group_, "compare parameters", [&] { check_values(); });
  }
  if (detail::reducer_of(parallelized_) == nullptr) return;
  aside_.clear();
  // Copies, because `.grad()` may be a view of a bucket, which this step's gradients overwrite.
  for (const at::Tensor& parameter : exchanged_) aside_.take_copy(parameter);
  for (at::Tensor& parameter : cut_) parameter.mutable_grad().reset();
}

void StageParameters::add_complete(const StagedGraph::NamedTensors& parameters) {
  detail::Reducer* const reducer = detail::reducer_of(parallelized_);
  if (reducer == nullptr) return;
  const std::lock_guard lock(*mutex_);
  for (const auto& [name, parameter] : parameters) {
    begin_exchange(*reducer);
    reducer->complete(parameter);
  }
}

void StageParameters::begin_exchange(detail::Reducer& reducer) {
  if (reducer.has_begun()) return;
  const at::NoGradGuard no_grad;
  if (detail::Shards* const shards = reducer.shards()) shards->check();
  reducer.begin();
}

void StageParameters::finish_step(double summands) {
  add_up(summands);
  if (!norm_check_) return;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : exchanged_) {
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined() && !gradient.is_sparse()) {
      gradients.push_back(detail::memory_of(gradient));
    }
  }
  norm_check_->start(gradients, detail::PartNormCheck::Norms::kOfAll);
}

void StageParameters::add_up(double summands) {
  detail::Reducer* const reducer = detail::reducer_of(parallelized_);
  if (reducer == nullptr) return;
  begin_exchange(*reducer);
  reducer->set_used_if_present();
  reducer->finish(summands);
  aside_.add_back();
}

int StageParameters::first_rank_of(const at::Tensor& tensor) const {
  const auto found = first_ranks_.find(tensor.unsafeGetTensorImpl());
  return found == first_ranks_.end() ? -1 : found->second;
}

// If several ranks hold a tensor, only the first of them counts it: along pipe, over the mesh of
// the stage, and along data.
bool StageParameters::counts(const at::Tensor& stepped) const {
  detail::Shards* const shards = detail::shards_of(parallelized_);
  const detail::SlicedParameter* const sliced =
      shards == nullptr ? nullptr : shards->optimizers().of_part(stepped);
  const at::Tensor& parameter = sliced == nullptr ? stepped : sliced->parameter;
  if (first_rank_of(parameter) != stages_.rank()) return false;
  if (has_layout(parameter) && !is_first_holder(layout_of(parameter))) return false;
  // With hybrid sharding, the ranks behind the first shard group hold the same slices again.
  return data_.rank() < (sliced == nullptr ? 1 : shards->group().size());
}

}  // namespace trireme::pipeline
