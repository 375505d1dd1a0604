// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/staged_graph.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/graph/boundaries.h>
#include <trireme/graph/cut.h>
#include <trireme/graph/guard.h>
#include <trireme/parallel/pipeline/cut_like.h>
#include <trireme/parallel/pipeline/split/operators.h>
#include <trireme/parallel/pipeline/split/weight_gradients.h>
#include <trireme/parallel/pipeline/step_report.h>
#include <trireme/parallel/recompute/recompute.h>
#include <trireme/plan/plan_schedule.h>

#include <ATen/ops/empty_strided.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>

namespace trireme::pipeline {
namespace {

// A part that can run twice: first in forward, then in backward.
class Rebuilt {
 public:
  explicit Rebuilt(const graph::RunPart& run)
      : run_(run), weight_gradients_(WeightGradients::current()) {}

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) {
    if (!std::exchange(has_run_, true)) return run_(inputs);
    const StepRecorder::Rebuilding rebuilding;
    // The second run must split the same operators, so that autograd saves the same tensors.
    const WeightGradients::Guard guard(weight_gradients_.lock());
    return run_(inputs);
  }

 private:
  graph::RunPart run_;
  // Weak, because the queue holds the graph, and the graph holds this object.
  std::weak_ptr<WeightGradients> weight_gradients_;
  bool has_run_ = false;
};

// Runs a part so that only its inputs are kept for backward, which runs the part again
// (trireme/parallel/recompute). Works with a backward in two parts too. To be passed as
// graph::RunOptions::around. Random operators of the part must draw from the streams that `run`
// gives them.
std::vector<at::Tensor> rebuild_in_backward(const graph::Part& part, const graph::RunPart& run,
                                            const std::vector<at::Tensor>& inputs) {
  const auto is_on_device = [](const at::Tensor& input) { return !input.is_cpu(); };
  RecomputeOptions options;
  options.name = join_message("operators ", part.begin, " to ", part.end - 1);
  // On the CPU, all random numbers come from the streams of `run`, so the generator need not be
  // saved.
  options.preserve_random = std::ranges::any_of(inputs, is_on_device);
  options.keep_between_passes = true;
  return recompute(Rebuilt(run), inputs, std::move(options));
}

using graph::Graph;
using graph::Piece;
using graph::Value;
using graph::ValueId;

std::int64_t rows_of(const std::vector<at::Tensor>& micro_batch) {
  return micro_batch.front().size(0);
}

using Sizes = std::vector<std::vector<std::int64_t>>;

Sizes sizes_of(const std::vector<at::Tensor>& micro_batch) {
  Sizes sizes;
  for (const at::Tensor& tensor : micro_batch) sizes.push_back(tensor.sizes().vec());
  return sizes;
}

// Returns the first micro-batch of each variant: of each combination of sizes.
std::vector<std::vector<at::Tensor>> variants_of(
    const std::vector<std::vector<at::Tensor>>& micro_batches) {
  std::vector<std::vector<at::Tensor>> variants;
  for (const auto& micro_batch : micro_batches) {
    const auto known = std::ranges::find(variants, sizes_of(micro_batch), sizes_of);
    if (known == variants.end()) variants.push_back(micro_batch);
  }
  return variants;
}

// Throws if micro-batches of another size run other operators. If they do not, values have the same
// numbers in all variants, so one program serves all of them.
void check_same_operators(const Graph& first, const Graph& other, std::int64_t rows) {
  const auto takes = [](const graph::Node& node) {
    return std::pair(node.name(), std::pair(node.inputs, node.outputs));
  };
  const auto [own, others] = std::ranges::mismatch(first.nodes, other.nodes, {}, takes, takes);
  if (own == first.nodes.end() && others == other.nodes.end()) return;
  const auto index = static_cast<int>(own - first.nodes.begin());
  throw UsageError(
      join_message("a micro-batch of ", rows, " rows takes other operators than the first one: ",
                   index < first.num_nodes() ? first.describe(index) : "it has more of them",
                   " is the first that differs"),
      "choose a batch size that micro_batches divides");
}

void check_loss(const Graph& graph, bool needs_gradient) {
  if (graph.results.empty()) {
    throw UsageError("the forward of a pipeline returned nothing", "return the loss first");
  }
  const Value& loss = graph.value(graph.results.front());
  const bool is_number = std::ranges::all_of(loss.sizes, [](auto size) { return size == 1; });
  if (is_number && at::isFloatingType(loss.dtype) && loss.node >= 0 &&
      (loss.requires_grad || !needs_gradient)) {
    return;
  }
  throw UsageError(
      join_message("the first result of a pipeline's forward is of ", at::IntArrayRef(loss.sizes),
                   " and ", loss.dtype, loss.requires_grad ? "" : ", and needs no gradient",
                   "; expected the loss, one floating-point number"),
      "return {loss, …}");
}

// Returns the shape in which a boundary tensor is sent. Expanded tensors and tensors with gaps are
// sent as contiguous ones.
Shape shape_of(const Value& value) {
  const bool is_dense = at::empty_strided(value.sizes, value.strides, at::TensorOptions(at::kMeta))
                            .is_non_overlapping_and_dense();
  return {.sizes = value.sizes, .strides = is_dense ? value.strides : std::vector<std::int64_t>()};
}

// Returns a text such as `, and runs operators 3 to 9 and 12 to 20 again`, empty without parts.
std::string describe(const std::vector<graph::Part>& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const char* const before = i == 0                  ? ", and runs operators "
                               : i + 1 == parts.size() ? " and "
                                                       : ", ";
    text += join_message(before, parts[i].begin, " to ", parts[i].end - 1);
  }
  return parts.empty() ? text : text + " again";
}

// Returns a line that says how many micro-batches of a stage are offloaded, empty if none is.
std::string describe_offload(const schedule::Schedule& schedule, int stage) {
  const auto is_its = [stage](const schedule::Action& action) {
    return action.kind == schedule::ActionKind::kOffload && action.stage == stage;
  };
  const auto& actions = schedule::item(schedule.ranks, schedule.rank_of(stage));
  const auto number = std::ranges::count_if(actions, is_its);
  if (number == 0) return "";
  return join_message("  ", number, " of ", schedule.micro_batches,
                      " micro-batches wait for their backward in host memory\n");
}

}  // namespace

StagedGraph::StagedGraph(torch::nn::Module& module, const graph::Forward& forward,
                         const std::vector<std::vector<at::Tensor>>& micro_batches,
                         const Plan& plan)
    : StagedGraph(module, forward, micro_batches, plan, nullptr, /*is_evaluation=*/false) {}

StagedGraph::StagedGraph(torch::nn::Module& module, const graph::Forward& forward,
                         const std::vector<std::vector<at::Tensor>>& micro_batches,
                         const Plan& plan, const StagedGraph& first)
    : StagedGraph(module, forward, micro_batches, plan, &first, /*is_evaluation=*/false) {}

StagedGraph StagedGraph::for_evaluation(torch::nn::Module& module, const graph::Forward& forward,
                                        const std::vector<std::vector<at::Tensor>>& micro_batches,
                                        const Plan& plan, const StagedGraph& trained) {
  return StagedGraph(module, forward, micro_batches, plan, &trained, /*is_evaluation=*/true);
}

StagedGraph::StagedGraph(torch::nn::Module& module, const graph::Forward& forward,
                         const std::vector<std::vector<at::Tensor>>& micro_batches,
                         const Plan& plan, const StagedGraph* first, bool is_evaluation) {
  program_.is_evaluation = is_evaluation;
  const graph::CaptureOptions options = {.backward = !is_evaluation};
  for (const auto& item : module.named_parameters()) {
    tensors_.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) tensors_.emplace_back(item.key(), item.value());
  for (const auto& variant : variants_of(micro_batches)) {
    graphs_.push_back(
        std::make_shared<const Graph>(graph::capture(module, forward, variant, options)));
    check_same_operators(graph(), *graphs_.back(), rows_of(variant));
  }
  check_loss(graph(), !is_evaluation);
  // The boundaries of the first graph are those of all variants, which have the same operators.
  if (first == nullptr || (!is_evaluation && !plan.stages.empty())) {
    cut(plan);
  } else {
    boundaries_ = cut_like(graph(), first->graph(), first->boundaries_);
  }
  set_schedule(plan, micro_batches.size());
  recomputation_.parts.resize(boundaries_.size() - 1);
  if (!is_evaluation) {
    recomputation_ = plan_recomputation(graph(), boundaries_, program_.schedule, plan);
  }
  for (const auto& one : graphs_) {
    std::vector<Piece>& pieces = pieces_.emplace_back();
    for (std::size_t stage = 0; stage + 1 < boundaries_.size(); ++stage) {
      pieces.emplace_back(one, boundaries_[stage], boundaries_[stage + 1], module,
                          recomputation_.parts[stage]);
    }
  }
  set_program(plan, micro_batches);
}

void StagedGraph::cut(const Plan& plan) {
  if (!plan.stages.empty()) {
    boundaries_ = graph::cut(
        graph(), std::vector<graph::ModuleStage>(plan.stages.begin(), plan.stages.end()));
  } else {
    // Only the number of stages is needed here, which a schedule of one micro-batch tells too.
    boundaries_ = graph::balance(graph(), plan_schedule(plan, 1).num_stages());
  }
}

void StagedGraph::set_schedule(const Plan& plan, std::size_t micro_batches) {
  const auto num_stages = static_cast<int>(boundaries_.size()) - 1;
  program_.schedule = plan_schedule(plan, static_cast<int>(micro_batches), program_.is_evaluation);
  if (program_.schedule.num_stages() != num_stages) {
    throw UsageError(join_message("the plan has ", num_stages, " stages, and the schedule ",
                                  program_.schedule.name, " over ", stage_ranks(plan),
                                  " ranks has ", program_.schedule.num_stages()),
                     "name as many stages, or choose another schedule");
  }
}

void StagedGraph::set_program(const Plan& plan,
                              const std::vector<std::vector<at::Tensor>>& micro_batches) {
  program_.inputs.assign(graph().inputs.begin(), graph().inputs.end());
  program_.loss = graph().results.front();
  program_.loss_stage = stage_of(graph().value(program_.loss).node);
  program_.loss_dtype = graph().value(program_.loss).dtype;
  const auto variants = variants_of(micro_batches);
  std::vector<std::int64_t> rows;
  for (const auto& micro_batch : micro_batches) {
    rows.push_back(rows_of(micro_batch));
    const auto variant = std::ranges::find(variants, sizes_of(micro_batch), sizes_of);
    program_.variants.push_back(static_cast<int>(variant - variants.begin()));
  }
  const bool is_mean =
      program_.is_evaluation || plan.gradient_reduction == GradientReduction::kMean;
  if (is_mean) set_weights(weights_for(rows));
  // With several ranks along data, the division comes after their sum, so that there is only one.
  const bool divides_later = !is_mean || data_ranks(plan, 1) > 1;
  program_.division = divides_later ? GradientDivision::kNone : GradientDivision::kByWeights;
  const int last_stage = program_.schedule.num_stages() - 1;
  for (std::size_t i = 1; program_.is_evaluation && i < graph().results.size(); ++i) {
    const int node = graph().value(graph().results[i]).node;
    program_.results.push_back(
        {.value = graph().results[i], .stage = node < 0 ? last_stage : stage_of(node)});
  }
  add_boundary_tensors();
}

// Gradients in half precision are added over micro-batches in half precision. Weights that are
// divided by a power of two keep the sum in range, and change no bit of numbers that are not
// subnormal.
void StagedGraph::set_weights(std::vector<double> weights) {
  const bool is_half = std::ranges::any_of(tensors_, [](const auto& named) {
    return named.second.requires_grad() && at::isReducedFloatingType(named.second.scalar_type());
  });
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto scale = std::bit_ceil(static_cast<std::uint64_t>(sum));
  if (is_half && !program_.is_evaluation) {
    for (double& weight : weights) weight /= static_cast<double>(scale);
  }
  program_.weights = std::move(weights);
}

void StagedGraph::count_alike() {
  if (!program_.weights.empty()) set_weights(std::vector<double>(program_.weights.size(), 1));
}

// Lists the values that a stage reads and another stage computes, and adds their edges to the
// schedule. A value that skips stages is sent directly.
void StagedGraph::add_boundary_tensors() {
  std::map<ValueId, std::set<int>> takers;
  for (std::size_t stage = 0; stage < pieces_.front().size(); ++stage) {
    for (const ValueId id : pieces_.front()[stage].inputs()) {
      if (graph().value(id).node >= 0) takers[id].insert(static_cast<int>(stage));
    }
  }
  program_.schedule.edges.clear();
  for (const auto& [id, stages] : takers) {
    const Value& value = graph().value(id);
    BoundaryTensor& boundary_tensor = program_.boundary_tensors.emplace_back();
    boundary_tensor = {.value = id,
                       .from = stage_of(value.node),
                       .to = {stages.begin(), stages.end()},
                       .dtype = value.dtype,
                       .has_gradient = value.requires_grad && !program_.is_evaluation,
                       .shapes = {}};
    for (const auto& variant : graphs_) {
      boundary_tensor.shapes.push_back(shape_of(variant->value(id)));
    }
    for (const int to : boundary_tensor.to) {
      const schedule::Edge edge = {.from = boundary_tensor.from, .to = to};
      auto& edges = program_.schedule.edges;
      if (std::ranges::find(edges, edge) == edges.end()) edges.push_back(edge);
    }
  }
}

int StagedGraph::stage_of(int node) const {
  const auto after = std::ranges::upper_bound(boundaries_, node);
  return static_cast<int>(after - boundaries_.begin()) - 1;
}

const StagedGraph::NamedTensors::value_type& StagedGraph::tensor_of(ValueId id) const {
  const std::string& name = graph().value(id).name;
  return *std::ranges::find(tensors_, name, &NamedTensors::value_type::first);
}

StageCode StagedGraph::code_of_stage(int stage, const Numbering& numbering,
                                     const Place* place) const {
  const auto index = static_cast<std::size_t>(stage);
  const Piece& first = pieces_.front()[index];
  StageCode code;
  code.stage = stage;
  code.inputs.assign(first.inputs().begin(), first.inputs().end());
  std::vector<std::size_t> given;  // indices of the piece's outputs that leave the stage
  for (std::size_t i = 0; i < first.outputs().size(); ++i) {
    const ValueId id = first.outputs()[i];
    const bool crosses = std::ranges::find(program_.boundary_tensors, id, &BoundaryTensor::value) !=
                         program_.boundary_tensors.end();
    // In training, results of forward after the loss are not returned.
    if (!crosses && id != program_.loss && !program_.is_result(id)) continue;
    code.outputs.push_back(id);
    given.push_back(i);
  }
  for (const ValueId id : first.parameters()) {
    const auto& [name, parameter] = tensor_of(id);
    code.parameters.emplace_back(name, place == nullptr ? parameter : place->tensor(name));
  }
  std::vector<Piece> variants;
  for (const auto& pieces : pieces_) {
    const Piece& piece = pieces[index];
    variants.push_back(place == nullptr ? piece : piece.moved_to(place->device, [&](ValueId id) {
      return place->tensor(tensor_of(id).first);
    }));
    const std::vector<at::Tensor> lasting = variants.back().lasting();
    code.lasting.insert(code.lasting.end(), lasting.begin(), lasting.end());
  }
  code.forward = [variants, given, numbering](c10::ArrayRef<at::Tensor> inputs,
                                              const MicroBatch& micro_batch) {
    const graph::RunOptions options = {
        .random =
            graph::RandomStream{.seed = numbering.seed,
                                .step = micro_batch.step,
                                .micro_batch = numbering.first_micro_batch + micro_batch.number},
        .keep_buffers = micro_batch.is_recomputation,
        .replace = split::replace,
        .around = rebuild_in_backward};
    const Piece& piece = variants[static_cast<std::size_t>(micro_batch.variant)];
    const std::vector<at::Tensor> all = piece.run(inputs.vec(), options);
    std::vector<at::Tensor> outputs;
    for (const std::size_t i : given) outputs.push_back(all[i]);
    return outputs;
  };
  return code;
}

std::vector<StageCode> StagedGraph::code_of(int rank, const Numbering& numbering,
                                            const Place* place) const {
  std::vector<StageCode> all;
  for (int stage = 0; stage < program_.schedule.num_stages(); ++stage) {
    if (program_.schedule.rank_of(stage) != rank) continue;
    all.push_back(code_of_stage(stage, numbering, place));
  }
  return all;
}

std::vector<StageCode> StagedGraph::code_of(int rank, const Numbering& numbering) const {
  return code_of(rank, numbering, nullptr);
}

std::vector<StageCode> StagedGraph::code_of(int rank, const Numbering& numbering,
                                            const Place& place) const {
  return code_of(rank, numbering, &place);
}

StagedGraph::NamedTensors StagedGraph::tensors_of(int rank,
                                                  const std::vector<ValueId>& (Piece::*which)()
                                                      const) const {
  std::set<ValueId> ids;
  for (int stage = 0; stage < program_.schedule.num_stages(); ++stage) {
    if (program_.schedule.rank_of(stage) != rank) continue;
    const auto& values = (pieces_.front()[static_cast<std::size_t>(stage)].*which)();
    ids.insert(values.begin(), values.end());
  }
  NamedTensors all;
  for (const ValueId id : ids) all.push_back(tensor_of(id));
  return all;
}

StagedGraph::NamedTensors StagedGraph::parameters_of(int rank) const {
  return tensors_of(rank, &Piece::parameters);
}

StagedGraph::NamedTensors StagedGraph::buffers_of(int rank) const {
  return tensors_of(rank, &Piece::buffers);
}

StagedGraph::NamedTensors StagedGraph::written_buffers_of(int rank) const {
  return tensors_of(rank, &Piece::written_buffers);
}

StagedGraph::NamedTensors StagedGraph::tensors_of(int rank) const {
  NamedTensors all = parameters_of(rank);
  const NamedTensors buffers = buffers_of(rank);
  all.insert(all.end(), buffers.begin(), buffers.end());
  return all;
}

StagedGraph::NamedTensors StagedGraph::parameters_of_stage_alone(int stage) const {
  NamedTensors alone;
  for (const ValueId id : pieces_.front()[static_cast<std::size_t>(stage)].parameters()) {
    const auto uses = std::ranges::count_if(pieces_.front(), [&](const Piece& piece) {
      return std::ranges::find(piece.parameters(), id) != piece.parameters().end();
    });
    if (uses == 1) alone.push_back(tensor_of(id));
  }
  return alone;
}

void StagedGraph::check_still_true(
    torch::nn::Module& module, const graph::Forward& forward,
    const std::vector<std::vector<at::Tensor>>& micro_batches) const {
  const auto variants = variants_of(micro_batches);
  for (std::size_t variant = 0; variant < variants.size(); ++variant) {
    const Graph now =
        graph::capture(module, forward, variants[variant], {.backward = !program_.is_evaluation});
    const std::string difference = graph::first_difference(*graphs_[variant], now);
    if (difference.empty()) continue;
    throw UsageError(
        join_message("the module does not do what it did when it was captured: ", difference),
        "a pipeline runs a record: leave what changes from step to step (counters, layer drop, "
        "rates) out of forward, or make it an input");
  }
}

void StagedGraph::check_results_join() const {
  const auto rest = [](const Value& value) {
    return value.sizes.empty() ? value.sizes
                               : Sizes::value_type(value.sizes.begin() + 1, value.sizes.end());
  };
  for (std::size_t i = 1; i < graph().results.size(); ++i) {
    const Value& first = graph().value(graph().results[i]);
    for (const auto& variant : graphs_) {
      const Value& other = variant->value(variant->results[i]);
      if (rest(first) == rest(other)) continue;
      throw UsageError(
          join_message("result ", i, " of forward is of ", at::IntArrayRef(first.sizes),
                       " for one micro-batch and of ", at::IntArrayRef(other.sizes),
                       " for another, which cannot be put together along dim 0"),
          "return what has a row for each row of the batch, or give batches that micro_batches "
          "divides");
    }
  }
}

std::string StagedGraph::to_string() const {
  TextWriter text;
  const bool recomputes = !std::ranges::all_of(
      recomputation_.parts, [](const std::vector<graph::Part>& parts) { return parts.empty(); });
  for (int stage = 0; stage < program_.schedule.num_stages(); ++stage) {
    const auto index = static_cast<std::size_t>(stage);
    const Piece& piece = pieces_.front()[index];
    std::int64_t parameters = 0;
    for (const ValueId id : piece.parameters()) parameters += graph().value(id).bytes();
    double flops = 0;
    for (int node = boundaries_[index]; node < boundaries_[index + 1]; ++node) {
      flops += graph().node(node).flops + graph().node(node).backward_flops;
    }
    std::int64_t sent = 0;
    for (const BoundaryTensor& boundary_tensor : program_.boundary_tensors) {
      if (boundary_tensor.from == stage) sent += graph().value(boundary_tensor.value).bytes();
    }
    // Operators outside of submodules have an empty path, and are not named.
    std::string first = "the module";
    std::string last = first;
    for (int node = boundaries_[index + 1]; node-- > boundaries_[index];) {
      const std::string& path = graph().node(node).module;
      if (path.empty()) continue;
      if (last == "the module") last = path;
      first = path;
    }
    text << "stage " << stage << " on rank " << program_.schedule.rank_of(stage) << ": "
         << boundaries_[index + 1] - boundaries_[index] << " operators from " << first << " to "
         << last << ", " << parameters << " bytes of parameters, " << flops
         << " floating-point operations and " << sent << " bytes sent for a micro-batch\n";
    text << describe_offload(program_.schedule, stage);
    if (!recomputes) continue;
    text << "  keeps " << recomputation_.bytes[index].activations << " bytes of a micro-batch"
         << describe(recomputation_.parts[index]) << "\n";
  }
  if (recomputes) {
    text << recomputation_.flops << " floating-point operations run again for a micro-batch";
    if (recomputation_.flops_at_least < recomputation_.flops) {
      text << "; no choice has fewer than " << recomputation_.flops_at_least;
    }
    text << "\n";
  }
  return text.str();
}

}  // namespace trireme::pipeline
