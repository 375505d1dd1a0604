// SPDX-License-Identifier: Apache-2.0
// rebuild_in_backward(): runs a part of a stage whose tensors are recomputed in backward
// (activation checkpointing).
#pragma once

#include <trireme/graph/replay.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::pipeline {

/// Runs a part so that only its inputs are kept for backward, which runs the part again
/// (trireme/parallel/recompute). Works with a backward in two parts too. To be passed as
/// graph::RunOptions::around. Random operators of the part must draw from the streams that `run`
/// gives them.
std::vector<at::Tensor> rebuild_in_backward(const graph::Part& part, const graph::RunPart& run,
                                            const std::vector<at::Tensor>& inputs);

}  // namespace trireme::pipeline
