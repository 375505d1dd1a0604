// SPDX-License-Identifier: Apache-2.0
// Finds the plan of a model whose plan is automatic, and compares its predicted step with the
// measured ones.
#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/warning.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/data/data_loader.h>
#include <trireme/parallel/tensor_parallel/cluster_links.h>
#include <trireme/report/number.h>
#include <trireme/search/automatic_plan.h>
#include <trireme/train/loop/model_impl.h>

#include <torch/torch.h>

#include <algorithm>
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

// Without a description of its own, a run on processors takes the one that comes with Trireme.
cluster::Cluster described_cluster(const at::Device& device) {
  if (auto described = detail::cluster_of_environment()) return std::move(*described);
  if (device.is_cpu()) return cluster::read_cluster("cpu");
  throw UsageError(join_message("an automatic plan for devices of type ", device.type(),
                                " needs a description of the cluster"),
                   "name one by TRIREME_CLUSTER or trireme run --cluster, such as h100-80");
}

std::string milliseconds(double seconds) {
  constexpr double kMilli = 1e-3;
  constexpr int kDigits = 3;
  return report::rounded(seconds / kMilli, kDigits) + " ms";
}

}  // namespace

// The rows of a batch are those of a step over all ranks. Only the first rank reads one.
search::Training Model::Impl::training_to_plan(const data::DataLoader& data) {
  search::Training training = {.module = *module,
                               .forward = [this](const auto& inputs) { return results_of(inputs); },
                               .options = {.optimizer = kind_of(optimizer)},
                               .base = options.plan,
                               .entry = PlanEntry::kAny};
  if (options.group.rank() > 0) return training;
  auto batch = data.open(0)->next();
  if (!batch) {
    throw UsageError("the data of the training has no batch, by which a plan could be found",
                     "give it at least one batch of the rows of a step over all ranks");
  }
  training.inputs = tensors_of(*batch);
  training.rows = batch->rows();
  return training;
}

void Model::Impl::find_plan(const data::DataLoader& data) {
  if (!runner->is_unplanned()) return;
  const comm::Group& group = options.group;
  const detail::KeptGenerator kept;
  find_device();
  module->train();
  search::AutomaticPlanOptions how = {
      .cluster = {}, .cache_folder = Settings::from(Environment::of_process()).cache_folder};
  if (!how.cache_folder.empty()) how.cache_folder /= "plans";
  search::Training training = {.module = *module, .forward = {}, .inputs = {}};
  comm::succeed_together("prepare the search for a plan", group, [&] {
    if (data.is_sharded() || !options.shards_data) {
      throw UsageError("the plan is automatic, and the data is divided among the ranks already",
                       "give every rank the same data loader without shard(); the plan divides it");
    }
    how.cluster = described_cluster(device);
    training = training_to_plan(data);
  });
  const search::AutomaticPlan found = search::find_plan(training, group, how);
  if (group.rank() == 0) {
    note("plan for ", group.size(), " ranks on ", how.cluster.name, ": ", found.summary,
         found.file.empty() ? "" : join_message(" (kept in ", found.file.string(), ")"));
  }
  options.plan = found.plan;
  const auto checkpoint = runner->take_checkpoint();
  found_plan = {.step_seconds = found.step_seconds,
                .parts = found.plan.micro_batches * data_ranks(found.plan, group.size()),
                .cluster = how.cluster.name};
  runner = Runner::make(*this);
  agreement = detail::StepAgreement(runner->carrier(), group);
  runner->shard(optimizer);
  if (checkpoint) static_cast<void>(runner->load(*checkpoint));
}

data::DataLoader Model::Impl::training_part(const data::DataLoader& data) {
  find_plan(data);
  if (!found_plan) return part_of(data, data::Remainder::kWrap);
  data::DataLoader parts = data;
  comm::succeed_together("divide the batches of a step", options.group,
                         [&] { parts.split_batches(found_plan->parts); });
  return part_of(parts, data::Remainder::kDrop);
}

// Callbacks and reading are not predicted. The first steps allocate memory.
void Model::Impl::compare_with_prediction(const StepSeconds& measured) {
  constexpr std::size_t kLeftOut = 3;
  constexpr std::size_t kCompared = 20;
  constexpr double kTolerance = 0.2;
  if (!found_plan || found_plan->measured.size() > kLeftOut + kCompared) return;
  std::vector<double>& all = found_plan->measured;
  all.push_back(measured.total() - measured.data);
  if (all.size() != kLeftOut + kCompared) return;
  std::vector<double> compared(all.begin() + kLeftOut, all.end());
  all.push_back(0);  // no further comparison
  std::ranges::nth_element(compared, compared.begin() + kCompared / 2);
  const double median = compared[kCompared / 2];
  const double predicted = found_plan->step_seconds;
  if (options.group.rank() != 0 || std::abs(median / predicted - 1) <= kTolerance) return;
  warn("a step of the automatic plan takes ", milliseconds(median), ", and ",
       milliseconds(predicted), " were predicted by the description ", found_plan->cluster,
       ": measure this machine by trireme calibrate, and name the file by TRIREME_CLUSTER or "
       "trireme run --cluster, for a plan that fits it");
}

void Model::find_plan(const data::DataLoader& training) { impl_->find_plan(training); }

}  // namespace trireme
