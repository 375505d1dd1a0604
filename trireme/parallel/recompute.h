// SPDX-License-Identifier: Apache-2.0
// Recomputes in backward what a function computed in forward: recompute().
// This header gathers what a program includes.
#pragma once

#include <trireme/parallel/recompute/recompute.h>
