// SPDX-License-Identifier: Apache-2.0
// recompute(): computes the result of a function again in backward (activation checkpointing).
// Programs include this header; it includes the implementation's.
#pragma once

#include <trireme/parallel/recompute/recompute.h>
