// SPDX-License-Identifier: Apache-2.0
// Modules that are larger than the memory: deferred() and materialize().
// This header gathers what a program includes.
#pragma once

#include <trireme/parallel/init/deferred.h>
