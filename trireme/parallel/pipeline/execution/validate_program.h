// SPDX-License-Identifier: Apache-2.0
// What is proven before a pipeline runs.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/pipeline/execution/executor_options.h>
#include <trireme/parallel/pipeline/program/pipeline_program.h>

#include <vector>

namespace trireme::pipeline {

/// Returns the program with its messages. Checks it and the stages of this rank, proves the
/// schedule under the rules of the group's engine, and compares the program over all ranks.
/// Collective and blocking; throws UsageError on every rank where something is wrong on one or
/// differs.
Program validate_program(Program program, const std::vector<StageCode>& stages,
                         const comm::Group& group, const ExecutorOptions& options);

}  // namespace trireme::pipeline
