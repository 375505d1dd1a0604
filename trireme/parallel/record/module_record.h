// SPDX-License-Identifier: Apache-2.0
// What one rank computes in a micro-batch: the operators of forward and backward with their work,
// their collectives and the memory that they make, as the dry run of a module records them.
// Predictions and the search for plans start from it.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/cluster/collective_cost.h>
#include <trireme/cluster/operator_time.h>
#include <trireme/graph/module_ref.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/record/module_dry_run.h>
#include <trireme/plan/plan.h>
#include <trireme/tensor/dry_run/call_trace.h>
#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// A collective that an operator needs.
struct Transfer {
  Collective collective = Collective::kAllReduce;
  std::string axis;  ///< axis of the plan's mesh
  double bytes = 0;  ///< size of the whole tensor (trireme::seconds)
  /// True if it runs while the operator computes all but one of as many parts of its work as the
  /// axis has ranks.
  bool overlaps = false;
};

/// One call of an operator on one rank. Calls are numbered through forward and backward.
struct OperatorCall {
  std::string name;            ///< such as `aten::addmm`
  std::string module;          ///< path of the module, by graph::detail::modules_of_operators
  cluster::OperatorWork work;  ///< of this rank's parts; nothing for views
  std::vector<Transfer> transfers;
  /// Floating-point operations of this rank as a captured graph counts them: those of products, and
  /// one for each element of other operators. TrainingStep chooses by them what it recomputes.
  double counted_flops = 0;
  int writes_to = -1;         ///< earlier call whose result it writes to in place
  bool is_view = false;       ///< shares the memory of what it reads
  double result_bytes = 0;    ///< memory of the results on this rank, but for gradients of
                              ///< parameters; 0 for views and writes
  double gradient_bytes = 0;  ///< memory of the gradients of parameters that it makes
  std::vector<int> reads;     ///< earlier calls that made what it reads; views are looked through
  std::vector<double> read_bytes;  ///< what it reads of each, in bytes
  /// Backward computes the results again from what is kept, in the kernels that read them, and does
  /// not keep them (fuse_elements()).
  bool is_rematerialized = false;
  int forward_call = -1;  ///< of a call of backward: the last call of forward that it belongs to
  /// Share of the call that computes gradients of parameters, between 0 and 1.
  double weight_share = 0;
  std::vector<int> parameters;  ///< parameters that it reads, as positions in ModuleRecord
};

struct ParameterRecord {
  std::string name;
  double elements = 0;         ///< on this rank, before ZeRO
  double bytes = 0;            ///< the same in bytes
  double global_elements = 0;  ///< of the whole tensor
  bool requires_grad = false;  ///< has a gradient and optimizer state
  bool is_half = false;        ///< fp16 or bf16
};

/// A gradient that backward makes in another layout than that of its parameter. It is redistributed
/// once in a step, after the last backward.
struct GradientTransfer {
  int parameter = 0;  ///< position in ModuleRecord
  Transfer transfer;
  double copy_bytes = 0;  ///< memory on this rank beside the gradient that was made
};

struct ModuleRecord {
  std::vector<OperatorCall> calls;          ///< of forward, then of backward
  int num_forward = 0;                      ///< number of calls of forward
  std::vector<ParameterRecord> parameters;  ///< parameters, then buffers
  double input_bytes = 0;  ///< tensors that forward was given, as far as it reads them
  std::vector<GradientTransfer> gradient_transfers;  ///< in the order of parameters

  const OperatorCall& call(int index) const { return calls[static_cast<std::size_t>(index)]; }
  int num_calls() const noexcept { return static_cast<int>(calls.size()); }
};

/// Returns for each call of forward the bytes of its results that later calls of forward read, on
/// one rank.
std::vector<double> passed_bytes(const ModuleRecord& record);

/// Returns the bytes of one rank that cross each boundary between calls of forward: before the
/// first call, between two, and after the last.
std::vector<std::int64_t> bytes_across(const ModuleRecord& record);

/// The tensors of a module with the layouts that a plan gives them, before a dry run.
struct LaidOutModule {
  DeviceMesh mesh;                             ///< axes of the plan but `data` and `pipe`
  std::vector<detail::NamedTensor> tensors{};  ///< parameters, then buffers
  std::vector<Layout> layouts{};               ///< of each tensor
  std::vector<ParameterRecord> parameters{};   ///< the record of each tensor
};

/// Returns the axes of a plan along which it lays out tensors: all but `data` and `pipe`, and one
/// axis of one rank if there are no others.
std::vector<MeshAxis> axes_of_layouts(const Plan& plan);

/// Lays out a module along the axes of the plan other than `data` and `pipe`. Throws UsageError as
/// planned_layouts, and as detail::cluster_for.
/// @param cluster the cluster by whose links a dry run chooses layouts, as a run does where
/// TRIREME_CLUSTER names it. Null: the default Link.
/// @param mesh has the axes_of_layouts() of the plan. By default one is made. Its links stay as
/// they are, if it has some.
LaidOutModule lay_out_module(ConstModuleRef module, const Plan& plan,
                             const cluster::Cluster* cluster, const DeviceMesh& mesh = {});
/// Does the same for tensors without a module, which are whole on every rank.
LaidOutModule lay_out_tensors(std::vector<detail::NamedTensor> tensors, const Plan& plan,
                              const cluster::Cluster* cluster);

/// Returns the record of a dry run over such tensors.
ModuleRecord make_record(const LaidOutModule& laid_out, const detail::ModuleDryRun& dry_run);

/// Makes a dry run of forward and backward with the layouts of the plan along its axes other than
/// `data` and `pipe`, and returns what the first rank does. Nothing is computed, and the module may
/// have no memory (trireme::deferred). Not collective.
/// @param forward runs one micro-batch of the rows that one rank along `data` has, and returns the
/// loss, as for predict::explain.
/// @param cluster as for lay_out_module().
/// Throws UsageError as predict::explain and lay_out_module().
ModuleRecord record_module(ModuleRef module, const Plan& plan,
                           const std::function<at::Tensor()>& forward,
                           const cluster::Cluster* cluster = nullptr);

/// A dry run from which records for other layouts follow.
struct TracedModule {
  detail::ModuleDryRun dry_run{};
  std::unique_ptr<tensor::CallTrace> trace{};
};

/// Makes a dry run of forward and backward, as record_module(), for make_record() and
/// replay_module().
TracedModule trace_module(const LaidOutModule& laid_out,
                          const std::function<at::Tensor()>& forward);

/// What follows from a trace for other layouts.
struct ReplayedModule {
  ModuleRecord record{};
  /// The calls along an axis, as ModuleDryRun::along_axis.
  std::vector<std::shared_ptr<const tensor::CallAlongAxis>> along_axis{};
};

/// Returns the record that record_module() would return for a module laid out so, with the same
/// forward, without running it: the same calls are decided for the other layouts. Returns
/// std::nullopt where forward or backward might make other calls. Throws UsageError as
/// record_module().
/// @param axis the axis of ReplayedModule::along_axis; -1 for none.
std::optional<ReplayedModule> replay_module(const TracedModule& traced,
                                            const LaidOutModule& laid_out, int axis = -1);

}  // namespace trireme
