// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/mpi/load.h>

#include <tests/processes/mpi/checks.h>

#include <numeric>
#include <string>
#include <vector>

namespace trireme::tests {
namespace {

using comm::mpi::Bytes;
using comm::mpi::Communicator;
using comm::mpi::Element;
using comm::mpi::Fold;
using comm::mpi::Request;
using Numbers = std::vector<std::int32_t>;

// More than one call may move, and no multiple of it.
constexpr std::int64_t kLimit = 64;
constexpr std::int64_t kCount = 333;

Numbers numbers(std::int64_t count, int rank) {
  Numbers values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 1000 * rank);
  return values;
}

Numbers sums(std::int64_t count, int size) {
  Numbers total(static_cast<std::size_t>(count), 0);
  for (int rank = 0; rank < size; ++rank) {
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += numbers(count, rank)[i];
  }
  return total;
}

Numbers part(const Numbers& all, std::int64_t from, std::int64_t count) {
  return {all.begin() + from, all.begin() + from + count};
}

Bytes bytes_of(Numbers& values) {
  return {values.data(), static_cast<std::int64_t>(values.size() * sizeof(values[0]))};
}

Numbers joined(int size, std::int64_t (*count_of)(int rank)) {
  Numbers all;
  for (int rank = 0; rank < size; ++rank) {
    const Numbers more = numbers(count_of(rank), rank);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

void finish(const std::unique_ptr<Request>& request) {
  while (!request->test()) {
  }
}

void check_folds(Communicator& ranks, int rank, int size, Checks& checks) {
  Numbers data = numbers(kCount, rank);
  finish(ranks.all_reduce(data.data(), kCount, Element::kInt32, Fold::kSum));
  checks.expect(data == sums(kCount, size), "all_reduce in pieces");

  data = numbers(kCount, rank);
  Numbers folded(data.size());
  finish(ranks.reduce(data.data(), folded.data(), kCount, Element::kInt32, Fold::kSum, size - 1));
  if (rank == size - 1) checks.expect(folded == sums(kCount, size), "reduce in pieces");
  finish(ranks.reduce(data.data(), data.data(), kCount, Element::kInt32, Fold::kSum, 0));
  if (rank == 0) checks.expect(data == sums(kCount, size), "reduce in place in pieces");

  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), kCount);
  Numbers whole = numbers(kCount * size, rank);
  Numbers own(static_cast<std::size_t>(kCount));
  finish(ranks.reduce_scatter(whole.data(), own.data(), counts, Element::kInt32, Fold::kSum));
  checks.expect(own == part(sums(kCount * size, size), rank * kCount, kCount),
                "reduce_scatter in pieces");
}

void check_moves(Communicator& ranks, int rank, int size, Checks& checks) {
  const auto even = [](int) { return kCount; };
  const auto uneven = [](int of) { return kCount + of; };
  Numbers data = numbers(kCount, rank);
  finish(ranks.broadcast(bytes_of(data), size - 1));
  checks.expect(data == numbers(kCount, size - 1), "broadcast in pieces");

  for (const auto& count_of : {+even, +uneven}) {
    data = numbers(count_of(rank), rank);
    const Numbers wanted = joined(size, count_of);
    Numbers all(wanted.size());
    std::vector<std::int64_t> sizes;
    for (int from = 0; from < size; ++from) sizes.push_back(count_of(from) * 4);
    finish(ranks.all_gather(data.data(), all.data(), sizes));
    checks.expect(all == wanted, "all_gather in pieces");
  }

  data = numbers(kCount, rank);
  Numbers all(rank == 0 ? static_cast<std::size_t>(kCount * size) : 0);
  finish(ranks.gather(bytes_of(data), all.data(), 0));
  if (rank == 0) checks.expect(all == joined(size, even), "gather in pieces");
  std::fill(data.begin(), data.end(), 0);
  finish(ranks.scatter(all.data(), bytes_of(data), 0));
  checks.expect(data == numbers(kCount, rank), "scatter in pieces");

  Numbers outgoing = numbers(kCount * size, rank);
  Numbers incoming(outgoing.size());
  std::vector<Bytes> in;
  std::vector<Bytes> out;
  for (int peer = 0; peer < size; ++peer) {
    in.push_back({outgoing.data() + peer * kCount, kCount * 4});
    out.push_back({incoming.data() + peer * kCount, kCount * 4});
  }
  finish(ranks.all_to_all(in, out));
  for (int from = 0; from < size; ++from) {
    checks.expect(part(incoming, from * kCount, kCount) ==
                      part(numbers(kCount * size, from), rank * kCount, kCount),
                  "all_to_all in pieces");
  }
}

}  // namespace

void check_pieces(int rank, int size, Checks& checks) {
  comm::mpi::Module& module = comm::mpi::load_module();
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  // Our thread sleeps: no operation of the backend's is under way.
  const auto ranks = module.connect(all, kLimit);
  check_folds(*ranks, rank, size, checks);
  check_moves(*ranks, rank, size, checks);
  finish(ranks->barrier());
}

}  // namespace trireme::tests
