// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/cluster_file.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/config/configuration.h>
#include <trireme/base/config/suggestion.h>
#include <trireme/base/config/toml.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/warning.h>
#include <trireme/cluster/known_clusters.h>

#include <algorithm>
#include <cmath>
#include <system_error>

namespace trireme::cluster {
namespace {

// TOML has inf and nan, which no figure may be.
config::Field<double>& finite(config::Field<double>& field) {
  return field.check_that([](double value) { return std::isfinite(value); }, "finite");
}

void add_number(config::Fields& fields, const char* name, double& value, const char* description) {
  finite(fields.add(name, value, description).at_least(0));
}

void add_share(config::Fields& fields, const char* name, double& share, const char* description) {
  fields.add(name, share, description).between(0.01, 1);
}

// Returns one element of a list of tables as the lines of `[[key]]`.
std::string section_text(const std::string& key, const config::Value& element) {
  std::string text = "\n[[" + key + "]]\n";
  for (const auto& [name, origin, value] : *element.get<config::Value::Table>()) {
    text += name + " = " + toml_text(value) + "\n";
  }
  return text;
}

// Refuses a description that is not complete, and warns of figures that cannot be.
void check_as_a_whole(const Cluster& cluster, const std::string& origin) {
  const std::string text = list_text(problems_of(cluster), "; ");
  if (!text.empty()) {
    throw ConfigError(join_message(origin, ": ", text),
                      "docs/formats/cluster.md lists all keys with their units");
  }
  for (const std::string& warning : implausible_figures(cluster)) warn(warning);
}

}  // namespace

config::EnumNames<LinkLevel> enum_names(LinkLevel /*level*/) {
  return {{LinkLevel::kHost, "host"}, {LinkLevel::kPod, "pod"}, {LinkLevel::kCluster, "cluster"}};
}

void describe(config::Fields& fields, PeakTeraflops& peak) {
  const auto add = [&](const char* name, double& rate, const char* description) {
    add_number(fields, name, rate, description);
  };
  add("float64", peak.float64, "peak of products in fp64, TFLOP/s; 0: not supported");
  add("float32", peak.float32, "peak of products in fp32, TFLOP/s; 0: not supported");
  add("tf32", peak.tf32, "peak of products of fp32 tensors in TF32, TFLOP/s; 0: not supported");
  add("float16", peak.float16, "peak of products in fp16, TFLOP/s; 0: not supported");
  add("bfloat16", peak.bfloat16, "peak of products in bf16, TFLOP/s; 0: not supported");
  add("float8", peak.float8, "peak of products in fp8, TFLOP/s; 0: not supported");
}

void describe(config::Fields& fields, Efficiency& efficiency) {
  add_share(fields, "product", efficiency.product,
            "share of the peak that a large product reaches");
  add_number(fields, "half_product_gigaflops", efficiency.half_product_gigaflops,
             "work of a product that reaches half of that share, 10^9 FLOPs");
  add_share(fields, "memory", efficiency.memory,
            "share of the memory bandwidth that operators bound by it reach");
  add_share(fields, "link", efficiency.link, "share of a link's bandwidth that collectives reach");
}

void describe(config::Fields& fields, DeviceKind& kind) {
  fields.add("name", kind.name, "name of the kind");
  fields.add("teraflops", kind.teraflops, "peak rates of matrix products by dtype, TFLOP/s");
  finite(fields.add("memory_gib", kind.memory_gib, "memory, GiB").above(0));
  finite(fields.add("memory_gb_per_s", kind.memory_gb_per_s, "memory bandwidth, GB/s").above(0));
  add_number(fields, "kernel_us", kind.kernel_us, "time of an empty kernel, microseconds");
  add_number(fields, "host_gb_per_s", kind.host_gb_per_s,
             "rate of copies between device and host memory in one direction, GB/s; 0: unknown");
  add_share(fields, "attention_share", kind.attention_share,
            "share of the rate of products that fused attention reaches");
  fields.add("efficiency", kind.efficiency, "what is reached of the peaks");
}

void describe(config::Fields& fields, Hosts& hosts) {
  fields.add("count", hosts.count, "number of hosts; 0, in the last entry: as many as needed")
      .between(0, kMostHosts);
  fields.add("devices", hosts.devices, "devices of each host").between(1, kMostDevices);
  fields.add("device", hosts.device, "kind of the devices");
  add_number(fields, "memory_gib", hosts.memory_gib, "host memory, GiB; 0: unknown");
  add_number(fields, "memory_gb_per_s", hosts.memory_gb_per_s,
             "bandwidth of host memory, GB/s; 0: unknown");
  add_number(fields, "disk_gb_per_s", hosts.disk_gb_per_s,
             "rate of writing checkpoints, GB/s; 0: unknown");
  add_number(fields, "failure_hours", hosts.failure_hours,
             "mean time between failures of one host, hours; 0: none fail");
}

void describe(config::Fields& fields, Links& links) {
  fields.add("level", links.level, "what the links connect");
  add_number(fields, "latency_us", links.latency_us, "time of an empty message, microseconds");
  finite(fields.add("gb_per_s", links.gb_per_s, "rate at which one port sends, GB/s").above(0));
  fields.add("shared_by", links.shared_by, "devices of a host that share a port")
      .between(1, kMostDevices);
  fields.add("full_duplex", links.is_full_duplex, "a port receives at the same rate as it sends");
  fields
      .add("compute_share", links.compute_share,
           "share of computing power that a transfer takes while it runs")
      .between(0, 0.99);
  fields.add("hosts", links.hosts, "hosts in a pod").between(0, kMostHosts);
}

void describe(config::Fields& fields, Curve& curve) {
  fields.add("sizes", curve.sizes, "sizes of the work, ascending").above(0);
  fields.add("microseconds", curve.microseconds, "time of each size").above(0);
}

void describe(config::Fields& fields, MeasuredOperator& measured) {
  fields.add("device", measured.device, "kind of the device");
  fields.add("name", measured.name, "operator, such as aten::addmm");
  fields.add("dtype", measured.dtype, "dtype of the first operand");
  fields.add("curve", measured.curve,
             "times; sizes are 10^9 FLOPs of products and attention, 10^6 bytes of others");
}

void describe(config::Fields& fields, MeasuredCollective& measured) {
  fields.add("name", measured.name, "collective, or message");
  fields.add("ranks", measured.ranks, "ranks of the group").between(2, kMostDevices);
  fields.add("curve", measured.curve, "times; sizes are 10^6 bytes");
}

void describe(config::Fields& fields, MeasuredOptimizer& measured) {
  fields.add("device", measured.device, "kind of the device");
  fields.add("name", measured.name, "sgd, momentum or adam");
  fields.add("curve", measured.curve, "times; sizes are 10^6 bytes of parameters of one tensor");
}

void describe(config::Fields& fields, Cluster& cluster) {
  fields.add("name", cluster.name, "name that predictions show");
  fields.add("source", cluster.source, "where the figures are from");
  fields.add("devices", cluster.devices, "kinds of devices");
  fields.add("hosts", cluster.hosts, "hosts, in the order of ranks");
  fields.add("links", cluster.links, "links, from the innermost level to the outermost");
  fields.add("operators", cluster.operators, "measured times of operators");
  fields.add("collectives", cluster.collectives, "measured times of collectives inside of a host");
  fields.add("optimizers", cluster.optimizers, "measured times of optimizers");
}

std::vector<std::string> known_clusters() {
  std::vector<std::string> names;
  for (const KnownCluster& known : known_cluster_texts()) names.emplace_back(known.name);
  return names;
}

Cluster read_cluster(const std::string& name_or_file) {
  Cluster cluster;
  config::Configuration configuration(cluster);
  const auto texts = known_cluster_texts();
  const auto known = std::ranges::find(texts, name_or_file, &KnownCluster::name);
  std::error_code ignored;  // a file that cannot be looked at is one that cannot be read
  if (known != texts.end()) {
    configuration.read_text(known->toml, join_message("cluster ", name_or_file));
  } else if (std::filesystem::status(name_or_file, ignored).type() !=
             std::filesystem::file_type::not_found) {
    configuration.read_file(name_or_file);
  } else {
    const std::string nearest = config::did_you_mean(name_or_file, known_clusters());
    throw ConfigError(
        join_message("there is no cluster '", name_or_file, "' and no file of this name"),
        join_message(nearest, nearest.empty() ? "" : " ",
                     "the descriptions that come with Trireme are ", list_text(known_clusters())));
  }
  check_as_a_whole(cluster, name_or_file);
  return cluster;
}

std::string absolute_cluster_name(const std::string& name_or_file) {
  const auto texts = known_cluster_texts();
  if (std::ranges::find(texts, name_or_file, &KnownCluster::name) != texts.end()) {
    return name_or_file;
  }
  return std::filesystem::absolute(name_or_file).string();
}

Cluster parse_cluster(const std::string& text, const std::string& origin) {
  Cluster cluster;
  config::Configuration(cluster).read_text(text, origin);
  check_as_a_whole(cluster, origin);
  return cluster;
}

std::string to_toml(const Cluster& cluster) {
  Cluster copy = cluster;
  config::Configuration(copy).check();
  std::string text =
      "# A description of a cluster: docs/formats/cluster.md lists keys and units.\n";
  std::string sections;
  const config::Value whole = config::Codec<Cluster>::write(cluster);
  for (const auto& [key, origin, value] : *whole.get<config::Value::Table>()) {
    if (const auto* list = value.get<config::Value::List>()) {
      for (const config::Value& element : *list) sections += section_text(key, element);
    } else {
      text += key + " = " + toml_text(value) + "\n";
    }
  }
  text += sections;
  // Reading the text back proves that it can be read again.
  Cluster back;
  config::Configuration(back).read_text(text, "cluster " + cluster.name);
  if (back != cluster) {
    throw ConfigError(join_message("TOML cannot hold the texts of cluster '", cluster.name, "'"),
                      "names and the source must be UTF-8");
  }
  return text;
}

void write_cluster(const Cluster& cluster, const std::filesystem::path& file) {
  write_file(file, to_toml(cluster));
}

}  // namespace trireme::cluster
