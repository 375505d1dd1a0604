// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/sample_transform.h>

#include <trireme/base/error.h>

namespace trireme::data {

SampleTransform::SampleTransform(std::string name, Function function)
    : name_(std::move(name)), function_(std::move(function)) {
  if (!function_)
    throw UsageError(join_message("the transform '", name_, "' has no function"), "give one");
}

}  // namespace trireme::data
