// SPDX-License-Identifier: Apache-2.0
// Collectives that move bytes over a hierarchy. Each byte is sent to each host once.
#include <trireme/comm/engines/hierarchy/phases.h>

#include <utility>

namespace trireme::comm {
namespace {

std::vector<std::int64_t> lengths_of(std::span<const at::Tensor> tensors) {
  std::vector<std::int64_t> lengths;
  for (const at::Tensor& tensor : tensors) lengths.push_back(tensor.numel());
  return lengths;
}

std::int64_t sum_of(std::span<const std::int64_t> lengths) {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) sum += length;
  return sum;
}

}  // namespace

void Phases::broadcast(const at::Tensor& bytes, int root) {
  if (bytes.numel() == 0) return;
  const int root_host = hosts_.host_of(root);
  if (host_ == root_host) broadcast_inside(bytes, hosts_.local_of(root));
  if (num_hosts_ == 1) return;
  const Slices slices = {bytes.numel(), count_leaders(bytes.numel())};
  at::Tensor slice;
  if (leads(slices.count())) {
    slice = bytes.narrow(0, slices.begin(local_), slices.length(local_));
    if (slice.numel() > 0) {
      run(Phase::kAcross,
          {.kind = OperationKind::kBroadcast, .output = Buffer(slice), .peer = root_host});
    }
  }
  if (host_ != root_host) share(bytes, slices, slice);
}

void Phases::all_gather(const at::Tensor& input, std::span<const at::Tensor> outputs) {
  const HostBlocks blocks(hosts_, lengths_of(outputs));
  if (blocks.longest() == 0) return;

  // Inside the host: gather the block of the host, which is cut into a stripe for each leader.
  const int leaders = count_leaders(blocks.largest_host() * num_hosts_);
  const std::int64_t stripe = (blocks.largest_host() + leaders - 1) / leaders;
  const at::Tensor block = scratch_.take(Scratch::kBlock, at::kByte, stripe * leaders);
  if (local_size_ == 1) {
    copy_bytes(block.narrow(0, 0, input.numel()), input);
  } else {
    const std::int64_t longest = blocks.longest();
    at::Tensor own = input;
    at::Tensor gathered = block.narrow(0, 0, 0);
    if (blocks.all_equal()) {
      gathered = block.narrow(0, 0, longest * local_size_);
    } else {
      own = scratch_.take(Scratch::kPacked, at::kByte, longest);
      copy_bytes(own.narrow(0, 0, input.numel()), input);
      gathered = scratch_.take(Scratch::kUnpacked, at::kByte, longest * local_size_);
    }
    run(Phase::kInside, {.kind = OperationKind::kAllGather,
                         .input = Buffer(own),
                         .output = Buffer(gathered, local_size_)});
    for (int local = 0; local < local_size_ && !blocks.all_equal(); ++local) {
      const int rank = hosts_.members(host_)[static_cast<std::size_t>(local)];
      copy_bytes(block.narrow(0, blocks.offset_in_host(rank), blocks.length(rank)),
                 gathered.narrow(0, longest * local, blocks.length(rank)));
    }
  }

  // Between hosts: each leader gathers its stripe of all hosts. The layout is
  // all[leader][host][stripe].
  at::Tensor all = block;
  if (num_hosts_ > 1) {
    all = scratch_.take(Scratch::kUnpacked, at::kByte, stripe * num_hosts_ * leaders);
    at::Tensor stripes;
    if (leads(leaders)) {
      stripes = leaders == 1 ? all : scratch_.take(Scratch::kParts, at::kByte, stripe * num_hosts_);
      at::Tensor own = block.narrow(0, stripe * local_, stripe);
      run(Phase::kAcross, {.kind = OperationKind::kAllGather,
                           .input = Buffer(own),
                           .output = Buffer(stripes, num_hosts_)});
    }
    share(all, {all.numel(), leaders}, stripes);
  }
  for (int rank = 0; rank < hosts_.num_ranks(); ++rank) {
    for_each_stripe(
        blocks.offset_in_host(rank), blocks.length(rank), stripe,
        [&](std::int64_t leader, std::int64_t place, std::int64_t to, std::int64_t length) {
          const std::int64_t begin = (leader * num_hosts_ + hosts_.host_of(rank)) * stripe + place;
          copy_bytes(outputs[static_cast<std::size_t>(rank)].narrow(0, to, length),
                     all.narrow(0, begin, length));
        });
  }
}

void Phases::gather(const at::Tensor& input, std::span<const at::Tensor> outputs, int root) {
  const std::int64_t length = input.numel();
  if (length == 0) return;
  const int root_host = hosts_.host_of(root);
  const int leader = leader_for(root);
  const std::int64_t block_length = length * hosts_.largest_local_size();
  const at::Tensor block = scratch_.take(Scratch::kBlock, at::kByte, block_length);
  if (local_size_ == 1) {
    copy_bytes(block.narrow(0, 0, length), input);
  } else {
    const at::Tensor into = block.narrow(0, 0, length * local_size_);
    run(Phase::kInside, {.kind = OperationKind::kGather,
                         .input = Buffer(input),
                         .output = local_ == leader ? Buffer(into, local_size_) : Buffer(),
                         .peer = leader});
  }
  at::Tensor all = block;
  if (num_hosts_ > 1 && (local_ == leader || host_ == root_host)) {
    Buffer into;
    if (host_ == root_host) {
      all = scratch_.take(Scratch::kParts, at::kByte, block_length * num_hosts_);
      into = Buffer(all, num_hosts_);
    }
    if (local_ == leader) {
      run(Phase::kAcross, {.kind = OperationKind::kGather,
                           .input = Buffer(block),
                           .output = into,
                           .peer = root_host});
    }
  }
  if (host_ == root_host && leader != hosts_.local_of(root)) broadcast_inside(all, leader);
  if (rank_ != root) return;
  for (int rank = 0; rank < hosts_.num_ranks(); ++rank) {
    const std::int64_t begin = block_length * hosts_.host_of(rank) + length * hosts_.local_of(rank);
    copy_bytes(outputs[static_cast<std::size_t>(rank)], all.narrow(0, begin, length));
  }
}

void Phases::scatter(std::span<const at::Tensor> inputs, const at::Tensor& output, int root) {
  const std::int64_t length = output.numel();
  if (length == 0) return;
  const int root_host = hosts_.host_of(root);
  const int leader = leader_for(root);
  const std::int64_t block_length = length * hosts_.largest_local_size();
  at::Tensor all;
  if (host_ == root_host) {
    all = scratch_.take(Scratch::kParts, at::kByte, block_length * num_hosts_);
    for (int rank = 0; rank < hosts_.num_ranks() && rank_ == root; ++rank) {
      const std::int64_t begin =
          block_length * hosts_.host_of(rank) + length * hosts_.local_of(rank);
      copy_bytes(all.narrow(0, begin, length), inputs[static_cast<std::size_t>(rank)]);
    }
    if (leader != hosts_.local_of(root)) broadcast_inside(all, hosts_.local_of(root));
  }
  at::Tensor block = all;
  if (num_hosts_ > 1) {
    block = scratch_.take(Scratch::kBlock, at::kByte, block_length);
    if (local_ == leader) {
      run(Phase::kAcross, {.kind = OperationKind::kScatter,
                           .input = host_ == root_host ? Buffer(all, num_hosts_) : Buffer(),
                           .output = Buffer(block),
                           .peer = root_host});
    }
  }
  if (local_size_ == 1) return copy_bytes(output, block.narrow(0, 0, length));
  Buffer from;
  if (local_ == leader) from = Buffer(block.narrow(0, 0, length * local_size_), local_size_);
  run(Phase::kInside,
      {.kind = OperationKind::kScatter, .input = from, .output = Buffer(output), .peer = leader});
}

namespace {

// Packs the pieces for some ranks, exchanges them, and unpacks the pieces that came from these
// ranks.
class PackedExchange {
 public:
  PackedExchange(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                 std::vector<int> ranks, Scratch& scratch, Scratch::Slot packed,
                 Scratch::Slot unpacked)
      : outputs_(outputs), ranks_(std::move(ranks)) {
    for (const int rank : ranks_) {
      input_splits_.push_back(rank < 0 ? 0 : inputs[static_cast<std::size_t>(rank)].numel());
      output_splits_.push_back(rank < 0 ? 0 : outputs[static_cast<std::size_t>(rank)].numel());
    }
    packed_ = scratch.take(packed, at::kByte, sum_of(input_splits_));
    unpacked_ = scratch.take(unpacked, at::kByte, sum_of(output_splits_));
    for_each_part(input_splits_, [&](std::size_t rank, std::int64_t begin, std::int64_t length) {
      copy_bytes(packed_.narrow(0, begin, length), inputs[rank]);
    });
  }

  Operation operation() const {
    return {.kind = OperationKind::kAllToAll,
            .input = Buffer(packed_, input_splits_),
            .output = Buffer(unpacked_, output_splits_)};
  }

  void unpack() const {
    for_each_part(output_splits_, [&](std::size_t rank, std::int64_t begin, std::int64_t length) {
      copy_bytes(outputs_[rank], unpacked_.narrow(0, begin, length));
    });
  }

 private:
  template <typename Visit>
  void for_each_part(const std::vector<std::int64_t>& splits, const Visit& visit) const {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i] >= 0) visit(static_cast<std::size_t>(ranks_[i]), begin, splits[i]);
      begin += splits[i];
    }
  }

  std::span<const at::Tensor> outputs_;
  std::vector<int> ranks_;  // by place in the backend's group; -1 for one that is left out
  std::vector<std::int64_t> input_splits_;
  std::vector<std::int64_t> output_splits_;
  at::Tensor packed_;
  at::Tensor unpacked_;
};

}  // namespace

void Phases::all_to_all(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs) {
  std::vector<int> others;
  for (int rank = 0; rank < hosts_.num_ranks(); ++rank) {
    others.push_back(hosts_.host_of(rank) == host_ ? -1 : rank);
  }
  const PackedExchange far(inputs, outputs, others, scratch_, Scratch::kFlatPacked,
                           Scratch::kFlatUnpacked);
  const PackedExchange near(inputs, outputs, hosts_.members(host_), scratch_, Scratch::kPacked,
                            Scratch::kUnpacked);
  Works far_works;
  if (num_hosts_ > 1) far_works = begin(Phase::kFlat, far.operation());
  if (local_size_ > 1) {
    run(Phase::kInside, near.operation());
    near.unpack();
  } else {
    copy_bytes(outputs[static_cast<std::size_t>(rank_)], inputs[static_cast<std::size_t>(rank_)]);
  }
  finish(Phase::kFlat, far_works);
  if (num_hosts_ > 1) far.unpack();
}

void Phases::barrier() {
  if (local_size_ > 1) run(Phase::kInside, Operation{});
  if (num_hosts_ == 1) return;
  if (local_ == 0) run(Phase::kAcross, Operation{});
  if (local_size_ > 1) run(Phase::kInside, Operation{});
}

}  // namespace trireme::comm
