// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/published_case.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/cluster/cluster_file.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <string_view>

namespace trireme::apps {
namespace {

std::vector<std::string> split(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  std::vector<std::string> words;
  while (true) {
    const std::size_t comma = line.find(',');
    words.emplace_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return words;
    line.remove_prefix(comma + 1);
  }
}

// One line with the names of its columns.
class Row {
 public:
  Row(const std::string& file, int line, std::map<std::string, std::string> words)
      : file_(file), line_(line), words_(std::move(words)) {}

  const std::string& text(const std::string& column) const {
    const auto found = words_.find(column);
    if (found == words_.end() || found->second.empty()) refuse(column, "", "a value");
    return found->second;
  }
  std::string text_or(const std::string& column, const std::string& otherwise) const {
    const auto found = words_.find(column);
    return found == words_.end() || found->second.empty() ? otherwise : found->second;
  }
  std::int64_t count(const std::string& column) const {
    return parsed<std::int64_t>(column, text(column));
  }
  std::int64_t count_or(const std::string& column, std::int64_t otherwise) const {
    const std::string word = text_or(column, "");
    return word.empty() ? otherwise : parsed<std::int64_t>(column, word);
  }
  double number(const std::string& column) const { return parsed<double>(column, text(column)); }
  double number_or(const std::string& column, double otherwise) const {
    const std::string word = text_or(column, "");
    return word.empty() ? otherwise : parsed<double>(column, word);
  }
  double share_or(const std::string& column, double otherwise) const {
    const std::string word = text_or(column, "");
    if (word.empty()) return otherwise;
    const auto value = parse_number<double>(word);
    if (!value || !(*value >= 0 && *value < 1)) refuse(column, word, "a number from 0 to below 1");
    return *value;
  }
  [[noreturn]] void refuse(const std::string& column, const std::string& value,
                           const std::string& expected) const {
    throw DataError(join_message(file_, ":", line_, ": column ", column, " is '", value, "'"),
                    join_message("expected ", expected));
  }

 private:
  template <typename T>
  T parsed(const std::string& column, const std::string& word) const {
    const auto value = parse_number<T>(word);
    if (!value || !(*value > 0)) refuse(column, word, "a number above 0");
    return *value;
  }

  const std::string& file_;
  int line_;
  std::map<std::string, std::string> words_;
};

constexpr std::array<std::string_view, 6> kMetrics = {"tokens_per_second_per_device",
                                                      "tflops_per_device",
                                                      "rows_per_second",
                                                      "step_seconds",
                                                      "memory_gib",
                                                      "out_of_memory"};

// What the authors of a system say about it, for the tables whose names begin so.
struct KnownSystem {
  std::string_view table;
  AttentionKernel attention = AttentionKernel::kFused;
  predict::Elements elements = predict::Elements::kEager;
  double dropout = 0;
  bool gathers_ahead_in_backward = true;
  bool repeats_whole_blocks = true;
  // Bandwidth of a host, where it is not that of the description.
  double a100_gbit_per_s = 0;
  double h100_gbit_per_s = 0;
  // Selective recomputation repeats every n-th block, with an n that is not published.
  bool selects_blocks = false;
};

constexpr std::array<KnownSystem, 4> kSystems = {{
    {.table = "megatron",
     .attention = AttentionKernel::kUnfused,
     .elements = predict::Elements::kFused,
     .dropout = 0.1},
    {.table = "mosaicml",
     .attention = AttentionKernel::kTriton,
     .gathers_ahead_in_backward = false},
    {.table = "ibm_fms",
     .elements = predict::Elements::kCompiled,
     .repeats_whole_blocks = false,
     .a100_gbit_per_s = 400,
     .h100_gbit_per_s = 800,
     .selects_blocks = true},
    {.table = "torchtitan",
     .elements = predict::Elements::kCompiled,
     .repeats_whole_blocks = false},
}};

// Dao, "FlashAttention-2" (2023), section 4: it is 1.3 to 2.5 times as fast as FlashAttention in
// Triton. This is the geometric mean of both.
constexpr double kSpeedupOverTriton = 1.8;

// Of other systems, those that train in fp16 are taken to be older than fused attention.
KnownSystem system_of(const std::string& table, const std::string& dtype) {
  for (const KnownSystem& system : kSystems) {
    if (table.starts_with(system.table)) return system;
  }
  if (dtype != "float16") return {};
  return {.attention = AttentionKernel::kUnfused, .elements = predict::Elements::kFused};
}

void read_system(const Row& row, PublishedCase& published) {
  const KnownSystem system = system_of(published.table, published.dtype);
  published.attention = system.attention;
  published.elements = system.elements;
  published.gathers_ahead_in_backward = system.gathers_ahead_in_backward;
  published.repeats_whole_blocks = system.repeats_whole_blocks;
  if (published.host_gbit_per_s == 0) {
    if (published.device.starts_with("A100")) published.host_gbit_per_s = system.a100_gbit_per_s;
    if (published.device.starts_with("H100")) published.host_gbit_per_s = system.h100_gbit_per_s;
  }
  if (published.family == "gpt") published.dropout = row.share_or("dropout", system.dropout);
  if (published.recompute == "selective" && system.selects_blocks) {
    published.recompute = "some_blocks";
  }
  if (const std::string attention = row.text_or("attention", ""); !attention.empty()) {
    if (attention == "fused") {
      published.attention = AttentionKernel::kFused;
    } else if (attention == "triton") {
      published.attention = AttentionKernel::kTriton;
    } else if (attention == "unfused") {
      published.attention = AttentionKernel::kUnfused;
    } else {
      row.refuse("attention", attention, "fused, triton or unfused");
    }
  }
  if (const std::string elements = row.text_or("elements", ""); !elements.empty()) {
    if (elements == "eager") {
      published.elements = predict::Elements::kEager;
    } else if (elements == "fused") {
      published.elements = predict::Elements::kFused;
    } else if (elements == "compiled") {
      published.elements = predict::Elements::kCompiled;
    } else {
      row.refuse("elements", elements, "eager, fused or compiled");
    }
  }
}

PublishedCase case_of(const Row& row) {
  PublishedCase published = {.table = row.text("table"),
                             .family = row.text("model"),
                             .layers = row.count("layers"),
                             .hidden = row.count("hidden"),
                             .heads = row.count("heads"),
                             .key_value_heads = row.count_or("key_value_heads", 0),
                             .ffn = row.count("ffn"),
                             .vocabulary = row.count("vocabulary"),
                             .sequence = row.count("sequence"),
                             .device = row.text("device"),
                             .devices = row.count("devices"),
                             .dtype = row.text("dtype"),
                             .tensor = row.count("tensor"),
                             .pipe = row.count("pipe"),
                             .layers_per_stage = row.count_or("layers_per_virtual_stage", 0),
                             .data = row.count("data"),
                             .recompute = row.text_or("recompute", "none"),
                             .micro_batch = row.count("micro_batch"),
                             .global_batch = row.count("global_batch"),
                             .host_gbit_per_s = row.number_or("host_gbit_per_s", 0),
                             .metric = row.text("metric")};
  // Nothing was measured of a training that ran out of memory.
  published.value = published.has_run() ? row.number("value") : row.number_or("value", 1);
  if (published.family.starts_with("llama")) published.family = "llama";
  if (published.family != "gpt" && published.family != "llama") {
    row.refuse("model", published.family, "gpt or llama");
  }
  if (published.family == "gpt" && published.ffn != 4 * published.hidden) {
    row.refuse("ffn", std::to_string(published.ffn), "four times hidden for a gpt");
  }
  if (published.family == "gpt" && published.key_value_heads > 0) {
    row.refuse("key_value_heads", std::to_string(published.key_value_heads), "nothing for a gpt");
  }
  const std::string zero = row.text_or("zero", "0");
  published.shards_in_host = zero == "hybrid";
  const auto level = parse_number<int>(zero);
  if (!published.shards_in_host && (!level || *level < 0 || *level > 3)) {
    row.refuse("zero", zero, "0 to 3, or hybrid");
  }
  published.zero_level = level.value_or(3);
  const std::int64_t ranks = published.tensor * published.pipe * published.data;
  if (ranks != published.devices) {
    row.refuse("devices", std::to_string(published.devices),
               join_message("tensor * pipe * data, which is ", ranks));
  }
  if (published.global_batch % (published.micro_batch * published.data) != 0) {
    row.refuse("global_batch", std::to_string(published.global_batch),
               "a multiple of micro_batch * data");
  }
  if (published.recompute != "none" && published.recompute != "full" &&
      published.recompute != "selective" && published.recompute != "some_blocks") {
    row.refuse("recompute", published.recompute, "none, full, selective or some_blocks");
  }
  read_system(row, published);
  if (std::ranges::find(kMetrics, published.metric) == kMetrics.end()) {
    std::string names;
    for (const std::string_view name : kMetrics) {
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    row.refuse("metric", published.metric, "one of " + names);
  }
  return published;
}

double megatron_flops(const PublishedCase& published) {
  const auto s = static_cast<double>(published.sequence);
  const auto h = static_cast<double>(published.hidden);
  const auto l = static_cast<double>(published.layers);
  const double factor = published.recompute == "full" ? 96 : 72;
  return factor * static_cast<double>(published.global_batch) * s * l * h * h *
         (1 + s / (6 * h) + static_cast<double>(published.vocabulary) / (16 * l * h));
}

}  // namespace

std::vector<std::string> PublishedCase::model_settings() const {
  std::vector<std::string> settings = {
      join_message("layers=", layers), join_message("hidden=", hidden),
      join_message("heads=", heads), join_message("vocabulary=", vocabulary),
      join_message("sequence=", sequence)};
  if (family == "gpt") settings.push_back(join_message("dropout=", dropout));
  if (family != "llama") return settings;
  settings.push_back(join_message("feed_forward=", ffn));
  if (key_value_heads > 0) settings.push_back(join_message("key_value_heads=", key_value_heads));
  return settings;
}

cluster::Cluster PublishedCase::cluster() const {
  std::string name = device;
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  cluster::Cluster cluster = cluster::read_cluster(name);
  if (attention == AttentionKernel::kTriton) {
    cluster.devices.front().attention_share /= kSpeedupOverTriton;
  }
  if (host_gbit_per_s > 0) {
    constexpr double kBitsOfByte = 8;
    for (cluster::Links& links : cluster.links) {
      if (links.level == cluster::LinkLevel::kHost) continue;
      const auto devices_of_host = static_cast<double>(cluster.hosts.front().devices);
      links.gb_per_s =
          host_gbit_per_s / kBitsOfByte / devices_of_host * static_cast<double>(links.shared_by);
    }
  }
  return cluster;
}

double PublishedCase::metric_of(const predict::Prediction& prediction) const {
  const double step = prediction.step_seconds;
  const auto rows = static_cast<double>(global_batch);
  const auto ranks = static_cast<double>(devices);
  constexpr double kTera = 1e12;
  constexpr double kGiB = 1 << 30;
  if (metric == "tokens_per_second_per_device") {
    return rows * static_cast<double>(sequence) / step / ranks;
  }
  if (metric == "tflops_per_device") return megatron_flops(*this) / step / ranks / kTera;
  if (metric == "rows_per_second") return rows / step;
  if (metric == "step_seconds") return step;
  if (metric == "out_of_memory") return 1;
  if (metric == "memory_gib") return prediction.peak_memory() / kGiB;
  throw InternalError(join_message("a case has metric ", metric), "please report it");
}

std::string PublishedCase::same_work() const {
  return join_message(table, ", ", family, " ", layers, "x", hidden, " s", sequence, ", ", devices,
                      " ", device);
}

std::string PublishedCase::title() const {
  return join_message(family, " ", layers, "x", hidden, " s", sequence, ", ", devices, " ", device,
                      tensor > 1 ? join_message(" t", tensor) : "",
                      pipe > 1 ? join_message(" p", pipe) : "");
}

std::vector<PublishedCase> read_published_cases(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) {
    throw DataError(join_message("cannot read ", file), "name a CSV file with published cases");
  }
  std::string line;
  std::getline(stream, line);
  const std::vector<std::string> names = split(line);
  std::vector<PublishedCase> cases;
  for (int number = 2; std::getline(stream, line); ++number) {
    if (line.empty() || line == "\r") continue;
    const std::vector<std::string> words = split(line);
    if (words.size() != names.size()) {
      throw DataError(join_message(file, ":", number, ": ", words.size(), " values, and ",
                                   names.size(), " columns"),
                      "give one value for each column; it may be empty");
    }
    std::map<std::string, std::string> by_name;
    for (std::size_t i = 0; i < names.size(); ++i) by_name.emplace(names[i], words[i]);
    cases.push_back(case_of(Row(file, number, std::move(by_name))));
  }
  if (cases.empty())
    throw DataError(join_message(file, " has no cases"), "see docs/formats/published-cases.md");
  return cases;
}

}  // namespace trireme::apps
