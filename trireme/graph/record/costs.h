// SPDX-License-Identifier: Apache-2.0
// Counts what the kernels of forward and backward cost, and attributes it to recorded operators.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/record/recorder.h>
#include <trireme/tensor/dry_run/dry_run_record.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme::graph::detail {

/// Measures workspaces of oneDNN's recurrent layers by running the kernel on zeros, once per shape.
class Workspaces {
 public:
  /// Returns the bytes of the workspace that a call of backward gets; 0 for operators without one.
  std::int64_t bytes(const tensor::DryRunCall& backward);

 private:
  using Sizes = std::vector<std::vector<std::int64_t>>;
  std::map<std::pair<at::ScalarType, Sizes>, std::int64_t> known_;
};

/// The factors that a product saves. A graph records products with their factors as they are;
/// LibTorch folds or expands the factors first, and if that makes a copy, it saves the copy.
struct SavedFactors {
  bool has_first = false;         ///< the first factor itself is saved
  bool has_second = false;        ///< the second factor itself is saved
  std::int64_t copied_bytes = 0;  ///< bytes of copies that are saved instead of factors
};

/// Returns what is saved for a call of linear_backward or matmul_backward; nullopt for other calls.
/// It multiplies meta tensors and looks at what autograd saves.
std::optional<SavedFactors> saved_factors(const tensor::DryRunCall& backward);

/// Gets every call of the dry run, in order, and updates the graph.
class Costs {
 public:
  Costs(Graph& graph, Recorder& recorder) : graph_(&graph), recorder_(&recorder) {}

  /// Ends the recording of forward: further calls belong to backward.
  void begin_backward();

  void add(const tensor::DryRunCall& call);

 private:
  // A call of forward.
  struct Made {
    int node = -1;
    int viewed = -1;  // for a view: the call that made its base
    bool is_view = false;
    std::string name = {};                 // for a view: name of the parameter or input viewed
    std::vector<std::int64_t> bytes = {};  // of each result
  };
  // What the schema says about an operator.
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
  std::unordered_map<std::string, ValueId> named_;        // inputs, parameters and buffers by name
  // Values that lie in the memory of a call's result, by that call.
  std::unordered_map<int, std::vector<ValueId>> memories_;
  // Results that are saved and are no values: their number, by call and bytes. A call of backward
  // names the call that made what it reads, but not which of its results. Results of equal size are
  // therefore counted.
  using Unnamed = std::map<std::pair<int, std::int64_t>, int>;
  Unnamed saved_;
  Workspaces workspaces_;
  Unnamed read_;  // what the current call of backward has read so far
};

}  // namespace trireme::graph::detail
