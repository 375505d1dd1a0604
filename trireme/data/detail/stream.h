// SPDX-License-Identifier: Apache-2.0
// The two kinds of BatchStream: one makes each batch on request, the other makes batches ahead of
// time on background threads.
#pragma once

#include <trireme/data/detail/loader_spec.h>

#include <cstdint>
#include <memory>

namespace trireme::data::detail {

/// Opens a stream of the kind that `spec` asks for, beginning with batch `first_batch` of the
/// epoch.
std::unique_ptr<BatchStream> open_stream(const std::shared_ptr<const LoaderSpec>& spec,
                                         std::int64_t epoch, std::int64_t first_batch);

}  // namespace trireme::data::detail
