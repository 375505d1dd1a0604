// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/cluster/units.h>
#include <trireme/predict/prediction.h>
#include <trireme/report/number.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <iomanip>
#include <string_view>

namespace trireme::predict {
namespace {

using report::bytes_as_text;

std::string duration(double seconds) {
  constexpr int kDigits = 2;
  if (seconds < cluster::kMilli) return report::fixed(seconds / cluster::kMicro, kDigits) + " us";
  if (seconds < 1) return report::fixed(seconds / cluster::kMilli, kDigits) + " ms";
  return report::fixed(seconds, kDigits) + " s";
}

// Times of failures, which may be days.
std::string long_duration(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  constexpr double kDay = 24 * kHour;
  if (seconds >= 3 * kDay) return report::fixed(seconds / kDay, 1) + " days";
  if (seconds >= 2 * kHour) return report::fixed(seconds / kHour, 1) + " h";
  if (seconds >= 2 * kMinute) return report::fixed(seconds / kMinute, 1) + " min";
  return duration(seconds);
}

std::string percent(double share) { return report::fixed(share * 100, 1) + " %"; }

void line(TextWriter& text, std::string_view name, const std::string& value,
          const std::string& more = {}) {
  constexpr int kNames = 22;
  constexpr int kValues = 14;
  text << "  " << std::left << std::setw(kNames) << name << std::right << std::setw(kValues)
       << value;
  if (!more.empty()) text << "  " << more;
  text << '\n';
}

std::int64_t whole(double bytes) { return static_cast<std::int64_t>(bytes); }

void write_parts(TextWriter& text, const Prediction& prediction) {
  const StepParts& parts = prediction.parts;
  const auto part = [&](std::string_view name, double seconds) {
    if (seconds <= 0) return;
    line(text, name, duration(seconds), percent(seconds / prediction.step_seconds));
  };
  part("compute", parts.compute);
  part("recomputation", parts.recomputation);
  part("layouts", parts.layouts);
  part("exchange along data", parts.data_exchange);
  part("pipeline", parts.pipeline);
  part("optimizer", parts.optimizer);
}

void write_memory(TextWriter& text, const Prediction& prediction) {
  const auto largest =
      std::ranges::max_element(prediction.memory, {}, &RankMemoryPrediction::total);
  if (largest == prediction.memory.end()) return;
  const auto part = [&](std::string_view name, double bytes) {
    if (bytes > 0) line(text, name, bytes_as_text(bytes));
  };
  text << "memory of a rank";
  if (prediction.memory.size() > 1) {
    text << " (number " << largest - prediction.memory.begin() << " along pipe, the largest)";
  }
  text << '\n';
  line(text, "peak", bytes_as_text(largest->total()),
       join_message(prediction.fits() ? "of " : "DOES NOT FIT into ",
                    bytes_as_text(prediction.device_memory)));
  part("parameters", largest->parameters);
  part("gradients", largest->gradients);
  part("optimizer", largest->optimizer);
  part("buckets", largest->buckets);
  part("activations", largest->activations);
  part("temporary", largest->temporary);
  part("inputs", largest->inputs);
  if (largest->lost > 0) {
    line(text, "lost by allocator", bytes_as_text(largest->lost), "beyond the peak");
  }
  part("host memory", largest->host);
  if (!largest->peak_module.empty()) {
    text << "  the peak is reached in " << largest->peak_module << '\n';
  }
  constexpr std::size_t kShown = 3;
  for (std::size_t i = 0; i < std::min(kShown, largest->activations_by_module.size()); ++i) {
    const auto& [module, bytes] = largest->activations_by_module[i];
    line(text, i == 0 ? "most is kept by" : "", bytes_as_text(bytes),
         module.empty() ? "code outside of modules" : module);
  }
}

void write_faults(TextWriter& text, const FaultPrediction& faults, double step_seconds) {
  text << "failures\n";
  line(text, "one in", long_duration(faults.failure_seconds));
  line(text, "save every", long_duration(faults.interval),
       faults.interval == faults.best_interval
           ? "which is best"
           : join_message("best: ", long_duration(faults.best_interval)));
  line(text, "useful", percent(faults.useful_share), "of the time");
  line(text, "saving", percent(faults.saving_share));
  line(text, "lost to failures", percent(faults.lost_share));
  if (faults.useful_share > 0) {
    line(text, "step with all this", duration(step_seconds / faults.useful_share));
  }
}

nlohmann::ordered_json json_of(const FaultPrediction& faults) {
  return {{"failure_seconds", faults.failure_seconds},
          {"young_interval", faults.young_interval},
          {"daly_interval", faults.daly_interval},
          {"best_interval", faults.best_interval},
          {"interval", faults.interval},
          {"useful_share", faults.useful_share},
          {"saving_share", faults.saving_share},
          {"lost_share", faults.lost_share}};
}

nlohmann::ordered_json json_of(const RankMemoryPrediction& memory) {
  nlohmann::ordered_json modules = nlohmann::ordered_json::array();
  for (const auto& [module, bytes] : memory.activations_by_module) {
    modules.push_back({{"module", module}, {"bytes", whole(bytes)}});
  }
  return {{"total", whole(memory.total())},       {"parameters", whole(memory.parameters)},
          {"gradients", whole(memory.gradients)}, {"optimizer", whole(memory.optimizer)},
          {"buckets", whole(memory.buckets)},     {"activations", whole(memory.activations)},
          {"temporary", whole(memory.temporary)}, {"inputs", whole(memory.inputs)},
          {"lost", whole(memory.lost)},           {"host", whole(memory.host)},
          {"peak_module", memory.peak_module},    {"activations_by_module", modules}};
}

}  // namespace

double Prediction::peak_memory() const noexcept {
  double peak = 0;
  for (const RankMemoryPrediction& rank : memory) peak = std::max(peak, rank.total());
  return peak;
}

bool Prediction::fits() const noexcept {
  return std::ranges::all_of(memory, [&](const RankMemoryPrediction& rank) {
    return rank.total() + rank.lost <= device_memory;
  });
}

std::string to_string(const Prediction& prediction) {
  TextWriter text;
  text << "prediction for " << prediction.ranks << (prediction.ranks == 1 ? " rank" : " ranks")
       << " on " << prediction.cluster << '\n';
  line(text, "parameters", report::count_as_text(prediction.parameters));
  line(text, "step", duration(prediction.step_seconds));
  write_parts(text, prediction);
  const double rate = prediction.flops_per_rank / prediction.step_seconds / cluster::kTera;
  line(text, "of each rank", report::fixed(rate, 1) + " TFLOP/s",
       prediction.utilization > 0 ? percent(prediction.utilization) + " of its peak" : "");
  write_memory(text, prediction);
  text << "checkpoint\n";
  line(text, "size", bytes_as_text(prediction.checkpoint_bytes));
  if (prediction.checkpoint_seconds > 0) {
    line(text, "time to write", duration(prediction.checkpoint_seconds));
  }
  if (prediction.faults) write_faults(text, *prediction.faults, prediction.step_seconds);
  return text.str();
}

std::string to_json(const Prediction& prediction) {
  const StepParts& parts = prediction.parts;
  nlohmann::ordered_json memory = nlohmann::ordered_json::array();
  for (const RankMemoryPrediction& rank : prediction.memory) memory.push_back(json_of(rank));
  nlohmann::ordered_json all = {{"cluster", prediction.cluster},
                                {"ranks", prediction.ranks},
                                {"parameters", prediction.parameters},
                                {"step_seconds", prediction.step_seconds},
                                {"parts",
                                 {{"compute", parts.compute},
                                  {"recomputation", parts.recomputation},
                                  {"layouts", parts.layouts},
                                  {"data_exchange", parts.data_exchange},
                                  {"pipeline", parts.pipeline},
                                  {"optimizer", parts.optimizer}}},
                                {"flops_per_rank", prediction.flops_per_rank},
                                {"repeated_flops", prediction.repeated_flops},
                                {"utilization", prediction.utilization},
                                {"stage_seconds", prediction.stage_seconds},
                                {"peak_memory", whole(prediction.peak_memory())},
                                {"device_memory", whole(prediction.device_memory)},
                                {"fits", prediction.fits()},
                                {"memory", memory},
                                {"checkpoint_bytes", whole(prediction.checkpoint_bytes)},
                                {"checkpoint_seconds", prediction.checkpoint_seconds}};
  if (prediction.faults) all["faults"] = json_of(*prediction.faults);
  constexpr int kIndent = 2;
  return all.dump(kIndent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace trireme::predict
