// SPDX-License-Identifier: Apache-2.0
// Which ranks share a host, and which of them carry messages to other hosts. Plain arithmetic, no
// LibTorch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme::comm {

/// Groups ranks by host. Hosts are numbered by their lowest rank, the ranks of a host ("local
/// ranks") by rank; neither need be contiguous, and hosts may differ in size. The first
/// num_leaders() local ranks of each host are its leaders: leader l exchanges slice l of a message
/// with the leaders l of the other hosts.
class HostMap {
 public:
  /// @param host_of_rank for each rank a number that its host's other ranks have too.
  /// @param most_leaders how many ranks of a host may lead; 0 for as many as the smallest host has.
  /// Throws UsageError where there is no rank, or `most_leaders` is negative.
  HostMap(std::span<const int> host_of_rank, int most_leaders);

  int num_ranks() const noexcept { return static_cast<int>(host_.size()); }
  int num_hosts() const noexcept { return static_cast<int>(members_.size()); }
  int num_leaders() const noexcept { return num_leaders_; }

  int host_of(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
  /// Place of a rank among the ranks of its host.
  int local_of(int rank) const { return local_[static_cast<std::size_t>(rank)]; }
  /// Ranks of a host, ascending.
  const std::vector<int>& members(int host) const {
    return members_[static_cast<std::size_t>(host)];
  }
  int local_size(int host) const { return static_cast<int>(members(host).size()); }
  int largest_local_size() const noexcept { return largest_local_size_; }
  /// The ranks that are leader `leader` of their host, in host order.
  std::vector<int> leaders(int leader) const;

 private:
  std::vector<int> host_;
  std::vector<int> local_;
  std::vector<std::vector<int>> members_;
  int num_leaders_ = 1;
  int largest_local_size_ = 1;
};

/// Numbers the distinct machine ids, in the order in which ranks first show them.
std::vector<int> hosts_of(std::span<const std::string> machines);

/// `total` elements cut into `count` slices, one for each leader: all of one length, but that the
/// last takes the remainder too.
class Slices {
 public:
  Slices(std::int64_t total, int count) : total_(total), common_(total / count), count_(count) {}

  int count() const noexcept { return count_; }
  /// What all slices have at least; the last has the remainder too.
  std::int64_t common() const noexcept { return common_; }
  std::int64_t begin(int slice) const noexcept { return slice * common_; }
  std::int64_t length(int slice) const noexcept {
    return slice == count_ - 1 ? total_ - begin(slice) : common_;
  }
  /// The same cuts, counted in bytes of elements of that size.
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

/// Contributions of given lengths, one for each rank, lined up host by host in local rank order.
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

/// How much of [offset, offset + length) of a host's block lies in which stripe, where the block is
/// cut into stripes of `stripe` elements: calls visit(stripe index, place in the stripe, place in
/// the range, length) for each.
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
