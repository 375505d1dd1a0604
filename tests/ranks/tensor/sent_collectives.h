// SPDX-License-Identifier: Apache-2.0
// What is predicted of calls, and what really travels, as text to compare.
#pragma once

#include <trireme/cluster/collective_cost.h>
#include <trireme/comm/monitor/flight_recorder.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/tensor/dry_run/dry_run_record.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace trireme::test {

/// `all-reduce on tensor, 96 bytes`.
inline std::string as_text(Collective collective, const std::string& axis, double bytes) {
  static const std::map<Collective, const char*> names = {
      {Collective::kAllReduce, "all-reduce"},
      {Collective::kAllGather, "all-gather"},
      {Collective::kReduceScatter, "reduce-scatter"},
      {Collective::kAllToAll, "all-to-all"},
      {Collective::kBroadcast, "broadcast"}};
  std::ostringstream text;
  text << names.at(collective) << " on " << axis << ", " << std::llround(bytes) << " bytes";
  return text.str();
}

inline std::vector<std::string> as_text(const std::vector<tensor::Exchange>& exchanges,
                                        const DeviceMesh& mesh) {
  std::vector<std::string> all;
  for (const tensor::Exchange& exchange : exchanges) {
    all.push_back(as_text(exchange.collective, mesh.axis_name(exchange.axis), exchange.bytes_sent));
  }
  return all;
}

/// Every collective that a call was predicted to make, in its order.
inline std::vector<std::string> predicted(const tensor::DryRunCall& call, const DeviceMesh& mesh) {
  std::vector<tensor::Exchange> all;
  const auto add = [&](const std::vector<tensor::Exchange>& exchanges) {
    all.insert(all.end(), exchanges.begin(), exchanges.end());
  };
  for (const auto& input : call.inputs) add(input.exchanges);
  add(call.inside);
  for (const auto& input : call.inputs) add(input.back);
  for (const auto& output : call.outputs) add(output.exchanges);
  return as_text(all, mesh);
}

/// Layouts, shapes and communication of a call, in one line.
inline std::string line_of(const tensor::DryRunCall& call) {
  std::ostringstream text;
  text << call.name;
  for (const auto& input : call.inputs) {
    text << " " << input.argument << c10::IntArrayRef(input.sizes) << input.dtype
         << input.given.to_string() << ">" << input.layout.to_string();
  }
  text << " ->";
  for (const auto& output : call.outputs) {
    text << " " << c10::IntArrayRef(output.sizes) << output.dtype << output.layout.to_string();
  }
  const auto& some = call.inputs.empty() ? call.outputs : call.inputs;
  if (!some.empty()) {
    for (const std::string& line : predicted(call, some.front().given.mesh())) text << "; " << line;
  }
  return text.str();
}

/// What this rank sent along the axes of a mesh whose engine is not shared memory.
class SentCollectives {
 public:
  explicit SentCollectives(const DeviceMesh& mesh) : mesh_(mesh) { take(); }

  /// Since the last call; at most the 128 last ones of an axis.
  std::vector<std::string> take() {
    std::vector<Record> found;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (mesh_.size(axis) == 1) continue;
      for (const comm::OperationRecord& record : mesh_.group(axis).recorder().records()) {
        if (record.number <= seen_[axis]) continue;
        seen_[axis] = record.number;
        found.push_back({record.started, text_of(record.what, axis)});
      }
    }
    std::ranges::stable_sort(found, {}, &Record::started);
    std::vector<std::string> all;
    for (Record& record : found) all.push_back(std::move(record.text));
    return all;
  }

 private:
  struct Record {
    std::chrono::nanoseconds started;
    std::string text;
  };

  // Of `all-reduce of 12 Float`, the elements of what a rank ends with.
  std::string text_of(const std::string& what, int axis) const {
    static const std::map<std::string, double> sizes = {{"Double", 8},   {"Float", 4}, {"Half", 2},
                                                        {"BFloat16", 2}, {"Long", 8},  {"Int", 4},
                                                        {"Byte", 1},     {"Char", 1},  {"Bool", 1}};
    std::istringstream words(what);
    std::string collective, of, type;
    double elements = 0;
    words >> collective >> of >> elements >> type;
    const std::int64_t ranks = mesh_.size(axis);
    const auto count = static_cast<double>(ranks);
    const double bytes = elements * sizes.at(type);
    const auto text = [&](Collective which, double whole) {
      return as_text(which, mesh_.axis_name(axis), bytes_sent(which, whole, ranks));
    };
    if (collective == "all-reduce") return text(Collective::kAllReduce, bytes);
    if (collective == "all-gather") return text(Collective::kAllGather, bytes);
    if (collective == "reduce-scatter") return text(Collective::kReduceScatter, bytes * count);
    if (collective == "all-to-all") return text(Collective::kAllToAll, bytes * count);
    return what;
  }

  DeviceMesh mesh_;
  std::map<int, std::uint64_t> seen_;
};

}  // namespace trireme::test
