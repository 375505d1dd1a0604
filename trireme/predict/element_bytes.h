// SPDX-License-Identifier: Apache-2.0
// The memory of an element of a parameter in gradients and in the optimizer.
#pragma once

#include <trireme/parallel/record/module_record.h>
#include <trireme/predict/predict.h>

namespace trireme::predict {

/// Returns the bytes of the gradient of one element.
double gradient_bytes(const ParameterRecord& parameter, const TrainingOptions& options);

/// Returns the bytes of the optimizer's state for one element, with the fp32 copy if there is one.
double optimizer_bytes(const ParameterRecord& parameter, const TrainingOptions& options);

}  // namespace trireme::predict
