// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/hierarchy/phases.h>

#include <trireme/base/exception_text.h>
#include <trireme/comm/adapter/c10d_call.h>

#include <ATen/ops/empty.h>

#include <cstring>

namespace trireme::comm {
namespace {

using std::chrono::milliseconds;

// The engine of a phase knows best what it waited for. It gets this much more time, so that its
// error comes first.
constexpr milliseconds kGrace{250};

}  // namespace

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kByte ? tensor : tensor.view(at::kByte);
}

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  TRIREME_CHECK_EQ(to.nbytes(), from.nbytes());
  if (to.nbytes() > 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
}

at::Tensor Scratch::take(Slot slot, at::ScalarType dtype, std::int64_t elements, std::size_t part) {
  const auto bytes = elements * static_cast<std::int64_t>(c10::elementSize(dtype));
  std::vector<at::Tensor>& parts = slots_[slot];
  if (parts.size() <= part) parts.resize(part + 1);
  at::Tensor& memory = parts[part];
  if (!memory.defined() || memory.numel() < bytes) memory = at::empty({bytes}, at::kByte);
  return memory.narrow(0, 0, bytes).view(dtype);
}

Phases::Phases(const HostMap& hosts, int rank, HierarchyConnections connections,
               std::int64_t one_leader_below, Scratch& scratch, PhasedOperation& work)
    : hosts_(hosts),
      rank_(rank),
      host_(hosts.host_of(rank)),
      local_(hosts.local_of(rank)),
      local_size_(hosts.local_size(host_)),
      num_hosts_(hosts.num_hosts()),
      connections_(std::move(connections)),
      one_leader_below_(one_leader_below),
      scratch_(scratch),
      work_(work),
      deadline_(std::chrono::steady_clock::now() + work.operation().timeout) {}

milliseconds Phases::remaining() const {
  const auto left = std::chrono::ceil<milliseconds>(deadline_ - std::chrono::steady_clock::now());
  return std::max(milliseconds(1), left);
}

void Phases::fail(Phase phase, const std::exception& cause) const {
  const std::string text = message_of(cause);
  std::size_t length = text.find('\n');
  CommFailure failure = {
      .rank = rank_,
      .peer = -1,
      .operation = name_of(work_.operation().kind),
      .sequence = work_.operation().number,
      .elapsed = std::chrono::steady_clock::now() - deadline_ + work_.operation().timeout};
  if (const auto* known = dynamic_cast<const CommError*>(&cause)) {
    length = text.find("\n  hint:");  // what each rank did last is worth keeping
    failure.peer = rank_of(phase, known->failure().peer);
  }
  throw CommError(
      join_message(work_.name(), " failed ", work_.describe(phase), ": ", text.substr(0, length)),
      "a rank that takes part in that phase ended, hangs, or did not make this call; its own log "
      "says why. The group cannot be used any more",
      std::move(failure));
}

// Returns the rank in the whole group of a rank in a phase.
int Phases::rank_of(Phase phase, int rank_in_phase) const {
  if (rank_in_phase < 0) return -1;
  const auto index = static_cast<std::size_t>(rank_in_phase);
  if (phase == Phase::kInside) return hosts_.members(host_)[index];
  if (phase == Phase::kAcross) return hosts_.leaders(local_)[index];
  return rank_in_phase;
}

Phases::Works Phases::begin(Phase phase, std::span<const Operation> operations, bool is_async) {
  work_.enter(phase);
  const auto& backend = phase == Phase::kInside   ? connections_.inside
                        : phase == Phase::kAcross ? connections_.across
                                                  : connections_.flat;
  Works works;
  try {
    for (Operation operation : operations) {
      operation.timeout = remaining();
      auto work = start_on(*backend, operation, is_async);
      if (work) works.push_back(std::move(work));  // else it is done
    }
  } catch (const UsageError&) {
    throw;  // refused, on every rank alike, and nothing has happened
  } catch (const std::exception& cause) {
    fail(phase, cause);
  }
  return works;
}

void Phases::finish(Phase phase, const Works& works) {
  work_.enter(phase);
  try {
    for (const auto& work : works) work->wait(remaining() + kGrace);
  } catch (const UsageError&) {
    throw;  // refused, on every rank alike, and nothing has happened
  } catch (const std::exception& cause) {
    fail(phase, cause);
  }
}

// Some backends have finished the operation when it has been started, which saves a change of
// threads.
void Phases::run(Phase phase, std::span<const Operation> operations) {
  finish(phase, begin(phase, operations, /*is_async=*/false));
}

int Phases::count_leaders(std::int64_t bytes) const {
  return bytes < one_leader_below_ ? 1 : hosts_.num_leaders();
}

int Phases::leader_for(int root) const {
  const int local = hosts_.local_of(root);
  return local < hosts_.num_leaders() ? local : 0;
}

void Phases::broadcast_inside(const at::Tensor& bytes, int local_root) {
  if (local_size_ == 1) return;
  run(Phase::kInside,
      {.kind = OperationKind::kBroadcast, .output = Buffer(bytes), .peer = local_root});
}

// Gives every rank of the host the whole tensor, of which leader l holds slice l as `piece`.
void Phases::share(const at::Tensor& whole, Slices slices, const at::Tensor& piece) {
  // If all ranks of the host lead, one all-gather shares the common length of the slices, and a
  // broadcast the remainder. Otherwise each slice is a broadcast.
  const std::int64_t gathered =
      local_size_ > 1 && slices.count() == local_size_ ? slices.common() : 0;
  at::Tensor own;
  if (leads(slices.count())) {
    const at::Tensor place = whole.narrow(0, slices.begin(local_), slices.length(local_));
    own = piece.narrow(0, 0, gathered);
    if (place.data_ptr() != piece.data_ptr()) {
      copy_bytes(place.slice(0, gathered), piece.slice(0, gathered));
    } else if (gathered > 0) {  // an engine may refuse input and output that overlap
      own = scratch_.take(Scratch::kOwn, at::kByte, gathered);
      copy_bytes(own, piece.narrow(0, 0, gathered));
    }
  }
  if (local_size_ == 1) return;
  std::vector<Operation> operations;
  if (gathered > 0) {
    operations.push_back(
        {.kind = OperationKind::kAllGather,
         .input = Buffer(own),
         .output = Buffer(whole.narrow(0, 0, gathered * slices.count()), local_size_)});
  }
  for (int slice = 0; slice < slices.count(); ++slice) {
    const std::int64_t rest = slices.length(slice) - gathered;
    if (rest == 0) continue;
    operations.push_back({.kind = OperationKind::kBroadcast,
                          .output = Buffer(whole.narrow(0, slices.begin(slice) + gathered, rest)),
                          .peer = slice});
  }
  run(Phase::kInside, operations);
}

}  // namespace trireme::comm
