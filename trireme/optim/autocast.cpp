// SPDX-License-Identifier: Apache-2.0
#include <trireme/optim/autocast.h>

#include <trireme/base/error.h>

#include <ATen/autocast_mode.h>

namespace trireme {
namespace {

void check(c10::DeviceType device, c10::ScalarType dtype) {
  const bool is_known_device = device == at::kCPU || device == at::kCUDA;
  if (is_known_device && (dtype == at::kBFloat16 || dtype == at::kHalf)) return;
  throw UsageError(
      join_message("autocast on ", c10::DeviceTypeName(device, /*lower_case=*/true), " to ", dtype),
      "give it at::kCPU or at::kCUDA, and at::kBFloat16 or at::kHalf; for fp32 leave it out, or "
      "pass enabled = false inside another one");
}

// The cache identifies a cast only by its parameter, so casts to another dtype must be removed.
void change_dtype(c10::DeviceType device, c10::ScalarType dtype) {
  if (at::autocast::get_autocast_dtype(device) == dtype) return;
  at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(device, dtype);
}

}  // namespace

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled) : device_(device) {
  check(device, dtype);
  outer_dtype_ = at::autocast::get_autocast_dtype(device);
  outer_enabled_ = at::autocast::is_autocast_enabled(device);
  change_dtype(device, dtype);
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, outer_enabled_);
  change_dtype(device_, outer_dtype_);
}

}  // namespace trireme
