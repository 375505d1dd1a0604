// SPDX-License-Identifier: Apache-2.0
// Program and StageCode: the description of a pipeline that the executor runs. They hold a
// schedule, the tensors that pass from stage to stage, and the code of each stage. The design is
// docs/design/pipeline.md.
#pragma once

#include <trireme/schedule/schedule.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::pipeline {

/// The shape of a tensor, known before the tensor exists.
struct Shape {
  std::vector<std::int64_t> sizes{};  ///< the size of each dim
  /// In elements, without gaps or overlaps. Empty means contiguous.
  std::vector<std::int64_t> strides{};

  bool operator==(const Shape&) const = default;
};

/// A tensor that passes from one stage to one or more later ones, on the same rank or another.
struct BoundaryTensor {
  int value = 0;  ///< its number; no other boundary tensor and no input of the step has the same
  int from = 0;   ///< the stage that computes it
  std::vector<int> to{};  ///< the stages that take it, ascending; the schedule has an edge to each
  at::ScalarType dtype = at::kFloat;  ///< the same for all variants
  bool has_gradient = true;     ///< false for integers, masks, and tensors that need no gradient
  std::vector<Shape> shapes{};  ///< one for each variant (Program::variants)
};

/// Tells a stage which micro-batch of which step it runs.
struct MicroBatch {
  int number = 0;         ///< within the step, from 0
  std::int64_t step = 0;  ///< the number that was passed to Executor::step
  int variant = 0;        ///< its entry in Program::variants
  /// True if forward runs for the second time, to recompute. The executor restores the stage's
  /// buffers afterwards. Random numbers must be the same again, so derive them from step, number
  /// and stage.
  bool is_recomputation = false;
};

/// The code and the tensors of one stage of this rank.
struct StageCode {
  int stage = 0;              ///< its number, over all ranks
  std::vector<int> inputs{};  ///< values taken: boundary tensors to here, and inputs of the step
  std::vector<int>
      outputs{};  ///< values computed: every boundary tensor from here, and the loss if it is here
  /// Computes the outputs from the inputs, in the order of these lists. It must not change an input
  /// in place, and must not change an output after it has returned it.
  std::function<std::vector<at::Tensor>(c10::ArrayRef<at::Tensor>, const MicroBatch&)> forward{};
  /// The parameters that the stage uses, by name. Parameters of one name in several stages are one
  /// parameter. On one rank they must be the same tensor. On several ranks they must start equal;
  /// equal gradients and optimizers keep them equal.
  std::vector<std::pair<std::string, at::Tensor>> parameters{};
  /// Other tensors that forward writes: running statistics, counters.
  std::vector<at::Tensor> buffers{};
  /// Other tensors that forward reads and that outlive a micro-batch: masks, tables. Offloading
  /// leaves them on the device. Tensors that are not named here are moved to host memory with the
  /// activations.
  std::vector<at::Tensor> lasting{};
};

/// The division of the gradients after the sum over micro-batches.
enum class GradientDivision : std::uint8_t {
  kByWeights,  ///< divides once by the sum of the weights
  kNone,       ///< leaves the sum, for a caller that sums over data ranks and divides then
};

/// A value that is returned for every micro-batch. It may be a boundary tensor too.
struct Result {
  int value = 0;  ///< its number
  int stage = 0;  ///< the stage that computes it

  bool operator==(const Result&) const = default;
};

/// The part of a pipeline that is the same on all ranks.
struct Program {
  /// The schedule. Rank r of the group runs list r. If it lists no messages, they are inserted.
  schedule::Schedule schedule{};
  std::vector<BoundaryTensor> boundary_tensors{};
  std::vector<int> inputs{};  ///< the values that are given with each micro-batch
  int loss = 0;               ///< the value of the loss, a tensor of one element
  int loss_stage = 0;         ///< the stage that computes the loss
  at::ScalarType loss_dtype = at::kFloat;
  /// The variant of each micro-batch, an index into BoundaryTensor::shapes. Empty means 0 for all.
  std::vector<int> variants{};
  /// The weight of each micro-batch's loss, above 0. Empty means 1 for all. If losses are means
  /// over different numbers of samples, pass these numbers.
  std::vector<double> weights{};
  GradientDivision division = GradientDivision::kByWeights;
  /// Runs forward only, without gradients: the forwards of the schedule and their messages, in
  /// their order. No boundary tensor may have a gradient.
  bool is_evaluation = false;
  /// The values that an evaluation returns besides the loss.
  std::vector<Result> results{};

  /// Returns true if `value` is one of `results`.
  bool is_result(int value) const;
  /// Returns the variant of a micro-batch.
  int variant_of(int micro_batch) const;
  /// Returns the weight of a micro-batch.
  double weight_of(int micro_batch) const;
  /// Returns the sum of the weights of all micro-batches.
  double sum_of_weights() const;
};

/// Returns weights for micro-batches with these numbers of samples: 1 for each if all numbers are
/// equal, so that the sum is divided by the number of micro-batches; otherwise the numbers.
std::vector<double> weights_for(const std::vector<std::int64_t>& samples);

/// Throws UsageError if the program contradicts itself, naming the value, stage or micro-batch.
/// Does not verify the schedule by itself (`schedule::verify`).
void check_program(const Program& program);

/// Throws UsageError if `stages` are not the stages of `rank` in the program, or if a stage's
/// inputs, outputs or parameters do not match the program.
void check_stages(const Program& program, const std::vector<StageCode>& stages, int rank);

/// Returns a text with one item per line. Equal programs give equal texts.
std::string describe(const Program& program);

}  // namespace trireme::pipeline
