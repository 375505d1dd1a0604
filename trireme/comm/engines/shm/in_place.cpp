// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/in_place.h>

#include <trireme/base/error.h>
#include <trireme/comm/engines/shm/fold.h>
#include <trireme/comm/engines/shm/streaming_copy.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

namespace trireme::shm {

// What a rank says of its buffer.
struct InPlace::Place {
  static constexpr std::size_t kAddressBytes = 168;
  SharedPages::State state = SharedPages::State::kPrivate;
  std::uint32_t is_whole = 0;
  std::uint64_t number = 0;  // of the file
  std::uint64_t offset = 0;
  std::array<char, kAddressBytes> address = {};
  // The numbers of the files of the other ranks that this rank has opened.
  std::array<std::uint64_t, kMaximumRanks> opened = {};

  // The bytes that a group of so many ranks exchanges.
  static std::size_t length(std::size_t ranks) {
    return offsetof(Place, opened) + ranks * sizeof(std::uint64_t);
  }
};

namespace {

using State = SharedPages::State;
constexpr std::size_t kEdge = SharedBuffers::kEdge;

const std::byte* at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
std::byte* at(void* data, std::size_t offset) { return static_cast<std::byte*>(data) + offset; }

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || to == from) return;
  if (bytes >= kStreamingBytes) {
    streaming_copy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

// Returns whether a condition holds on all ranks.
bool have_all(Steps& steps, const Call& call, bool holds) {
  const std::uint64_t step = steps.take(1);
  const std::uint64_t own = holds ? 1 : 0;
  std::memcpy(steps.begin_write(step, sizeof(own), call), &own, sizeof(own));
  steps.publish(step, call);
  for (int peer = 0; peer < steps.size(); ++peer) {
    if (peer == steps.rank()) continue;
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, steps.await(peer, step, sizeof(theirs), call), sizeof(theirs));
    holds = holds && theirs == 1;
  }
  steps.finish(step);
  return holds;
}

// The first and last kEdge bytes of the buffers of all ranks, in their slots.
class Edges {
 public:
  // Publishes the edges of this rank's buffer, unless it has none.
  Edges(Steps& steps, const Call& call, const void* data, std::size_t bytes)
      : steps_(steps), step_(steps.take(1)) {
    std::byte* const slot = steps.begin_write(step_, 2 * kEdge, call);
    if (data != nullptr) {
      std::memcpy(slot, data, kEdge);
      std::memcpy(slot + kEdge, at(data, bytes - kEdge), kEdge);
    }
    steps.publish(step_, call);
    for (int peer = 0; peer < steps.size(); ++peer) {
      heads_.push_back(peer == steps.rank() ? slot : steps.await(peer, step_, 2 * kEdge, call));
    }
  }
  ~Edges() { steps_.finish(step_); }
  Edges(const Edges&) = delete;
  Edges& operator=(const Edges&) = delete;

  const std::byte* head(std::size_t rank) const { return heads_[rank]; }
  const std::byte* tail(std::size_t rank) const { return heads_[rank] + kEdge; }

 private:
  Steps& steps_;
  std::uint64_t step_;
  std::vector<const std::byte*> heads_;
};

}  // namespace

InPlace::InPlace(std::shared_ptr<SharedPages> pages, int size)
    : pages_(std::move(pages)), peers_(static_cast<std::size_t>(size)) {}

// Tells the other ranks where this rank's buffer lies, and which files it has opened.
SharedPages::Found InPlace::publish(Steps& steps, const Call& call, std::uint64_t step,
                                    const void* data, std::size_t bytes, Place& place) {
  SharedPages::Found found;
  if (pages_ && bytes >= 2 * kEdge) found = pages_->find(data, bytes);
  place.state = found.state;
  place.is_whole = found.is_whole ? 1 : 0;
  place.offset = found.offset;
  if (found.file) {
    place.number = found.file->number;
    const std::string& address = found.file->address;
    if (address.size() < place.address.size()) {
      std::memcpy(place.address.data(), address.data(), address.size());
    } else {
      place.state = State::kPrivate;
    }
  }
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) place.opened[peer] = peers_[peer].number;
  const std::size_t length = Place::length(peers_.size());
  std::memcpy(steps.begin_write(step, length, call), &place, length);
  steps.publish(step, call);
  return found;
}

std::optional<SharedBuffers> InPlace::meet(Steps& steps, const Call& call, const void* data,
                                           std::span<const std::size_t> bytes) {
  const auto own = static_cast<std::size_t>(steps.rank());
  std::vector<Place> places(bytes.size());
  const std::uint64_t step = steps.take(1);
  SharedPages::Found found = publish(steps, call, step, data, bytes[own], places[own]);
  const std::size_t length = Place::length(places.size());
  for (std::size_t peer = 0; peer < places.size(); ++peer) {
    if (peer == own) continue;
    std::memcpy(&places[peer], steps.await(static_cast<int>(peer), step, length, call), length);
  }
  steps.finish(step);

  // All ranks have the same places, so all of them decide alike.
  bool all_can = true;
  bool all_are = true;
  bool all_opened = true;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (bytes[rank] == 0) continue;
    const Place& place = places[rank];
    all_can = all_can && place.state != State::kPrivate;
    all_are = all_are && place.state == State::kShared;
    for (std::size_t reader = 0; reader < places.size(); ++reader) {
      all_opened = all_opened && (reader == rank || places[reader].opened[rank] == place.number);
    }
  }
  if (!all_are) {
    if (all_can && found.state == State::kCandidate) pages_->note(data, bytes[own]);
    found.use.finish();
    return std::nullopt;
  }
  std::string problem;
  std::optional<SharedBuffers> buffers;
  try {
    buffers = map_all(places, bytes, steps.rank(), data);
  } catch (const ConfigError& error) {
    problem = error.what();
  }
  if (all_opened && !problem.empty()) {
    steps.member().fail(steps.rank(), call, problem,
                        "raise the limit, or choose TRIREME_TENSOR_MEMORY=private");
  }
  // Where a rank has tried for the first time, they go on in place only if all have succeeded.
  if (!all_opened && !have_all(steps, call, problem.empty())) {
    is_enabled_ = false;
    found.use.finish();
    return std::nullopt;
  }
  buffers->use = std::move(found.use);
  return buffers;
}

// Maps the buffers of the other ranks. Throws ConfigError if that is not possible.
std::optional<SharedBuffers> InPlace::map_all(std::span<const Place> places,
                                              std::span<const std::size_t> bytes, int rank,
                                              const void* data) {
  SharedBuffers buffers;
  for (std::size_t peer = 0; peer < places.size(); ++peer) {
    const Place& place = places[peer];
    buffers.data.push_back(nullptr);
    if (bytes[peer] == 0) continue;
    buffers.is_whole = buffers.is_whole && place.is_whole == 1;
    if (static_cast<int>(peer) == rank) {
      buffers.data.back() = at(const_cast<void*>(data), 0);
      continue;
    }
    if (peers_[peer].number != place.number) {
      const std::string address(place.address.data(),
                                ::strnlen(place.address.data(), place.address.size()));
      peers_[peer] = {};  // gives back what is mapped of the earlier file
      peers_[peer] = {.number = place.number, .pages = PeerPages::open(address)};
    }
    buffers.windows.push_back(peers_[peer].pages->map(place.offset, bytes[peer]));
    buffers.data.back() = buffers.windows.back()->at(place.offset);
  }
  return buffers;
}

void all_reduce_in_place(Steps& steps, const Call& call, const SharedBuffers& buffers,
                         std::size_t count, DataType type, Reduction reduction) {
  if (buffers.is_whole) {
    return all_reduce_registered(steps, call, buffers.data, count, type, reduction);
  }
  const std::size_t bytes = count * size_of(type);
  std::byte* const own = buffers.data[static_cast<std::size_t>(steps.rank())];
  {
    const Edges edges(steps, call, own, bytes);
    std::vector<const void*> heads;
    std::vector<const void*> tails;
    for (std::size_t rank = 0; rank < buffers.data.size(); ++rank) {
      heads.push_back(edges.head(rank));
      tails.push_back(edges.tail(rank));
    }
    void* const head = own;
    void* const tail = own + bytes - kEdge;
    fold({&head, 1}, heads, kEdge / size_of(type), type, reduction);
    fold({&tail, 1}, tails, kEdge / size_of(type), type, reduction);
  }
  RegisteredBuffers middles = buffers.data;
  for (std::byte*& middle : middles) middle += kEdge;
  all_reduce_registered(steps, call, middles, (bytes - 2 * kEdge) / size_of(type), type, reduction);
}

void reduce_scatter_in_place(Steps& steps, const Call& call, const SharedBuffers& inputs,
                             void* output, std::span<const std::size_t> counts, DataType type,
                             Reduction reduction) {
  if (inputs.is_whole) {
    return reduce_scatter_registered(steps, call, inputs.data, output, counts, type, reduction);
  }
  const std::size_t element = size_of(type);
  std::size_t bytes = 0;
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    if (static_cast<int>(rank) == steps.rank()) begin = bytes;
    bytes += counts[rank] * element;
  }
  const std::size_t end = begin + counts[static_cast<std::size_t>(steps.rank())] * element;
  {
    const Edges edges(steps, call, inputs.data[static_cast<std::size_t>(steps.rank())], bytes);
    // Reduces the part of this rank's piece that lies between two bytes of the inputs.
    const auto reduce = [&](std::size_t first, std::size_t last, const auto& source_at) {
      first = std::max(first, begin);
      last = std::min(last, end);
      if (first >= last) return;
      std::vector<const void*> from;
      for (std::size_t rank = 0; rank < counts.size(); ++rank) {
        from.push_back(source_at(rank, first));
      }
      void* const to = at(output, first - begin);
      fold({&to, 1}, from, (last - first) / element, type, reduction);
    };
    const std::size_t tail = bytes - kEdge;
    reduce(0, kEdge, [&](std::size_t rank, std::size_t from) { return edges.head(rank) + from; });
    reduce(kEdge, tail, [&](std::size_t rank, std::size_t from) -> const std::byte* {
      return inputs.data[rank] + from;
    });
    reduce(tail, bytes,
           [&](std::size_t rank, std::size_t from) { return edges.tail(rank) + (from - tail); });
  }
  steps.synchronize(call);
}

namespace {

// Copies the buffer of a rank. `edges` is null if the whole buffer may be accessed.
void copy_buffer(void* to, const SharedBuffers& buffers, std::size_t rank, std::size_t bytes,
                 const Edges* edges) {
  if (edges == nullptr) return copy_bytes(to, buffers.data[rank], bytes);
  copy_bytes(to, edges->head(rank), kEdge);
  copy_bytes(at(to, kEdge), buffers.data[rank] + kEdge, bytes - 2 * kEdge);
  copy_bytes(at(to, bytes - kEdge), edges->tail(rank), kEdge);
}

}  // namespace

void all_gather_in_place(Steps& steps, const Call& call, const SharedBuffers& inputs,
                         std::span<void* const> outputs, std::span<const std::size_t> bytes) {
  const auto ranks = static_cast<std::size_t>(steps.size());
  const auto own = static_cast<std::size_t>(steps.rank());
  {
    std::optional<Edges> edges;
    if (!inputs.is_whole) edges.emplace(steps, call, inputs.data[own], bytes[own]);
    copy_bytes(outputs[own], inputs.data[own], bytes[own]);
    for (std::size_t offset = 1; offset < ranks; ++offset) {
      const std::size_t peer = (own + offset) % ranks;
      if (bytes[peer] == 0) continue;
      copy_buffer(outputs[peer], inputs, peer, bytes[peer], edges ? &*edges : nullptr);
    }
  }
  steps.synchronize(call);
}

void broadcast_in_place(Steps& steps, const Call& call, const SharedBuffers& buffers, void* data,
                        std::size_t bytes, int root) {
  {
    std::optional<Edges> edges;
    if (!buffers.is_whole) {
      edges.emplace(steps, call, buffers.data[static_cast<std::size_t>(steps.rank())], bytes);
    }
    if (steps.rank() != root) {
      copy_buffer(data, buffers, static_cast<std::size_t>(root), bytes, edges ? &*edges : nullptr);
    }
  }
  steps.synchronize(call);
}

}  // namespace trireme::shm
