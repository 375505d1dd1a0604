// SPDX-License-Identifier: Apache-2.0
// Parts of a stage whose tensors are computed again in its backward.
#pragma once

#include <trireme/graph/replay.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::pipeline {

/// For graph::RunOptions::around: runs a part so that backward of the stage keeps its inputs alone
/// and runs it again (trireme/parallel/recompute), also where that backward comes in two parts.
/// Random operators of the part have to draw from streams that `run` gives them.
std::vector<at::Tensor> rebuild_in_backward(const graph::Part& part, const graph::RunPart& run,
                                            const std::vector<at::Tensor>& inputs);

}  // namespace trireme::pipeline
