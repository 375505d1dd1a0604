// SPDX-License-Identifier: Apache-2.0
// Finds the plan of a model whose plan is automatic, and compares its predicted step with the
// measured ones.
#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/warning.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/comm/consensus.h>
#include <trireme/data/data_loader.h>
#include <trireme/optim/fused_adam.h>
#include <trireme/parallel/module/evaluation_mode.h>
#include <trireme/parallel/record/predicted_step.h>
#include <trireme/parallel/tensor_parallel/cluster_links.h>
#include <trireme/report/number.h>
#include <trireme/search/automatic_plan.h>
#include <trireme/search/plan_answer.h>
#include <trireme/train/loop/model_impl.h>

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace trireme {
namespace {

predict::Optimizer kind_of(const torch::optim::Optimizer& optimizer) {
  if (const auto* const sgd = dynamic_cast<const torch::optim::SGD*>(&optimizer)) {
    const auto& options = static_cast<const torch::optim::SGDOptions&>(sgd->defaults());
    return options.momentum() > 0 ? predict::Optimizer::kMomentum : predict::Optimizer::kSgd;
  }
  const bool has_one = dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr ||
                       dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr;
  return has_one ? predict::Optimizer::kMomentum : predict::Optimizer::kAdam;
}

predict::TrainingOptions options_of(const torch::optim::Optimizer& optimizer) {
  predict::TrainingOptions options{.optimizer = kind_of(optimizer)};
  if (detail::is_fused(optimizer)) options.optimizer_kernels = 0;
  return options;
}

// Without a description of its own, a run takes the one for processors that comes with Trireme.
cluster::Cluster described_cluster(const at::Device& device) {
  if (!device.is_cpu()) {
    throw UsageError(
        join_message("the plan is automatic, and the module is on a device of type ",
                     device.type()),
        "plans are found for modules on the CPU: give the plan that `trireme plan -- program` "
        "finds");
  }
  auto described = detail::cluster_of_environment();
  return described ? std::move(*described) : cluster::read_cluster("cpu");
}

std::string milliseconds(double seconds) {
  constexpr double kMilli = 1e-3;
  constexpr int kDigits = 3;
  return report::rounded(seconds / kMilli, kDigits) + " ms";
}

// Throws unless the plan can divide the batches of the data.
void check_undivided(const data::DataLoader& data, const ModelOptions& options) {
  if (data.is_sharded() || !options.shards_data) {
    throw UsageError("the plan is automatic, and the data is divided among the ranks already",
                     "give every rank the same data loader without shard(); the plan divides it");
  }
  if (data.is_batched()) return;
  throw UsageError("the plan is automatic, and the data to train on has no batch size",
                   "call batch() on the data loader with the rows of a step over all ranks");
}

}  // namespace

// Only the first rank reads a batch.
search::Training Model::Impl::training_to_plan(const data::DataLoader& data) {
  search::Training training = {.module = *module,
                               .forward = [this](const auto& inputs) { return results_of(inputs); },
                               .options = options_of(optimizer),
                               .base = options.plan,
                               .entry = PlanEntry::kAny};
  try {
    check_can_shard(optimizer);
  } catch (const UsageError&) {  // plans that shard its state are none for it
    training.base.constraints.emplace_back("zero_level=0");
  }
  if (options.group.rank() > 0) return training;
  data::DataLoader whole = data;
  const auto batch = whole.split_batches(1).prefetch(0).open(0)->next();
  if (!batch) {
    throw UsageError("the data of the training has no batch, by which a plan could be found",
                     "give it at least one batch of the rows of a step over all ranks");
  }
  training.inputs = tensors_of(*batch);
  training.rows = batch->rows();
  return training;
}

// A program's own plan says how many of its batches a step has.
void Model::Impl::answer_request(const std::filesystem::path& folder,
                                 const data::DataLoader& data) {
  find_device();
  module->train();
  search::Training training = training_to_plan(data);
  if (plan_of_program.mode == PlanMode::kManual) {
    training.rows *=
        plan_of_program.micro_batches * data_ranks(plan_of_program, options.group.size());
  }
  search::answer_in(folder, training, options.group.size(), described_cluster(device));
  detail::PredictedStep::end();
}

search::AutomaticPlan Model::Impl::search_plan(const data::DataLoader& data) {
  const comm::Group& group = options.group;
  const detail::KeptGenerator kept;
  const detail::ModeGuard mode(*module);
  find_device();
  module->train();
  search::AutomaticPlanOptions how = {
      .cluster = {}, .cache_folder = Settings::from(Environment::of_process()).cache_folder};
  if (!how.cache_folder.empty()) how.cache_folder /= "plans";
  search::Training training = {.module = *module, .forward = {}, .inputs = {}};
  comm::succeed_together("prepare the search for a plan", group, [&] {
    check_undivided(data, options);
    how.cluster = described_cluster(device);
    training = training_to_plan(data);
  });
  search::AutomaticPlan found = search::find_plan(training, group, how);
  if (group.rank() == 0) {
    note("plan for ", group.size(), group.size() == 1 ? " rank (" : " ranks (", how.cluster.name,
         "): ", found.summary,
         found.file.empty() ? "" : join_message(" (kept in ", found.file.string(), ")"));
  }
  return found;
}

void Model::Impl::find_plan(const data::DataLoader& data) {
  if (!runner->is_unplanned()) return;
  if (const auto* const predicted = detail::PredictedStep::of_process()) {
    answer_request(predicted->folder(), data);
  }
  const search::AutomaticPlan found = search_plan(data);
  const Plan before = std::exchange(options.plan, found.plan);
  try {
    auto made = Runner::make(*this);
    made->shard(optimizer);
    runner = std::move(made);
  } catch (...) {
    options.plan = before;
    throw;
  }
  agreement = detail::StepAgreement(runner->carrier(), options.group);
  found_plan = {.step_seconds = found.step_seconds, .parts = parts_of_step(found.plan)};
}

std::int64_t Model::Impl::parts_of_step(const Plan& plan) const {
  return plan.micro_batches * data_ranks(plan, options.group.size());
}

void Model::Impl::load_pending() {
  if (!pending_checkpoint || runner->is_unplanned()) return;
  static_cast<void>(runner->load(*pending_checkpoint));
  pending_checkpoint.reset();
}

data::DataLoader Model::Impl::training_part(const data::DataLoader& data) {
  find_plan(data);
  if (!found_plan) return part_of(data, data::Remainder::kWrap);
  data::DataLoader parts = data;
  comm::succeed_together("divide the batches of a step", options.group, [&] {
    check_undivided(data, options);
    parts.split_batches(found_plan->parts);
  });
  found_plan->measured.clear();
  return part_of(parts, data::Remainder::kDrop);
}

// Callbacks and reading are not predicted. The first steps allocate memory.
void Model::Impl::compare_with_prediction(const StepSeconds& measured) {
  constexpr std::size_t kLeftOut = 3;
  constexpr std::size_t kCompared = 20;
  constexpr double kTolerance = 0.2;
  if (!found_plan || found_plan->is_compared) return;
  std::vector<double>& all = found_plan->measured;
  all.push_back(measured.total() - measured.data);
  if (all.size() < kLeftOut + kCompared) return;
  found_plan->is_compared = true;
  const auto middle = all.begin() + kLeftOut + kCompared / 2;
  std::ranges::nth_element(all.begin() + kLeftOut, middle, all.end());
  const double predicted = found_plan->step_seconds;
  if (options.group.rank() != 0 || std::abs(*middle / predicted - 1) <= kTolerance) return;
  warn("a step of the automatic plan takes ", milliseconds(*middle), ", and ",
       milliseconds(predicted),
       " were predicted: measure this machine by trireme calibrate, and name the file by "
       "TRIREME_CLUSTER or trireme run --cluster, for a plan that fits it");
}

void Model::find_plan(const data::DataLoader& training) {
  impl_->find_plan(training);
  impl_->load_pending();
}

}  // namespace trireme
