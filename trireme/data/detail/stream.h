// SPDX-License-Identifier: Apache-2.0
// The two kinds of BatchStream: making each batch when it is asked for, or ahead of time on
// threads.
#pragma once

#include <trireme/data/detail/loader_spec.h>

#include <cstdint>
#include <memory>

namespace trireme::data::detail {

std::unique_ptr<BatchStream> open_stream(const std::shared_ptr<const LoaderSpec>& spec,
                                         std::int64_t epoch, std::int64_t first_batch);

}  // namespace trireme::data::detail
