// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/predict_validation.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/predict/fused_elements.h>
#include <trireme/predict/predict.h>
#include <trireme/report/number.h>

#include <ATen/Context.h>
#include <apps/trireme/predict_model.h>
#include <apps/trireme/published_case.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iomanip>
#include <iostream>
#include <map>
#include <optional>

namespace trireme::apps {
namespace {

// A case with everything that does not depend on the efficiencies of the device.
struct PreparedCase {
  PublishedCase published;
  Plan plan;
  predict::TrainingOptions training;
  ModuleRecord record;
  cluster::Cluster cluster;
};

struct Result {
  double predicted = 0;
  double flops_rate = 0;  // FLOP/s of a rank, without recomputation
  bool fits = true;
};

// The operators that the families of models need for attention and for nothing else.
std::vector<std::string> operators_of_attention(const PublishedCase& published) {
  if (published.attention != AttentionKernel::kUnfused) return {"aten::*scaled_dot_product*"};
  return {"aten::bmm*", "aten::_softmax*", "aten::_safe_softmax*"};
}

// Evenly spread blocks that are recomputed.
std::vector<std::string> spread_blocks(std::int64_t count, std::int64_t layers) {
  std::vector<std::string> blocks;
  for (std::int64_t i = 0; i < count; ++i) {
    blocks.push_back(join_message("blocks.", i * layers / count));
  }
  return blocks;
}

// Lets attention be recorded as several operators, as long as it lives.
class UnfusedAttention {
 public:
  UnfusedAttention()
      : flash_(at::globalContext().userEnabledFlashSDP()),
        reduces_in_half_(at::globalContext().allowFP16BF16ReductionMathSDP()) {
    at::globalContext().setSDPUseFlash(false);
    at::globalContext().setAllowFP16BF16ReductionMathSDP(true);
  }
  ~UnfusedAttention() {
    at::globalContext().setSDPUseFlash(flash_);
    at::globalContext().setAllowFP16BF16ReductionMathSDP(reduces_in_half_);
  }
  UnfusedAttention(const UnfusedAttention&) = delete;
  UnfusedAttention& operator=(const UnfusedAttention&) = delete;
  UnfusedAttention(UnfusedAttention&&) = delete;
  UnfusedAttention& operator=(UnfusedAttention&&) = delete;

 private:
  bool flash_;
  bool reduces_in_half_;
};

Plan plan_of(const PublishedCase& published, const PredictedModel& model) {
  Plan plan;
  plan.mesh = {{kStageAxis, static_cast<int>(published.pipe)},
               {kDataAxis, static_cast<int>(published.data)},
               {"tensor", static_cast<int>(published.tensor)}};
  plan.layouts = model.tensor_layouts;
  plan.micro_batches = published.micro_batches();
  plan.zero_level = published.zero_level;
  if (published.shards_in_host) plan.shard_ranks = std::min<std::int64_t>(8, published.data);
  if (published.recompute == "full") plan.recompute = {"blocks.*"};
  if (published.recompute == "selective") plan.recompute = operators_of_attention(published);
  if (published.pipe > 1) {
    const std::int64_t per_rank = model.layers / published.pipe;
    const std::int64_t in_stage =
        published.layers_per_stage > 0 ? published.layers_per_stage : per_rank;
    plan.chunks = std::max<std::int64_t>(1, per_rank / in_stage);
    plan.schedule = plan.chunks > 1 ? "interleaved" : "1f1b";
    for (std::int64_t stage = 1; stage < plan.chunks * published.pipe; ++stage) {
      plan.stages.emplace_back(join_message("blocks.", stage * in_stage), static_cast<int>(stage));
    }
  }
  return plan;
}

// FullyShardedDataParallel gathers one block at a time, and one ahead.
void gather_by_block(const ModuleRecord& record, Plan& plan) {
  double block = 0;
  for (const ParameterRecord& parameter : record.parameters) {
    if (parameter.name.starts_with("blocks.0.")) block += parameter.bytes;
  }
  plan.bucket_bytes = static_cast<std::int64_t>(block);
  plan.first_bucket_bytes = plan.bucket_bytes;
  plan.gathered_buckets = 2;
}

// Recomputes as few blocks as fit.
void recompute_what_is_needed(PreparedCase& prepared) {
  std::int64_t low = 0;
  std::int64_t high = prepared.published.layers;
  const auto fits = [&](std::int64_t count) {
    prepared.plan.recompute = spread_blocks(count, prepared.published.layers);
    return predict::predict(prepared.record, prepared.plan, prepared.cluster, prepared.training)
        .fits();
  };
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (fits(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  prepared.plan.recompute = spread_blocks(low, prepared.published.layers);
}

PreparedCase prepare(const PublishedCase& published) {
  const PredictedModel model =
      make_predicted_model(published.family, published.model_settings(), published.micro_batch,
                           dtype_of(published.dtype));
  PreparedCase prepared = {.published = published, .plan = plan_of(published, model)};
  prepared.cluster = published.cluster();
  std::optional<UnfusedAttention> unfused;
  if (published.attention == AttentionKernel::kUnfused) unfused.emplace();
  prepared.record = predict::fuse_elements(
      record_module(
          *model.module, prepared.plan, [&] { return model.forward(model.inputs).front(); },
          &prepared.cluster),
      published.elements);
  if (published.zero_level == 3) gather_by_block(prepared.record, prepared.plan);
  prepared.training = {.has_float32_gradients = published.zero_level == 0,
                       .optimizer_kernels = 0,
                       .reduces_each_micro_batch = published.zero_level >= 2,
                       .gathers_ahead_in_backward = published.gathers_ahead_in_backward,
                       .repeats_whole_regions = published.repeats_whole_blocks,
                       .replays_allocator = true};
  if (published.recompute == "some_blocks") recompute_what_is_needed(prepared);
  return prepared;
}

Result predict_case(const PreparedCase& prepared, const cluster::Efficiency* efficiency) {
  cluster::Cluster cluster = prepared.cluster;
  if (efficiency != nullptr) cluster.devices.front().efficiency = *efficiency;
  const predict::Prediction prediction =
      predict::predict(prepared.record, prepared.plan, cluster, prepared.training);
  return {.predicted = prepared.published.metric_of(prediction),
          .flops_rate = prediction.flops_per_rank / prediction.step_seconds,
          .fits = prediction.fits()};
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::lround(share * last))];
}

double error_of(double predicted, double published) { return predicted / published - 1; }

// The four efficiencies by coordinate descent on the median and the ninth decile of errors.
class Fit {
 public:
  explicit Fit(std::vector<const PreparedCase*> cases) : cases_(std::move(cases)) {}

  cluster::Efficiency run(cluster::Efficiency start) {
    cluster::Efficiency best = start;
    double lowest = loss(best);
    constexpr int kRounds = 12;
    double step = 0.3;
    for (int round = 0; round < kRounds; ++round, step *= 0.7) {
      for (double cluster::Efficiency::* const scalar : kScalars) {
        for (const double factor : {1 - step, 1 + step}) {
          cluster::Efficiency tried = best;
          tried.*scalar = scalar == &cluster::Efficiency::half_product_gigaflops
                              ? tried.*scalar * factor * factor
                              : std::min(1.0, tried.*scalar * factor);
          const double found = loss(tried);
          if (found >= lowest) continue;
          lowest = found;
          best = tried;
        }
      }
    }
    return best;
  }

 private:
  static constexpr std::array<double cluster::Efficiency::*, 4> kScalars = {
      &cluster::Efficiency::product, &cluster::Efficiency::half_product_gigaflops,
      &cluster::Efficiency::memory, &cluster::Efficiency::link};

  double loss(const cluster::Efficiency& efficiency) const {
    struct Errors {
      double sum = 0;
      double count = 0;
    };
    std::map<std::string, Errors> tables;
    for (const PreparedCase* prepared : cases_) {
      const double predicted = predict_case(*prepared, &efficiency).predicted;
      Errors& errors = tables[prepared->published.table];
      errors.sum += std::abs(std::log(predicted / prepared->published.value));
      ++errors.count;
    }
    double loss = 0;
    for (const auto& [table, errors] : tables) loss += errors.sum / errors.count;
    return loss;
  }

  std::vector<const PreparedCase*> cases_;
};

std::string percent(double share) { return report::fixed(share * 100, 1) + " %"; }

void print_row(const PreparedCase& prepared, const Result& result, double error,
               double trivial_error) {
  const PublishedCase& published = prepared.published;
  const std::string remark = published.recompute == "some_blocks"
                                 ? join_message("  recomputes ", prepared.plan.recompute.size(),
                                                " of ", published.layers, " blocks")
                                 : "";
  TextWriter text;
  text << std::left << std::setw(44) << published.title() << std::right << std::setw(12)
       << report::fixed(published.value, 1) << std::setw(12) << report::fixed(result.predicted, 1)
       << std::setw(10) << percent(error) << std::setw(10) << percent(trivial_error)
       << (result.fits ? "" : "  does not fit") << remark << '\n';
  std::cout << text.str();
}

void print_sums(const std::string& name, std::vector<double> errors, std::vector<double> trivial) {
  for (auto* all : {&errors, &trivial}) {
    for (double& error : *all) error = std::abs(error);
  }
  std::cout << name << ": " << errors.size() << " cases, median error " << percent(median(errors))
            << ", nine in ten within " << percent(quantile(errors, 0.9))
            << "; the median utilization alone: " << percent(median(trivial)) << ", "
            << percent(quantile(trivial, 0.9)) << '\n';
}

// The published rate divided by the predicted one tells the published FLOP/s of each case. The
// trivial predictor gives each case of a table and device the median of their utilizations.
std::vector<double> trivial_errors(const std::vector<PreparedCase>& cases,
                                   const std::vector<Result>& results) {
  std::map<std::string, std::vector<double>> rates;
  const auto published_rate = [&](std::size_t i) {
    return results[i].flops_rate * cases[i].published.value / results[i].predicted;
  };
  const auto key = [&](std::size_t i) {
    return cases[i].published.table + " " + cases[i].published.device;
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].published.is_rate()) rates[key(i)].push_back(published_rate(i));
  }
  std::vector<double> errors;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    errors.push_back(
        cases[i].published.is_rate() ? error_of(median(rates[key(i)]), published_rate(i)) : 0);
  }
  return errors;
}

// Places of the values in ascending order, counted from 0; equal values share the mean of theirs.
std::vector<double> places_of(const std::vector<double>& values) {
  std::vector<double> places;
  for (const double value : values) {
    const auto less = std::ranges::count_if(values, [&](double other) { return other < value; });
    const auto equal = std::ranges::count(values, value);
    places.push_back(static_cast<double>(less) + static_cast<double>(equal - 1) / 2);
  }
  return places;
}

// Spearman's coefficient: Pearson's of the places.
double rank_correlation(const std::vector<double>& first, const std::vector<double>& second) {
  const std::vector<double> x = places_of(first);
  const std::vector<double> y = places_of(second);
  const double mean = static_cast<double>(x.size() - 1) / 2;
  double xy = 0;
  double xx = 0;
  double yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

// Cases that train the same model on the same devices differ in their strategy. Whether predictions
// put them into the published order matters more than their errors.
void print_orders(const std::vector<PreparedCase>& cases, const std::vector<Result>& results) {
  constexpr std::size_t kFewest = 3;
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> groups;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (!cases[i].published.is_rate()) continue;
    auto& [published, predicted] = groups[cases[i].published.same_work()];
    published.push_back(cases[i].published.value);
    predicted.push_back(results[i].predicted);
  }
  for (const auto& [work, values] : groups) {
    if (values.first.size() < kFewest) continue;
    std::cout << "order of " << values.first.size() << " strategies of " << work
              << ": Spearman's coefficient "
              << report::fixed(rank_correlation(values.first, values.second), 2) << '\n';
  }
}

void print_misfits(const std::vector<PreparedCase>& cases, const std::vector<Result>& results) {
  int ran = 0;
  int refused = 0;
  int failed = 0;
  int accepted = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].published.has_run()) {
      ++ran;
      if (!results[i].fits) ++refused;
    } else {
      ++failed;
      if (results[i].fits) ++accepted;
    }
  }
  std::cout << "memory: " << refused << " of " << ran << " cases that ran are said not to fit";
  if (failed > 0) {
    std::cout << ", " << accepted << " of " << failed
              << " cases that ran out of memory are said to fit";
  }
  std::cout << '\n';
}

// Attention has a rate of its own, attention_share, which is not fitted.
bool is_mostly_attention(const ModuleRecord& record) {
  double attention = 0;
  double all = 0;
  for (const OperatorCall& call : record.calls) {
    all += call.work.flops;
    if (call.work.kind == cluster::OperatorKind::kAttention) attention += call.work.flops;
  }
  constexpr double kShare = 0.2;
  return attention > kShare * all;
}

void print_fit(const std::vector<PreparedCase>& cases, const std::string& device) {
  std::vector<const PreparedCase*> chosen;
  for (const PreparedCase& prepared : cases) {
    if (prepared.published.device.starts_with(device) && prepared.published.is_rate() &&
        !is_mostly_attention(prepared.record)) {
      chosen.push_back(&prepared);
    }
  }
  if (chosen.empty()) {
    throw ConfigError(join_message("no case has device '", device, "'"),
                      "name a device of the files, such as A100-80, or A100 for all that begin so");
  }
  const cluster::Efficiency best =
      Fit(chosen).run(chosen.front()->cluster.devices.front().efficiency);
  std::cout << "efficiencies of " << device << " for " << chosen.size() << " cases\n"
            << "efficiency.product = " << report::fixed(best.product, 3) << '\n'
            << "efficiency.half_product_gigaflops = "
            << report::fixed(best.half_product_gigaflops, 3) << '\n'
            << "efficiency.memory = " << report::fixed(best.memory, 3) << '\n'
            << "efficiency.link = " << report::fixed(best.link, 3) << '\n';
}

}  // namespace

int validate_predictions(const std::vector<std::string>& files, const std::string& fit) {
  std::vector<PreparedCase> cases;
  for (const std::string& file : files) {
    for (const PublishedCase& published : read_published_cases(file)) {
      cases.push_back(prepare(published));
    }
  }
  if (!fit.empty()) {
    print_fit(cases, fit);
    return 0;
  }
  std::vector<Result> results;
  for (const PreparedCase& prepared : cases) results.push_back(predict_case(prepared, nullptr));
  const std::vector<double> trivial = trivial_errors(cases, results);
  TextWriter header;
  header << std::left << std::setw(44) << "case" << std::right << std::setw(12) << "published"
         << std::setw(12) << "predicted" << std::setw(10) << "error" << std::setw(10) << "trivial"
         << '\n';
  std::cout << header.str();
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> tables;
  std::vector<double> all;
  std::vector<double> trivial_of_all;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const PublishedCase& published = cases[i].published;
    if (!published.has_run()) {
      std::cout << published.title() << ": ran out of memory, predicted "
                << (results[i].fits ? "to fit" : "not to fit") << '\n';
      continue;
    }
    const double error = error_of(results[i].predicted, published.value);
    print_row(cases[i], results[i], error, trivial[i]);
    const std::string sums = published.table + (published.is_memory() ? ", memory" : "");
    tables[sums].first.push_back(error);
    tables[sums].second.push_back(trivial[i]);
    all.push_back(error);
    trivial_of_all.push_back(trivial[i]);
  }
  for (const auto& [table, errors] : tables) print_sums(table, errors.first, errors.second);
  print_sums("all", all, trivial_of_all);
  print_orders(cases, results);
  print_misfits(cases, results);
  return 0;
}

}  // namespace trireme::apps
