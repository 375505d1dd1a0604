// SPDX-License-Identifier: Apache-2.0
// pipeline::Executor: executes a schedule over stages that a program defines by hand.
// Programs include this header; it includes the implementation's.
#pragma once

#include <trireme/parallel/pipeline/executor.h>
