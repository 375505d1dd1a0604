// SPDX-License-Identifier: Apache-2.0
// validate_program(): the checks that an Executor makes before its first step.
// They need no device and run no stage.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/pipeline/executor_options.h>
#include <trireme/parallel/pipeline/pipeline_program.h>

#include <vector>

namespace trireme::pipeline {

/// Checks the program and the stages of this rank, verifies the schedule under the rules of the
/// group's engine, and compares the program over all ranks. Collective and blocking. Throws
/// UsageError on every rank if a check fails on one, or if programs differ.
/// @return the program, with messages inserted if its schedule listed none.
Program validate_program(Program program, const std::vector<StageCode>& stages,
                         const comm::Group& group, const ExecutorOptions& options);

}  // namespace trireme::pipeline
