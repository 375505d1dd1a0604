// SPDX-License-Identifier: Apache-2.0
// Reductions over a hierarchy. Inside a host the engine adds in its own order. Between hosts the
// partial sums are exchanged, and every element is added in host order. So the result does not
// depend on the engine between hosts. This moves as many bytes as a ring.
#include <trireme/comm/adapter/host_fold.h>
#include <trireme/comm/engines/hierarchy/phases.h>

#include <cstring>
#include <utility>

namespace trireme::comm {
namespace {

// Up to this many received bytes, one exchange after which every leader reduces its whole slice is
// faster than two exchanges that divide the work.
constexpr std::int64_t kOneExchangeBytes = std::int64_t{64} * 1024;

// The part of a large message that a leader carries at a time.
constexpr std::int64_t kPartBytes = std::int64_t{1024} * 1024;

Operation reduce_to(const at::Tensor& tensor, int root, const c10d::ReduceOp& op) {
  return {.kind = OperationKind::kReduce,
          .output = Buffer(tensor),
          .reduction = phase_operation(op),
          .peer = root};
}

}  // namespace

// Returns this rank's slice with the sum of the host's contributions, if the rank is a leader. May
// overwrite `tensor`, and the slice may be part of it.
at::Tensor Phases::reduce_to_leaders(const at::Tensor& tensor, Slices slices,
                                     const c10d::ReduceOp& op, std::size_t part) {
  const auto slice_of_tensor = [&](int slice) {
    return tensor.narrow(0, slices.begin(slice), slices.length(slice));
  };
  if (local_size_ == 1) return tensor;
  const std::int64_t scattered = slices.count() == local_size_ ? slices.common() : 0;
  at::Tensor result;
  if (leads(slices.count())) {
    result = scattered == 0 ? slice_of_tensor(local_)
                            : scratch_.take(Scratch::kSlice, tensor.scalar_type(),
                                            slices.length(local_), part);
  }
  std::vector<Operation> operations;
  if (scattered > 0) {
    operations.push_back(
        {.kind = OperationKind::kReduceScatter,
         .input = Buffer(tensor.narrow(0, 0, scattered * slices.count()), local_size_),
         .output = Buffer(result.narrow(0, 0, scattered)),
         .reduction = phase_operation(op)});
  }
  for (int slice = 0; slice < slices.count(); ++slice) {
    const at::Tensor rest = slice_of_tensor(slice).slice(0, scattered);
    if (rest.numel() > 0) operations.push_back(reduce_to(rest, slice, op));
  }
  run(Phase::kInside, operations);
  if (leads(slices.count()) && scattered > 0) {
    copy_bytes(result.slice(0, scattered), slice_of_tensor(local_).slice(0, scattered));
  }
  return result;
}

std::int64_t Phases::length_of_piece(std::int64_t length, int host) const {
  const std::int64_t common = (length + num_hosts_ - 1) / num_hosts_;
  return std::clamp<std::int64_t>(length - common * host, 0, common);
}

Phases::Works Phases::begin_all_gather_across(const at::Tensor& output, const at::Tensor& input) {
  return begin(Phase::kAcross, {.kind = OperationKind::kAllGather,
                                .input = Buffer(input),
                                .output = Buffer(output, num_hosts_)});
}

// Sends what the other leaders need of this leader's slice. That is all of it if each leader
// reduces all, else the piece that each leader reduces. The last pieces may be shorter, even empty.
void Phases::begin_exchange(Part& part) {
  const std::int64_t length = part.slice.numel();
  const at::ScalarType dtype = part.slice.scalar_type();
  const auto item = static_cast<std::int64_t>(part.slice.itemsize());
  part.folds_all = num_hosts_ == 2 || length * item * num_hosts_ <= kOneExchangeBytes;
  const std::int64_t own = part.folds_all ? length : length_of_piece(length, host_);
  part.received = scratch_.take(Scratch::kParts, dtype, own * num_hosts_, part.index);
  if (part.folds_all) {
    part.works = begin_all_gather_across(part.received, part.slice);
    return;
  }
  std::vector<std::int64_t> given;
  for (int host = 0; host < num_hosts_; ++host) given.push_back(length_of_piece(length, host));
  part.works = begin(Phase::kAcross, {.kind = OperationKind::kAllToAll,
                                      .input = Buffer(part.slice, given),
                                      .output = Buffer(part.received, num_hosts_)});
}

// Reduces the received data in host order. If each leader reduced a piece, sends the result on.
void Phases::fold_exchanged(Part& part, const c10d::ReduceOp& op) {
  finish(Phase::kAcross, std::exchange(part.works, {}));
  const std::int64_t length = part.slice.numel();
  const at::Tensor received = part.received.view({num_hosts_, part.received.numel() / num_hosts_});
  if (part.folds_all) return fold(received, op, hosts_.num_ranks(), part.slice);
  const std::int64_t common = length_of_piece(length, 0);
  const at::Tensor folded =
      scratch_.take(Scratch::kPiece, part.slice.scalar_type(), common, part.index);
  fold(received, op, hosts_.num_ranks(), folded.narrow(0, 0, received.size(1)));
  part.gathered = part.slice;
  if (length != common * num_hosts_) {
    part.gathered =
        scratch_.take(Scratch::kPacked, part.slice.scalar_type(), common * num_hosts_, part.index);
  }
  part.works = begin_all_gather_across(part.gathered, folded);
}

// Gives the whole part to every rank of the host.
void Phases::deliver(Part& part) {
  const std::size_t item = part.tensor.itemsize();
  if (part.slice.defined()) {
    finish(Phase::kAcross, part.works);
    if (part.gathered.defined() && part.gathered.data_ptr() != part.slice.data_ptr()) {
      copy_bytes(part.slice, part.gathered.narrow(0, 0, part.slice.numel()));
    }
  }
  share(bytes_of(part.tensor), part.slices.in_bytes(item),
        part.slice.defined() ? bytes_of(part.slice) : part.slice);
}

// A large message is sent in parts. While a part crosses, the next one is reduced inside the host
// and the previous one is delivered. All ranks use the same parts.
void Phases::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (tensor.numel() == 0) return;
  scale_before(tensor, op, hosts_.num_ranks());
  const int leaders = count_leaders(static_cast<std::int64_t>(tensor.nbytes()));
  const std::int64_t most = kPartBytes / static_cast<std::int64_t>(tensor.itemsize()) * leaders;
  std::vector<Part> parts;
  for (std::int64_t begin = 0; begin < tensor.numel(); begin += most) {
    const std::int64_t length = std::min(most, tensor.numel() - begin);
    parts.push_back({.tensor = tensor.narrow(0, begin, length),
                     .slices = Slices(length, leaders),
                     .index = parts.size()});
  }
  const bool crosses = leads(leaders) && num_hosts_ > 1;
  for (Part& part : parts) {
    part.slice = reduce_to_leaders(part.tensor, part.slices, op, part.index);
    if (crosses && part.slice.numel() > 0) begin_exchange(part);
  }
  for (std::size_t next = 0; next <= parts.size(); ++next) {
    if (next < parts.size() && leads(leaders) && parts[next].slice.numel() > 0) {
      if (crosses) {
        fold_exchanged(parts[next], op);
      } else {
        divide_after(parts[next].slice, tensor.scalar_type(), op, hosts_.num_ranks());
      }
    }
    if (next > 0) deliver(parts[next - 1]);
  }
}

void Phases::reduce(const at::Tensor& tensor, int root, const c10d::ReduceOp& op) {
  if (tensor.numel() == 0) return;
  const int root_host = hosts_.host_of(root);
  const int leader = leader_for(root);
  // Works on a copy, so that the tensors of ranks other than the root are not changed.
  const at::Tensor partial = scratch_.take(Scratch::kBlock, tensor.scalar_type(), tensor.numel());
  copy_bytes(partial, tensor);
  scale_before(partial, op, hosts_.num_ranks());
  if (local_size_ > 1) {
    run(Phase::kInside, reduce_to(partial, leader, op));
  }
  if (local_ == leader && num_hosts_ > 1) {
    at::Tensor parts;
    Buffer outputs;
    if (host_ == root_host) {
      parts = scratch_.take(Scratch::kParts, tensor.scalar_type(), tensor.numel() * num_hosts_)
                  .view({num_hosts_, tensor.numel()});
      outputs = Buffer(parts, num_hosts_);
    }
    run(Phase::kAcross, {.kind = OperationKind::kGather,
                         .input = Buffer(partial),
                         .output = outputs,
                         .peer = root_host});
    if (host_ == root_host) fold(parts, op, hosts_.num_ranks(), partial);
  } else if (local_ == leader) {
    divide_after(partial, tensor.scalar_type(), op, hosts_.num_ranks());
  }
  if (host_ == root_host && leader != hosts_.local_of(root)) {
    broadcast_inside(bytes_of(partial), leader);
  }
  if (rank_ == root) copy_bytes(tensor, partial);
}

void Phases::reduce_scatter(std::span<const at::Tensor> inputs, const at::Tensor& output,
                            const c10d::ReduceOp& op) {
  std::vector<std::int64_t> lengths;
  for (const at::Tensor& input : inputs) lengths.push_back(input.numel());
  const HostBlocks blocks(hosts_, lengths);
  if (blocks.longest() == 0) return;
  const at::ScalarType dtype = output.scalar_type();
  const auto item = static_cast<std::int64_t>(output.itemsize());

  // Leader l carries stripe l of the block of every host. The layout is packed[l][host][stripe].
  const int leaders = count_leaders(blocks.largest_host() * num_hosts_ * item);
  const std::int64_t stripe = (blocks.largest_host() + leaders - 1) / leaders;
  const at::Tensor packed = scratch_.take(Scratch::kBlock, dtype, stripe * num_hosts_ * leaders);
  std::memset(packed.mutable_data_ptr(), 0, packed.nbytes());  // what pads stripes is added too
  for (int rank = 0; rank < hosts_.num_ranks(); ++rank) {
    for_each_stripe(
        blocks.offset_in_host(rank), blocks.length(rank), stripe,
        [&](std::int64_t leader, std::int64_t place, std::int64_t from, std::int64_t length) {
          const std::int64_t begin = (leader * num_hosts_ + hosts_.host_of(rank)) * stripe + place;
          copy_bytes(packed.narrow(0, begin, length),
                     inputs[static_cast<std::size_t>(rank)].narrow(0, from, length));
        });
  }
  scale_before(packed, op, hosts_.num_ranks());
  const at::Tensor partial = reduce_to_leaders(packed, {packed.numel(), leaders}, op, 0);

  at::Tensor piece;
  if (leads(leaders) && num_hosts_ == 1) {
    piece = partial;
    divide_after(piece, dtype, op, hosts_.num_ranks());
  } else if (leads(leaders)) {
    const at::Tensor parts = scratch_.take(Scratch::kParts, dtype, stripe * num_hosts_);
    run(Phase::kAcross, {.kind = OperationKind::kAllToAll,
                         .input = Buffer(partial, num_hosts_),
                         .output = Buffer(parts, num_hosts_)});
    piece = scratch_.take(Scratch::kPacked, dtype, stripe);
    fold(parts.view({num_hosts_, stripe}), op, hosts_.num_ranks(), piece);
  }
  if (leaders == hosts_.largest_local_size() && blocks.all_equal()) {
    return copy_bytes(output, piece);  // each rank leads, and carried just its own
  }
  const at::Tensor block = scratch_.take(Scratch::kUnpacked, dtype, stripe * leaders);
  share(bytes_of(block), Slices(block.numel(), leaders).in_bytes(output.itemsize()),
        piece.defined() ? bytes_of(piece) : piece);
  copy_bytes(output, block.narrow(0, blocks.offset_in_host(rank_), output.numel()));
}

}  // namespace trireme::comm
