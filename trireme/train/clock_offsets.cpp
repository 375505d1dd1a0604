// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/clock_offsets.h>

#include <trireme/comm/collectives.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstddef>
#include <limits>

namespace trireme::detail {
namespace {

constexpr std::size_t kExchanges = 32;

struct Times {
  std::int64_t sent = 0;      // before the exchange began
  std::int64_t received = 0;  // after it
};

// Returns the times of all ranks, by exchange and rank.
std::vector<std::vector<Times>> exchange(const comm::Group& group,
                                         const std::function<std::int64_t()>& clock) {
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<std::vector<Times>> all(kExchanges, std::vector<Times>(size));
  std::vector<std::int64_t> own;
  for (std::size_t number = 0; number < kExchanges; ++number) {
    const at::Tensor received = at::empty({group.size()}, at::kLong);
    own.push_back(clock());
    comm::all_gather(received, at::tensor({own.back()}, at::kLong), group, "clocks");
    own.push_back(clock());
  }
  const std::int64_t num_times = group.size() * static_cast<std::int64_t>(own.size());
  const at::Tensor times = at::empty({num_times}, at::kLong);
  comm::all_gather(times, at::tensor(own, at::kLong), group, "clocks");
  const std::int64_t* next = times.const_data_ptr<std::int64_t>();
  for (std::size_t rank = 0; rank < size; ++rank) {
    for (auto& exchange : all) {
      exchange[rank] = {next[0], next[1]};
      next += 2;
    }
  }
  return all;
}

}  // namespace

std::vector<ClockOffset> measure_clock_offsets(const comm::Group& group,
                                               const std::function<std::int64_t()>& clock) {
  std::vector<ClockOffset> offsets(static_cast<std::size_t>(group.size()));
  if (group.size() == 1) return offsets;
  const auto exchanges = exchange(group, clock);
  for (std::size_t rank = 1; rank < offsets.size(); ++rank) {
    std::int64_t least = std::numeric_limits<std::int64_t>::min();
    std::int64_t most = std::numeric_limits<std::int64_t>::max();
    for (const std::vector<Times>& times : exchanges) {
      least = std::max(least, times[0].sent - times[rank].received);
      most = std::min(most, times[0].received - times[rank].sent);
    }
    offsets[rank] = {.offset = least + (most - least) / 2, .error = (most - least + 1) / 2};
  }
  return offsets;
}

}  // namespace trireme::detail
