// SPDX-License-Identifier: Apache-2.0
// What the kernels of forward and backward cost, by the operator that they are part of.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/record/recorder.h>
#include <trireme/graph/record/workspace.h>
#include <trireme/tensor/dry_run/dry_run_record.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme::graph::detail {

/// Is told of every recorded call, in their order.
class Costs {
 public:
  Costs(Graph& graph, Recorder& recorder) : graph_(&graph), recorder_(&recorder) {}

  /// Forward is recorded; what comes now is backward.
  void begin_backward();

  void add(const tensor::DryRunCall& call);

 private:
  struct Made {
    int node = -1;
    int viewed = -1;  // the call that made what it gives views of
    bool is_view = false;
    std::string name = {};                 // of a parameter or input that it gives views of
    std::vector<std::int64_t> bytes = {};  // of results
  };
  struct Known {
    bool is_random = false;
    bool is_view = false;
  };

  const Known& known(const std::string& name);
  int root_of(int call) const;
  std::int64_t bytes_of_root(int call, const tensor::DryRunTensor& view) const;
  void add_backward(const tensor::DryRunCall& call);
  void save(const tensor::DryRunTensor& tensor, int reader);
  void save_result(int call, std::int64_t bytes, int reader);
  void save_before(const tensor::DryRunTensor& tensor, const std::string& name, int reader);
  void note(ValueId value, int reader);

  Graph* graph_;
  Recorder* recorder_;
  bool is_backward_ = false;
  std::vector<Made> forward_;
  std::unordered_map<std::string, Known> operators_;
  std::unordered_map<int, std::vector<ValueId>> values_;  // by the call that made them
  std::unordered_map<std::string, ValueId> named_;        // of what was there before
  // By the call that took their memory, of values that are views of it.
  std::unordered_map<int, std::vector<ValueId>> memories_;
  // What is saved and no value: by call and bytes, how many of them. A call of backward says which
  // call made what it reads, not which of its results it is: as many as one takes are there.
  using Unnamed = std::map<std::pair<int, std::int64_t>, int>;
  Unnamed saved_;
  Workspaces workspaces_;
  Unnamed read_;  // by the call of backward at hand
};

}  // namespace trireme::graph::detail
