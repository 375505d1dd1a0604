// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/pipeline_program.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/schedule/schedule_text.h>

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace trireme::pipeline {
namespace {

using schedule::Edge;
using schedule::item;

std::string list_of(const std::vector<std::int64_t>& numbers) {
  return join_message(at::IntArrayRef(numbers));
}

void check_stage(const Program& program, int stage, const std::string& whose) {
  if (stage >= 0 && stage < program.schedule.num_stages()) return;
  throw UsageError(join_message(whose, " names stage ", stage, ", expected 0 to ",
                                program.schedule.num_stages() - 1),
                   "count stages from 0, as the schedule does");
}

// Throws for strides with gaps or overlaps. A meta tensor checks them without allocating memory.
void check_shape(const Shape& shape, const std::string& whose) {
  if (shape.strides.empty()) return;
  const bool has_all = shape.strides.size() == shape.sizes.size();
  if (has_all && at::empty_strided(shape.sizes, shape.strides, at::TensorOptions(at::kMeta))
                     .is_non_overlapping_and_dense()) {
    return;
  }
  throw UsageError(join_message(whose, " has sizes ", list_of(shape.sizes), " and strides ",
                                list_of(shape.strides), ", expected strides without gaps"),
                   "leave strides empty for a contiguous tensor");
}

void check_boundary_tensor(const Program& program, const BoundaryTensor& boundary_tensor,
                           int num_variants) {
  const std::string whose = join_message("value ", boundary_tensor.value);
  check_stage(program, boundary_tensor.from, whose);
  if (boundary_tensor.to.empty() ||
      std::ranges::adjacent_find(boundary_tensor.to, std::greater_equal<>()) !=
          boundary_tensor.to.end()) {
    throw UsageError(join_message(whose, " goes to stages ", at::ArrayRef<int>(boundary_tensor.to),
                                  ", expected at least one, ascending"),
                     "list each stage that takes it once");
  }
  for (const int to : boundary_tensor.to) {
    check_stage(program, to, whose);
    const auto& edges = program.schedule.edges;
    if (std::ranges::find(edges, Edge{boundary_tensor.from, to}) != edges.end()) continue;
    throw UsageError(
        join_message(whose, " goes from stage ", boundary_tensor.from, " to stage ", to,
                     ", and the schedule has no edge ", boundary_tensor.from, ">", to),
        "add the edge to the schedule before messages are put in");
  }
  if (std::ssize(boundary_tensor.shapes) != num_variants) {
    throw UsageError(join_message(whose, " has ", boundary_tensor.shapes.size(),
                                  " shapes, expected ", num_variants, ", one for each variant"),
                     "give the sizes for every kind of micro-batch in Program::variants");
  }
  for (const Shape& shape : boundary_tensor.shapes) check_shape(shape, whose);
  if (boundary_tensor.has_gradient && program.is_evaluation) {
    throw UsageError(join_message(whose, " has a gradient, and the program is an evaluation"),
                     "set has_gradient to false");
  }
  if (boundary_tensor.has_gradient && !at::isFloatingType(boundary_tensor.dtype) &&
      !at::isComplexType(boundary_tensor.dtype)) {
    throw UsageError(join_message(whose, " of ", boundary_tensor.dtype, " cannot have a gradient"),
                     "set has_gradient to false for integers and masks");
  }
}

template <typename Number>
void check_count(const std::vector<Number>& numbers, const Program& program, const char* what) {
  if (numbers.empty() || std::ssize(numbers) == program.schedule.micro_batches) return;
  throw UsageError(
      join_message("there are ", what, " for ", numbers.size(),
                   " micro-batches, and the schedule has ", program.schedule.micro_batches),
      join_message("give none, or ", what, " for each"));
}

// Checks variants and weights. Returns the number of variants.
int check_variants(const Program& program) {
  check_count(program.variants, program, "variants");
  check_count(program.weights, program, "weights");
  int last = 0;
  for (const int variant : program.variants) {
    if (variant < 0) {
      throw UsageError(join_message("variant ", variant, " of a micro-batch, expected 0 or more"),
                       "count variants from 0");
    }
    last = std::max(last, variant);
  }
  for (const double weight : program.weights) {
    if (weight > 0 && weight < std::numeric_limits<double>::infinity()) continue;
    throw UsageError(join_message("weight ", weight, " of a micro-batch, expected more than 0"),
                     "give the number of samples, or none for equal micro-batches");
  }
  return last + 1;
}

// The values that stages may take: inputs of the step, and boundary tensors.
struct Values {
  std::set<int> inputs;
  std::map<int, const BoundaryTensor*> boundary_tensors;
};

Values values_of(const Program& program) {
  Values values;
  const auto check_new = [&](int value) {
    if (!values.inputs.contains(value) && !values.boundary_tensors.contains(value)) return;
    throw UsageError(join_message("value ", value, " is there twice"),
                     "number inputs of the step, boundary tensors and the loss all differently");
  };
  for (const int value : program.inputs) {
    check_new(value);
    values.inputs.insert(value);
  }
  for (const BoundaryTensor& boundary_tensor : program.boundary_tensors) {
    check_new(boundary_tensor.value);
    values.boundary_tensors[boundary_tensor.value] = &boundary_tensor;
  }
  check_new(program.loss);
  return values;
}

void check_inputs(const Values& values, const StageCode& code) {
  for (const int value : code.inputs) {
    const auto found = values.boundary_tensors.find(value);
    if (values.inputs.contains(value)) continue;
    if (found != values.boundary_tensors.end() &&
        std::ranges::count(found->second->to, code.stage) == 1) {
      continue;
    }
    throw UsageError(
        join_message("stage ", code.stage, " takes value ", value,
                     found == values.boundary_tensors.end()
                         ? ", which is neither a boundary tensor nor an input of the step"
                         : ", which does not go there"),
        "list the stage in `to` of the boundary tensor, or the value in Program::inputs");
  }
  // The executor hands each boundary tensor to a stage once, so the stage must take it exactly
  // once.
  for (const auto& [value, boundary_tensor] : values.boundary_tensors) {
    if (std::ranges::count(boundary_tensor->to, code.stage) ==
        std::ranges::count(code.inputs, value)) {
      continue;
    }
    throw UsageError(join_message("value ", value, " goes to stage ", code.stage,
                                  ", which does not take it exactly once"),
                     "list it once among the stage's inputs, or leave the stage out of `to`");
  }
}

void check_outputs(const Program& program, const Values& values, const StageCode& code) {
  std::set<int> expected;
  for (const auto& [value, boundary_tensor] : values.boundary_tensors) {
    if (boundary_tensor->from == code.stage) expected.insert(value);
  }
  if (program.loss_stage == code.stage) expected.insert(program.loss);
  for (const Result& result : program.results) {
    if (result.stage == code.stage) expected.insert(result.value);
  }
  const std::set<int> given(code.outputs.begin(), code.outputs.end());
  if (given == expected && given.size() == code.outputs.size()) return;
  throw UsageError(
      join_message("stage ", code.stage, " gives values ", at::ArrayRef<int>(code.outputs),
                   ", expected each of ",
                   at::ArrayRef<int>(std::vector<int>(expected.begin(), expected.end())), " once"),
      "a stage gives the boundary tensors that come from it, and the loss and results whose stage "
      "it is");
}

// Throws unless each parameter has one name, and each name stands for one tensor.
void check_names(const std::vector<StageCode>& stages) {
  std::map<std::string, const void*> tensors;
  std::map<const void*, std::string> names;
  for (const StageCode& code : stages) {
    for (const auto& [name, tensor] : code.parameters) {
      if (!tensor.defined() || !tensor.is_leaf()) {
        throw UsageError(
            join_message("parameter '", name, "' of stage ", code.stage, " is ",
                         tensor.defined() ? "computed" : "undefined", ", expected a leaf"),
            "give the module's own parameters");
      }
      const void* const own = tensor.unsafeGetTensorImpl();
      const auto [of_name, is_new_name] = tensors.try_emplace(name, own);
      const auto [of_tensor, is_new_tensor] = names.try_emplace(own, name);
      if (of_name->second == own && of_tensor->second == name) continue;
      throw UsageError(
          join_message("parameter '", name, "' of stage ", code.stage, " is ",
                       of_name->second == own ? "'" + of_tensor->second + "'" : "another tensor",
                       " in a stage of the same rank"),
          "a parameter of several stages has one name and is one tensor");
    }
  }
}

}  // namespace

bool Program::is_result(int value) const {
  return std::ranges::find(results, value, &Result::value) != results.end();
}

int Program::variant_of(int micro_batch) const {
  return variants.empty() ? 0 : item(variants, micro_batch);
}

double Program::weight_of(int micro_batch) const {
  return weights.empty() ? 1 : item(weights, micro_batch);
}

double Program::sum_of_weights() const {
  return weights.empty() ? schedule.micro_batches
                         : std::accumulate(weights.begin(), weights.end(), 0.0);
}

std::vector<double> weights_for(const std::vector<std::int64_t>& samples) {
  if (std::ranges::adjacent_find(samples, std::not_equal_to<>()) == samples.end()) {
    return std::vector<double>(samples.size(), 1.0);
  }
  return {samples.begin(), samples.end()};
}

void check_program(const Program& program) {
  const int num_variants = check_variants(program);
  values_of(program);
  for (const BoundaryTensor& boundary_tensor : program.boundary_tensors) {
    check_boundary_tensor(program, boundary_tensor, num_variants);
  }
  for (const Result& result : program.results) {
    check_stage(program, result.stage, join_message("result value ", result.value));
  }
  check_stage(program, program.loss_stage, "the loss");
}

void check_stages(const Program& program, const std::vector<StageCode>& stages, int rank) {
  const Values values = values_of(program);
  std::set<int> given;
  for (const StageCode& code : stages) {
    check_stage(program, code.stage, "code");
    const int own = program.schedule.rank_of(code.stage);
    if (!given.insert(code.stage).second || own != rank) {
      throw UsageError(own == rank ? join_message("there is code for stage ", code.stage, " twice")
                                   : join_message("rank ", rank, " was given code for stage ",
                                                  code.stage, ", which is on rank ", own),
                       "give each rank the code of its own stages, once");
    }
    if (!code.forward) {
      throw UsageError(join_message("stage ", code.stage, " has no forward"),
                       "set StageCode::forward");
    }
    check_inputs(values, code);
    check_outputs(program, values, code);
  }
  for (int stage = 0; stage < program.schedule.num_stages(); ++stage) {
    if (program.schedule.rank_of(stage) != rank || given.contains(stage)) continue;
    throw UsageError(
        join_message("there is no code for stage ", stage, ", which is on rank ", rank),
        "give each rank the code of its own stages");
  }
  check_names(stages);
}

std::string describe(const Program& program) {
  TextWriter text;
  text << schedule::to_text(program.schedule);
  for (const BoundaryTensor& boundary_tensor : program.boundary_tensors) {
    text << "value " << boundary_tensor.value << " " << boundary_tensor.from << ">"
         << at::ArrayRef<int>(boundary_tensor.to) << " " << boundary_tensor.dtype
         << (boundary_tensor.has_gradient ? " with gradient" : "");
    for (const Shape& shape : boundary_tensor.shapes) {
      text << " " << at::IntArrayRef(shape.sizes);
      if (!shape.strides.empty()) text << " strides " << at::IntArrayRef(shape.strides);
    }
    text << "\n";
  }
  text << "inputs " << at::ArrayRef<int>(program.inputs) << "\nloss " << program.loss << " "
       << program.loss_dtype << " of stage " << program.loss_stage << "\n";
  // 17 digits identify a double, so that equal texts mean equal weights.
  text.precision(17);
  text << "variants " << at::ArrayRef<int>(program.variants) << "\nweights "
       << at::ArrayRef<double>(program.weights) << "\ndivision "
       << (program.division == GradientDivision::kNone ? "none" : "by weights") << "\n";
  if (program.is_evaluation) text << "evaluation\n";
  for (const Result& result : program.results) {
    text << "result " << result.value << " of stage " << result.stage << "\n";
  }
  return text.str();
}

}  // namespace trireme::pipeline
