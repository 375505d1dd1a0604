// SPDX-License-Identifier: Apache-2.0
// HostMap: which ranks share a host, and which of them carry messages to other hosts. Plain
// arithmetic without LibTorch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme::comm {

/// Groups ranks by host. Hosts are numbered by their lowest rank, and the ranks of a host ("local
/// ranks") by rank. Ranks of a host need not be contiguous, and hosts may differ in size. The first
/// num_leaders() local ranks of each host are its leaders. Leader l exchanges slice l of a message
/// with the leaders l of the other hosts.
class HostMap {
 public:
  /// @param host_of_rank for each rank, a number that it shares with the other ranks of its host.
  /// @param most_leaders the largest number of leaders per host; 0 for as many as the smallest host
  /// has ranks.
  /// @throws UsageError if there is no rank, or if `most_leaders` is negative.
  HostMap(std::span<const int> host_of_rank, int most_leaders);

  int num_ranks() const noexcept { return static_cast<int>(host_.size()); }
  int num_hosts() const noexcept { return static_cast<int>(members_.size()); }
  int num_leaders() const noexcept { return num_leaders_; }

  int host_of(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
  /// Returns the number of a rank among the ranks of its host.
  int local_of(int rank) const { return local_[static_cast<std::size_t>(rank)]; }
  /// Returns the ranks of a host in ascending order.
  const std::vector<int>& members(int host) const {
    return members_[static_cast<std::size_t>(host)];
  }
  int local_size(int host) const { return static_cast<int>(members(host).size()); }
  int largest_local_size() const noexcept { return largest_local_size_; }
  /// Returns the ranks that are leader `leader` of their host, in host order.
  std::vector<int> leaders(int leader) const;

 private:
  std::vector<int> host_;
  std::vector<int> local_;
  std::vector<std::vector<int>> members_;
  int num_leaders_ = 1;
  int largest_local_size_ = 1;
};

/// Numbers the distinct machine ids, in the order of the ranks.
std::vector<int> hosts_of(std::span<const std::string> machines);

/// Cuts `total` elements into `count` slices, one for each leader. All have the same length, but
/// the last one also has the remainder.
class Slices {
 public:
  Slices(std::int64_t total, int count) : total_(total), common_(total / count), count_(count) {}

  int count() const noexcept { return count_; }
  /// Returns the length that all slices have at least.
  std::int64_t common() const noexcept { return common_; }
  std::int64_t begin(int slice) const noexcept { return slice * common_; }
  std::int64_t length(int slice) const noexcept {
    return slice == count_ - 1 ? total_ - begin(slice) : common_;
  }
  /// Returns the same slices in bytes, for elements of size `element`.
  Slices in_bytes(std::size_t element) const noexcept {
    Slices bytes = *this;
    bytes.total_ *= static_cast<std::int64_t>(element);
    bytes.common_ *= static_cast<std::int64_t>(element);
    return bytes;
  }

 private:
  std::int64_t total_;
  std::int64_t common_;
  int count_;
};

/// The contributions of all ranks, lined up host by host in local rank order. Their lengths may
/// differ.
class HostBlocks {
 public:
  HostBlocks(const HostMap& hosts, std::span<const std::int64_t> length_of_rank);

  std::int64_t offset_in_host(int rank) const { return offset_[static_cast<std::size_t>(rank)]; }
  std::int64_t length(int rank) const { return length_[static_cast<std::size_t>(rank)]; }
  bool all_equal() const noexcept { return shortest_ == longest_; }
  std::int64_t longest() const noexcept { return longest_; }
  std::int64_t largest_host() const noexcept { return largest_host_; }

 private:
  std::vector<std::int64_t> length_;
  std::vector<std::int64_t> offset_;
  std::int64_t shortest_ = 0;
  std::int64_t longest_ = 0;
  std::int64_t largest_host_ = 0;
};

/// Maps the range [offset, offset + length) of a host's block to stripes of `stripe` elements.
/// Calls visit(stripe index, place in the stripe, place in the range, length) for each part.
template <typename Visit>
void for_each_stripe(std::int64_t offset, std::int64_t length, std::int64_t stripe,
                     const Visit& visit) {
  for (std::int64_t done = 0; done < length;) {
    const std::int64_t place = (offset + done) % stripe;
    const std::int64_t part = std::min(length - done, stripe - place);
    visit((offset + done) / stripe, place, done, part);
    done += part;
  }
}

}  // namespace trireme::comm
