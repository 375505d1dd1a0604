// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/record/module_record.h>

#include <trireme/graph/module_path.h>
#include <trireme/graph/record/modules.h>
#include <trireme/parallel/tensor_parallel/cluster_links.h>
#include <trireme/parallel/tensor_parallel/distribute_module.h>
#include <trireme/parallel/tensor_parallel/operator_layouts.h>
#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/dry_run/trace_replay.h>
#include <trireme/tensor/redistribution/redistribution.h>
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/rule_table.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace trireme {
namespace {

using cluster::OperatorKind;
using tensor::DryRunCall;
using tensor::DryRunTensor;
using tensor::Exchange;

DeviceMesh mesh_of_layouts(const Plan& plan, const cluster::Cluster* cluster,
                           const DeviceMesh& given = {}) {
  const DeviceMesh mesh = given.defined() ? given : DeviceMesh::unconnected(axes_of_layouts(plan));
  if (cluster != nullptr && !tensor::has_axis_links(mesh)) detail::set_links(mesh, plan, *cluster);
  tensor::set_sequence_attention(mesh, plan.sequence_attention);
  return mesh;
}

double elements_of(c10::ArrayRef<std::int64_t> sizes) {
  double elements = 1;
  for (const std::int64_t size : sizes) elements *= static_cast<double>(size);
  return elements;
}

// The elements of the first rank's part.
double local_elements(c10::ArrayRef<std::int64_t> sizes, const Layout& layout) {
  if (!layout.defined()) return elements_of(sizes);
  const c10::SmallVector<std::int64_t, 4> first(static_cast<std::size_t>(layout.mesh().num_axes()),
                                                0);
  return elements_of(local_sizes(sizes, layout, first));
}

double local_bytes(const DryRunTensor& tensor) {
  const double elements =
      tensor.is_plain ? elements_of(tensor.sizes) : local_elements(tensor.sizes, tensor.layout);
  return elements * static_cast<double>(c10::elementSize(tensor.dtype));
}

// The name of a dtype as PyTorch spells it.
std::string_view name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
      return "float8";
    default:
      return "float32";
  }
}

struct OperatorTraits {
  bool is_product = false;
  bool is_attention = false;
  bool is_view = false;
  bool writes_input = false;
  bool reads_rows = false;  // reads as many elements of its table as it returns
};

class TraitsOfOperators {
 public:
  const OperatorTraits& of(const std::string& name) {
    const auto [found, is_new] = all_.try_emplace(name);
    if (is_new) found->second = make(name);
    return found->second;
  }

 private:
  static OperatorTraits make(const std::string& name) {
    OperatorTraits traits;
    const std::size_t dot = name.find('.');
    const std::string base = name.substr(0, dot);
    const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    if (const auto op = c10::Dispatcher::singleton().findSchema({base, overload})) {
      const auto& returns = op->schema().returns();
      const auto* const alias = returns.empty() ? nullptr : returns[0].alias_info();
      traits.is_view = alias != nullptr && !alias->isWrite();
      traits.writes_input = alias != nullptr && alias->isWrite();
    }
    // Rules count the FLOPs of products only.
    const tensor::Rule* const rule = tensor::find_rule(base, overload);
    traits.is_product = rule != nullptr && rule->flops != nullptr;
    traits.is_attention = base.find("_scaled_dot_product_") != std::string::npos;
    traits.reads_rows = base == "aten::embedding" || base == "aten::index_select" ||
                        base == "aten::gather" || base == "aten::index";
    return traits;
  }

  std::unordered_map<std::string, OperatorTraits> all_;
};

// Returns the paths of modules that contain others by number, as containers do.
std::unordered_set<std::string> numbered_lists(const std::vector<ParameterRecord>& parameters) {
  std::unordered_set<std::string> lists;
  for (const ParameterRecord& parameter : parameters) {
    std::string path = graph::detail::module_of(parameter.name);
    while (!path.empty()) {
      const std::string parent = graph::detail::module_of(path);
      const std::string_view own =
          std::string_view(path).substr(parent.empty() ? 0 : parent.size() + 1);
      if (own.find_first_not_of("0123456789") == std::string_view::npos) lists.insert(parent);
      path = parent;
    }
  }
  return lists;
}

// What a call does in its layouts, whatever made its inputs.
struct DecidedCall {
  struct Output {
    double elements = 0;  // of the whole tensor
    double bytes = 0;
  };

  OperatorCall made;  // without what it reads
  std::vector<double> input_bytes;
  std::vector<Output> outputs;
  double written = 0;  // bytes
  bool is_view = false;
  bool writes_input = false;
};

Transfer transfer_of(const Exchange& exchange, const DeviceMesh& mesh) {
  const std::int64_t ranks = mesh.size(exchange.axis);
  const double sent_of_one_byte = bytes_sent(exchange.collective, 1, ranks);
  return {.collective = exchange.collective,
          .axis = mesh.axis_name(exchange.axis),
          .bytes = sent_of_one_byte > 0 ? exchange.bytes_sent / sent_of_one_byte : 0,
          .overlaps = exchange.overlaps};
}

DecidedCall decided_call(const DryRunCall& call, const OperatorTraits& traits,
                         const DeviceMesh& mesh) {
  DecidedCall decided = {
      .made = {.name = call.name}, .is_view = traits.is_view, .writes_input = traits.writes_input};
  OperatorCall& made = decided.made;
  const auto add_transfers = [&](const std::vector<Exchange>& exchanges) {
    for (const Exchange& exchange : exchanges)
      made.transfers.push_back(transfer_of(exchange, mesh));
  };
  double largest_result = 0;
  for (const DryRunTensor& output : call.outputs) {
    decided.outputs.push_back(
        {.elements = elements_of(output.sizes), .bytes = local_bytes(output)});
    largest_result = std::max(largest_result, decided.outputs.back().bytes);
  }
  double read = 0;
  for (const DryRunTensor& input : call.inputs) {
    const double bytes = local_bytes(input);
    decided.input_bytes.push_back(bytes);
    read += traits.reads_rows ? std::min(bytes, largest_result) : bytes;
    add_transfers(input.exchanges);
    add_transfers(input.back);
  }
  add_transfers(call.inside);
  for (std::size_t i = call.outputs.size(); i-- > 0;) {
    decided.written += decided.outputs[i].bytes;
    add_transfers(call.outputs[i].exchanges);
  }
  made.is_view = traits.is_view && !call.gathers_view;
  if (traits.is_view) return decided;
  made.counted_flops = call.flops / static_cast<double>(call.ranks_at_work);
  if (call.is_asked_for) return decided;
  const OperatorKind kind = traits.is_attention ? OperatorKind::kAttention
                            : traits.is_product ? OperatorKind::kProduct
                                                : OperatorKind::kElements;
  made.work = {.kind = kind,
               .flops = kind != OperatorKind::kElements ? call.flops_of_rank() : 0,
               .bytes = read + decided.written,
               .dtype = call.inputs.empty() ? "float32" : name_of(call.inputs[0].dtype)};
  return decided;
}

class Recording {
 public:
  Recording(const detail::ModuleDryRun& dry_run, ModuleRecord& record)
      : dry_run_(dry_run), record_(record) {
    for (std::size_t i = 0; i < record.parameters.size(); ++i) {
      numbers_.emplace(record.parameters[i].name, static_cast<int>(i));
    }
    for (const detail::DryRunGradient& gradient : dry_run.gradients) {
      if (gradient.tensor.made_by >= 0) {
        gradients_[gradient.tensor.made_by].push_back(elements_of(gradient.tensor.sizes));
      }
    }
  }

  // Adds the calls of the dry run.
  void add_all(const DeviceMesh& mesh) {
    begin();
    for (std::size_t i = 0; i < dry_run_.calls.size(); ++i) {
      const DryRunCall& call = dry_run_.calls[i];
      add(static_cast<int>(i), decided_call(call, traits_.of(call.name), mesh));
    }
    end();
  }

  // Adds the same calls in the layouts of a replay.
  void add_all(const DeviceMesh& mesh, const tensor::TraceReplay& replay) {
    begin();
    std::vector<DecidedCall> decided;
    decided.reserve(replay.decided().size());
    for (const DryRunCall& call : replay.decided()) {
      decided.push_back(decided_call(call, traits_.of(call.name), mesh));
    }
    for (std::size_t i = 0; i < dry_run_.calls.size(); ++i) {
      add(static_cast<int>(i), decided[replay.positions()[i]]);
    }
    end();
  }

 private:
  void begin() {
    record_.calls.reserve(dry_run_.calls.size());
    // A gradient may be a view of what a product returned.
    for (int i = static_cast<int>(dry_run_.calls.size()) - 1; i >= 0; --i) {
      const auto found = gradients_.find(i);
      if (found == gradients_.end()) continue;
      const DryRunCall& call = dry_run_.calls[static_cast<std::size_t>(i)];
      if (traits_.of(call.name).is_view && !call.inputs.empty() && call.inputs[0].made_by >= 0) {
        gradients_[call.inputs[0].made_by] = found->second;
      }
    }
  }

  void end() {
    record_.num_forward = static_cast<int>(dry_run_.num_forward);
    set_modules();
  }

  void add(int number, const DecidedCall& decided) {
    const DryRunCall& call = dry_run_.calls[static_cast<std::size_t>(number)];
    OperatorCall made = decided.made;
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      add_read(call.inputs[i], decided.input_bytes[i], made);
    }
    double gradients = 0;  // of parameters
    if (const auto left = gradients_.find(number); left != gradients_.end()) {
      gradients = gradient_bytes(decided, left->second);
    }
    made.forward_call = forward_call_of(number);
    if (is_bias_of_product(call)) made.work = {};
    if (decided.writes_input && !call.inputs.empty()) {
      made.writes_to = root_of(call.inputs[0].made_by);
    }
    if (made.is_view || decided.writes_input) {
      roots_[number] = call.inputs.empty() ? -1 : root_of(call.inputs[0].made_by);
    } else {
      made.result_bytes = decided.written - gradients;
    }
    if (!decided.is_view) made.gradient_bytes = gradients;
    // One call may make the gradients of an input and of a weight: linear_backward.
    if (gradients > 0) made.weight_share = made.result_bytes > 0 ? 0.5 : 1;
    record_.calls.push_back(std::move(made));
  }

  // Returns the bytes of the results that are gradients of parameters.
  // @param left elements of those that are not found yet.
  static double gradient_bytes(const DecidedCall& decided, std::vector<double> left) {
    double bytes = 0;
    // Gradients of inputs come first, and may have as many elements as those of a weight.
    for (const DecidedCall::Output& output : decided.outputs | std::views::reverse) {
      const auto found = std::ranges::find(left, output.elements);
      if (found == left.end()) continue;
      bytes += output.bytes;
      left.erase(found);
    }
    return bytes;
  }

  // Whether a call adds a bias to a product in place. Kernels of linear layers (addmm) do so while
  // they write the product.
  bool is_bias_of_product(const DryRunCall& call) const {
    if (!call.name.starts_with("aten::add_") || call.inputs.size() < 2) return false;
    const int product = root_of(call.inputs[0].made_by);
    return product >= 0 && record_.call(product).work.kind == OperatorKind::kProduct &&
           call.inputs[1].sizes.size() == 1 && numbers_.contains(call.inputs[1].name);
  }

  void add_read(const DryRunTensor& input, double bytes, OperatorCall& made) {
    if (!input.name.empty()) {
      if (const auto found = numbers_.find(input.name); found != numbers_.end()) {
        made.parameters.push_back(found->second);
      }
    }
    const int root = root_of(input.made_by);
    if (root < 0) {
      if (input.name.empty() && !input.is_number && inputs_.insert(input.memory).second) {
        record_.input_bytes += bytes;
      }
      return;
    }
    const auto known = std::ranges::find(made.reads, root);
    if (known == made.reads.end()) {
      made.reads.push_back(root);
      made.read_bytes.push_back(bytes);
    } else {
      made.read_bytes[static_cast<std::size_t>(known - made.reads.begin())] += bytes;
    }
  }

  int root_of(int call) const {
    const auto found = roots_.find(call);
    return found == roots_.end() ? call : found->second;
  }

  int forward_call_of(int number) const {
    if (number < static_cast<int>(dry_run_.num_forward)) return number;
    // Autograd numbers its nodes in the order of forward, before the calls of each.
    const std::uint64_t sequence = dry_run_.calls[static_cast<std::size_t>(number)].sequence;
    const auto forward = std::span(dry_run_.calls).first(dry_run_.num_forward);
    const auto after = std::ranges::upper_bound(forward, sequence, {}, &DryRunCall::sequence);
    return static_cast<int>(std::min<std::ptrdiff_t>(
        after - forward.begin(), static_cast<std::ptrdiff_t>(dry_run_.num_forward) - 1));
  }

  void set_modules() {
    std::vector<std::optional<std::string>> touched(dry_run_.num_forward);
    for (std::size_t i = 0; i < touched.size(); ++i) {
      for (const int parameter : record_.calls[i].parameters) {
        const std::string module =
            graph::detail::module_of(record_.parameters[static_cast<std::size_t>(parameter)].name);
        touched[i] = touched[i] ? graph::detail::common_module(*touched[i], module) : module;
      }
    }
    const std::vector<std::string> modules = graph::detail::modules_of_operators(
        touched, bytes_across(record_), numbered_lists(record_.parameters));
    for (OperatorCall& call : record_.calls) {
      call.module = modules[static_cast<std::size_t>(call.forward_call)];
    }
  }

  const detail::ModuleDryRun& dry_run_;
  ModuleRecord& record_;
  TraitsOfOperators traits_;
  std::unordered_map<std::string, int> numbers_;  // of parameters by name
  std::unordered_map<int, int> roots_;  // of views and writes: the call that made their memory
  // By call of backward: the elements of the gradients of parameters that it makes.
  std::unordered_map<int, std::vector<double>> gradients_;
  std::set<const void*> inputs_;
};

void add_gradient_transfers(const detail::DryRunGradient& gradient, const LaidOutModule& laid_out,
                            ModuleRecord& record) {
  const DryRunTensor& made = gradient.tensor;
  const Layout& layout = laid_out.layouts[gradient.parameter];
  if (made.is_plain || made.given == layout) return;
  const tensor::Redistribution path(made.sizes, made.dtype, made.given, layout);
  std::vector<Exchange> exchanges;
  for (const tensor::RedistributionStep& step : path.steps()) tensor::add_step(step, exchanges);
  // What is sent is made contiguous, and what comes is the gradient in its layout.
  const double copies = local_bytes(made) + record.parameters[gradient.parameter].bytes;
  for (const Exchange& exchange : exchanges) {
    record.gradient_transfers.push_back({.parameter = static_cast<int>(gradient.parameter),
                                         .transfer = transfer_of(exchange, laid_out.mesh),
                                         .copy_bytes = copies});
  }
}

void add_parameters(LaidOutModule& laid_out) {
  for (std::size_t i = 0; i < laid_out.tensors.size(); ++i) {
    const at::Tensor& tensor = laid_out.tensors[i].tensor;
    const double elements = local_elements(tensor.sizes(), laid_out.layouts[i]);
    laid_out.parameters.push_back(
        {.name = laid_out.tensors[i].name,
         .elements = elements,
         .bytes = elements * static_cast<double>(tensor.element_size()),
         .global_elements = elements_of(tensor.sizes()),
         .requires_grad = tensor.requires_grad(),
         .is_half = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16});
  }
}

}  // namespace

std::vector<double> passed_bytes(const ModuleRecord& record) {
  std::vector<double> bytes(static_cast<std::size_t>(record.num_forward), 0);
  for (int i = 0; i < record.num_forward; ++i) {
    const OperatorCall& call = record.call(i);
    for (std::size_t read = 0; read < call.reads.size(); ++read) {
      double& passed = bytes[static_cast<std::size_t>(call.reads[read])];
      passed = std::max(
          passed, std::min(call.read_bytes[read], record.call(call.reads[read]).result_bytes));
    }
  }
  return bytes;
}

std::vector<std::int64_t> bytes_across(const ModuleRecord& record) {
  const std::vector<double> passed = passed_bytes(record);
  const auto num_forward = static_cast<std::size_t>(record.num_forward);
  std::vector<int> last(num_forward, -1);
  for (int i = 0; i < record.num_forward; ++i) {
    for (const int read : record.call(i).reads) last[static_cast<std::size_t>(read)] = i;
  }
  std::vector<std::int64_t> across(num_forward + 1, 0);
  for (std::size_t i = 0; i < last.size(); ++i) {
    if (last[i] < 0) continue;
    const auto bytes = static_cast<std::int64_t>(passed[i]);
    across[i + 1] += bytes;
    across[static_cast<std::size_t>(last[i]) + 1] -= bytes;
  }
  std::partial_sum(across.begin(), across.end(), across.begin());
  return across;
}

std::vector<MeshAxis> axes_of_layouts(const Plan& plan) {
  std::vector<MeshAxis> axes;
  std::ranges::copy_if(plan.mesh, std::back_inserter(axes), [](const MeshAxis& axis) {
    return axis.name != kDataAxis && axis.name != kStageAxis;
  });
  // On an axis of one rank every tensor is whole.
  if (axes.empty()) axes.push_back({"tensor", 1});
  return axes;
}

LaidOutModule lay_out_module(ConstModuleRef holder, const Plan& plan,
                             const cluster::Cluster* cluster, const DeviceMesh& mesh) {
  const torch::nn::Module& module = *holder;
  LaidOutModule laid_out{.mesh = mesh_of_layouts(plan, cluster, mesh),
                         .tensors = detail::parameters_and_buffers(module)};
  detail::set_operator_layouts(&module, laid_out.mesh, plan.operators);
  for (const DistributedParameter& given : planned_layouts(module, laid_out.mesh, plan.layouts)) {
    laid_out.layouts.push_back(given.layout);
  }
  add_parameters(laid_out);
  return laid_out;
}

LaidOutModule lay_out_tensors(std::vector<detail::NamedTensor> tensors, const Plan& plan,
                              const cluster::Cluster* cluster) {
  LaidOutModule laid_out{.mesh = mesh_of_layouts(plan, cluster), .tensors = std::move(tensors)};
  laid_out.layouts.assign(laid_out.tensors.size(), Layout::replicated(laid_out.mesh));
  add_parameters(laid_out);
  return laid_out;
}

ModuleRecord make_record(const LaidOutModule& laid_out, const detail::ModuleDryRun& dry_run) {
  ModuleRecord record;
  record.parameters = laid_out.parameters;
  Recording(dry_run, record).add_all(laid_out.mesh);
  for (const detail::DryRunGradient& gradient : dry_run.gradients) {
    add_gradient_transfers(gradient, laid_out, record);
  }
  return record;
}

TracedModule trace_module(const LaidOutModule& laid_out,
                          const std::function<at::Tensor()>& forward) {
  TracedModule traced = {.trace = std::make_unique<tensor::CallTrace>()};
  traced.dry_run = detail::dry_run_module(laid_out.tensors, laid_out.layouts, forward,
                                          /*axis_to_decide=*/-1, traced.trace.get());
  for (const detail::DryRunGradient& gradient : traced.dry_run.gradients) {
    if (!gradient.tensor.is_plain && gradient.number < 0) {
      traced.trace->give_up("a gradient is made by no call");
    }
  }
  return traced;
}

std::optional<ReplayedModule> replay_module(const TracedModule& traced,
                                            const LaidOutModule& laid_out, int axis) {
  if (!traced.trace->is_complete()) return {};
  const tensor::TraceReplay replay(*traced.trace, laid_out.mesh, laid_out.layouts, axis);
  if (!replay.is_as_traced()) return {};
  ReplayedModule replayed;
  ModuleRecord& record = replayed.record;
  record.parameters = laid_out.parameters;
  Recording(traced.dry_run, record).add_all(laid_out.mesh, replay);
  for (detail::DryRunGradient gradient : traced.dry_run.gradients) {
    DryRunTensor& made = gradient.tensor;
    if (!made.is_plain) made.given = made.layout = replay.layout(gradient.number);
    add_gradient_transfers(gradient, laid_out, record);
  }
  if (axis < 0) return replayed;
  for (const std::size_t position : replay.positions()) {
    replayed.along_axis.push_back(replay.along_axis()[position]);
  }
  return replayed;
}

ModuleRecord record_module(ModuleRef module, const Plan& plan,
                           const std::function<at::Tensor()>& forward,
                           const cluster::Cluster* cluster) {
  const LaidOutModule laid_out = lay_out_module(*module, plan, cluster);
  return make_record(laid_out, detail::dry_run_module(laid_out.tensors, laid_out.layouts, forward));
}

}  // namespace trireme
