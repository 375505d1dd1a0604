// SPDX-License-Identifier: Apache-2.0
// Executes a schedule over stages that a program cuts by hand: pipeline::Executor.
// This header gathers what a program includes.
#pragma once

#include <trireme/parallel/pipeline/executor.h>
