// SPDX-License-Identifier: Apache-2.0
// What a pipeline executes, as values: a schedule, the tensors that go from stage to stage, and the
// code of each stage. docs/design/pipeline.md.
#pragma once

#include <trireme/schedule/schedule.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::pipeline {

/// What is known of a tensor before it is there.
struct Shape {
  std::vector<std::int64_t> sizes{};
  /// In elements, without gaps or overlaps; empty for contiguous.
  std::vector<std::int64_t> strides{};

  bool operator==(const Shape&) const = default;
};

/// A tensor that goes from one stage to later ones, whether or not they are on its rank.
struct BoundaryTensor {
  int value = 0;  ///< its number, which no other crossing and no input of the step has
  int from = 0;
  std::vector<int> to{};  ///< stages that take it, ascending; an edge of the schedule for each
  at::ScalarType dtype = at::kFloat;
  bool has_gradient = true;     ///< false for integers, masks, and what needs none
  std::vector<Shape> shapes{};  ///< by variant
};

/// Which micro-batch of which step a stage runs.
struct MicroBatch {
  int number = 0;  ///< within the step
  std::int64_t step = 0;
  int variant = 0;
  /// Whether forward has run before. Buffers of the stage are put back afterwards; random numbers
  /// have to be the same again, so they follow from step, number and stage.
  bool is_recomputation = false;
};

/// One stage of this rank.
struct StageCode {
  int stage = 0;
  std::vector<int> inputs{};  ///< values: boundary tensors that come here, or inputs of the step
  std::vector<int>
      outputs{};  ///< values: every boundary tensor from here, and the loss if it is here
  /// Gives the outputs from the inputs, in the order of these lists. It may change no input in
  /// place, and what it returns is final.
  std::function<std::vector<at::Tensor>(c10::ArrayRef<at::Tensor>, const MicroBatch&)> forward{};
  /// What the stage uses, by name. Parameters of one name in several stages are one parameter: the
  /// same tensor where they are on one rank; on several, equal and kept equal by equal steps.
  std::vector<std::pair<std::string, at::Tensor>> parameters{};
  /// What forward writes besides: running statistics, counters.
  std::vector<at::Tensor> buffers{};
  /// What else it uses that is there before and after a micro-batch: masks, tables. It stays on the
  /// device when what forward has kept is offloaded; whatever is not named here travels with it.
  std::vector<at::Tensor> lasting{};
};

/// What becomes of the sum of gradients over micro-batches.
enum class GradientDivision : std::uint8_t {
  kByWeights,  ///< divided once by the sum of the weights
  kNone,       ///< left, for whoever adds over data ranks and divides then
};

/// A value that is kept of every micro-batch, whether or not it goes to other stages.
struct Result {
  int value = 0;
  int stage = 0;  ///< that makes it

  bool operator==(const Result&) const = default;
};

/// What all ranks agree on.
struct Program {
  /// Rank r of the group runs list r. Where it lists no messages they are put in.
  schedule::Schedule schedule{};
  std::vector<BoundaryTensor> boundary_tensors{};
  std::vector<int> inputs{};  ///< values that come with each micro-batch
  int loss = 0;               ///< value of one element
  int loss_stage = 0;
  at::ScalarType loss_dtype = at::kFloat;
  /// Which of the shapes each micro-batch has; empty: all the first.
  std::vector<int> variants{};
  /// What each loss counts, above 0; empty: all 1. The number of samples where losses are means
  /// over unequally many.
  std::vector<double> weights{};
  GradientDivision division = GradientDivision::kByWeights;
  /// Forward alone, without gradients: of the schedule the order of forwards and their messages
  /// count, and no boundary tensor has a gradient.
  bool is_evaluation = false;
  /// Of evaluations, beside the loss.
  std::vector<Result> results{};

  bool is_result(int value) const;
  int variant_of(int micro_batch) const;
  double weight_of(int micro_batch) const;
  double sum_of_weights() const;
};

/// Weights for micro-batches of these numbers of samples: 1 for each where all are equal, so that
/// the sum is divided by their number; else the numbers.
std::vector<double> weights_for(const std::vector<std::int64_t>& samples);

/// Throws UsageError where the program contradicts itself, naming the value, stage or micro-batch.
/// The schedule by itself is left to `schedule::verify`.
void check_program(const Program& program);

/// Throws UsageError where the stages are not those that `rank` has in the program, or a stage's
/// inputs, outputs or parameters do not fit it.
void check_stages(const Program& program, const std::vector<StageCode>& stages, int rank);

/// The program in words, a line each thing, equal for equal programs.
std::string describe(const Program& program);

}  // namespace trireme::pipeline
