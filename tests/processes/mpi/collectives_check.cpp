// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <tests/processes/mpi/checks.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace trireme::tests {
namespace {

using c10d::ReduceOp;
using Tensors = std::vector<at::Tensor>;

constexpr at::ScalarType kTypes[] = {
    at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kChar,         at::kShort,
    at::kInt,    at::kLong,  at::kByte, at::kBool,     at::kComplexFloat, at::kComplexDouble};

// Small whole numbers, different on every rank and for every `salt`: exact in every dtype.
at::Tensor numbers(at::IntArrayRef sizes, at::ScalarType type, std::int64_t rank,
                   std::int64_t salt = 0) {
  const auto count = c10::multiply_integers(sizes);
  at::Tensor values = ((at::arange(count, at::kLong) * 7 + rank * 3 + salt) % 5);
  if (type == at::kBool) return (values % 2).to(type).reshape(sizes);
  values = (values + 1).to(type);
  if (at::isComplexType(type)) values = values * c10::complex<double>(1, 2);
  return values.to(type).reshape(sizes);
}

Tensors of_all_ranks(at::IntArrayRef sizes, at::ScalarType type, std::int64_t size,
                     std::int64_t salt = 0) {
  Tensors all;
  for (int rank = 0; rank < size; ++rank) all.push_back(numbers(sizes, type, rank, salt));
  return all;
}

// The reduction in a type where every step is exact, rounded once.
at::Tensor reference(const Tensors& all, ReduceOp::RedOpType op) {
  const at::ScalarType type = all.front().scalar_type();
  const at::ScalarType wide = at::isComplexType(type)    ? at::kComplexDouble
                              : at::isFloatingType(type) ? at::kDouble
                              : type == at::kBool        ? at::kBool
                                                         : at::kLong;
  at::Tensor result = all.front().to(wide);
  for (std::size_t i = 1; i < all.size(); ++i) {
    const at::Tensor next = all[i].to(wide);
    if (op == ReduceOp::SUM || op == ReduceOp::AVG || op == ReduceOp::PREMUL_SUM) {
      result = result + next;
    } else if (op == ReduceOp::PRODUCT) {
      result = result * next;
    } else if (op == ReduceOp::MIN) {
      result = at::minimum(result, next);
    } else if (op == ReduceOp::MAX) {
      result = at::maximum(result, next);
    } else if (op == ReduceOp::BAND) {
      result = at::bitwise_and(result, next);
    } else if (op == ReduceOp::BOR) {
      result = at::bitwise_or(result, next);
    } else {
      result = at::bitwise_xor(result, next);
    }
  }
  const auto size = static_cast<std::int64_t>(all.size());
  if (op == ReduceOp::AVG) {
    result = at::isIntegralType(wide, false) ? at::div(result, size, "trunc") : result / size;
  }
  if (op == ReduceOp::PREMUL_SUM) result = result * 0.5;
  return result.to(type);
}

std::vector<ReduceOp> reductions_of(at::ScalarType type) {
  std::vector<ReduceOp> ops = {ReduceOp::SUM, ReduceOp::PRODUCT};
  const bool is_whole = at::isIntegralType(type, true);
  if (type != at::kBool) ops.emplace_back(ReduceOp::AVG);
  if (!at::isComplexType(type)) ops.insert(ops.end(), {ReduceOp::MIN, ReduceOp::MAX});
  if (is_whole) ops.insert(ops.end(), {ReduceOp::BAND, ReduceOp::BOR, ReduceOp::BXOR});
  if (!is_whole) ops.push_back(c10d::makePreMulSum(0.5));
  return ops;
}

std::string describe(const char* operation, at::ScalarType type, const ReduceOp& op) {
  return std::string(operation) + " " + c10::toString(type) + " op " + std::to_string(op.op_);
}

void check_reductions(c10d::Backend& ranks, Checks& checks) {
  const std::int64_t rank = ranks.getRank();
  const std::int64_t size = ranks.getSize();
  const auto root = size - 1;
  for (const at::ScalarType type : kTypes) {
    for (const ReduceOp& op : reductions_of(type)) {
      for (const std::int64_t count : {0, 1, 37, 5000}) {
        const at::Tensor wanted = reference(of_all_ranks({count}, type, size), op);
        Tensors tensors = {numbers({count}, type, rank)};
        ranks.allreduce(tensors, {.reduceOp = op})->wait();
        checks.expect_equal(tensors[0], wanted, describe("all_reduce", type, op));

        tensors = {numbers({count}, type, rank)};
        ranks.reduce(tensors, {.reduceOp = op, .rootRank = root})->wait();
        checks.expect_equal(tensors[0], rank == root ? wanted : numbers({count}, type, rank),
                            describe("reduce", type, op));

        at::Tensor input = numbers({count * size}, type, rank);
        at::Tensor output = at::empty({count}, input.options());
        ranks._reduce_scatter_base(output, input, {.reduceOp = op})->wait();
        const at::Tensor whole = reference(of_all_ranks({count * size}, type, size), op);
        checks.expect_equal(output, whole.narrow(0, rank * count, count),
                            describe("reduce_scatter", type, op));
        checks.expect_equal(input, numbers({count * size}, type, rank), "its input is as before");
      }
    }
  }
}

// Two tensors of two dtypes would need two calls: one dtype here.
void check_coalesced(c10d::Backend& ranks, Checks& checks) {
  const std::int64_t rank = ranks.getRank();
  const std::int64_t size = ranks.getSize();
  Tensors tensors = {numbers({3, 4}, at::kBFloat16, rank), numbers({5}, at::kBFloat16, rank, 1)};
  c10d::AllreduceCoalescedOptions options;
  options.reduceOp = ReduceOp::AVG;
  ranks.allreduce_coalesced(tensors, options)->wait();
  checks.expect_equal(tensors[0],
                      reference(of_all_ranks({3, 4}, at::kBFloat16, size), ReduceOp::AVG),
                      "all_reduce_coalesced first");
  checks.expect_equal(tensors[1],
                      reference(of_all_ranks({5}, at::kBFloat16, size, 1), ReduceOp::AVG),
                      "all_reduce_coalesced second");

  Tensors inputs = {numbers({2, 3}, at::kFloat, rank), numbers({4}, at::kInt, rank, 1)};
  Tensors outputs = {at::empty({2 * size, 3}, at::kFloat), at::empty({4 * size}, at::kInt)};
  ranks.allgather_into_tensor_coalesced(outputs, inputs, {})->wait();
  checks.expect_equal(outputs[0], at::cat(of_all_ranks({2, 3}, at::kFloat, size)),
                      "all_gather_coalesced first");
  checks.expect_equal(outputs[1], at::cat(of_all_ranks({4}, at::kInt, size, 1)),
                      "all_gather_coalesced second");

  std::vector<Tensors> lists;
  for (std::int64_t from = 0; from < size; ++from) {
    lists.push_back({at::empty({2, 3}, at::kFloat), at::empty({4}, at::kInt)});
  }
  ranks.allgather_coalesced(lists, inputs, {})->wait();
  for (std::int64_t from = 0; from < size; ++from) {
    const auto& list = lists[static_cast<std::size_t>(from)];
    checks.expect_equal(list[0], numbers({2, 3}, at::kFloat, from), "all_gather_coalesced list");
    checks.expect_equal(list[1], numbers({4}, at::kInt, from, 1), "all_gather_coalesced list");
  }

  Tensors wholes = {numbers({2 * size}, at::kFloat, rank), numbers({size}, at::kLong, rank, 1)};
  Tensors parts = {at::empty({2}, at::kFloat), at::empty({1}, at::kLong)};
  ranks.reduce_scatter_tensor_coalesced(parts, wholes, {})->wait();
  checks.expect_equal(
      parts[0],
      reference(of_all_ranks({2 * size}, at::kFloat, size), ReduceOp::SUM).narrow(0, rank * 2, 2),
      "reduce_scatter_coalesced first");
  checks.expect_equal(
      parts[1],
      reference(of_all_ranks({size}, at::kLong, size, 1), ReduceOp::SUM).narrow(0, rank, 1),
      "reduce_scatter_coalesced second");
}

void check_moves(c10d::Backend& ranks, Checks& checks) {
  const std::int64_t rank = ranks.getRank();
  const std::int64_t size = ranks.getSize();
  for (const at::ScalarType type : kTypes) {
    const std::string name = c10::toString(type);
    for (const std::int64_t count : {0, 1, 1000}) {
      const Tensors all = of_all_ranks({count}, type, size);
      for (std::int64_t root = 0; root < size; ++root) {
        Tensors tensors = {numbers({count}, type, rank)};
        ranks.broadcast(tensors, {.rootRank = root})->wait();
        checks.expect_equal(tensors[0], all[static_cast<std::size_t>(root)], "broadcast " + name);

        std::vector<Tensors> gathered;
        if (rank == root) gathered = {of_all_ranks({count}, type, size, 1)};
        Tensors inputs = {numbers({count}, type, rank)};
        ranks.gather(gathered, inputs, {.rootRank = root})->wait();
        if (rank == root) checks.expect_equal(at::cat(gathered[0]), at::cat(all), "gather " + name);

        std::vector<Tensors> to_scatter;
        if (rank == root) to_scatter = {all};
        Tensors outputs = {at::empty({count}, type)};
        ranks.scatter(outputs, to_scatter, {.rootRank = root})->wait();
        checks.expect_equal(outputs[0], all[static_cast<std::size_t>(rank)], "scatter " + name);
      }
      at::Tensor input = numbers({count}, type, rank);
      at::Tensor output = at::empty({count * size}, type);
      ranks._allgather_base(output, input, {})->wait();
      checks.expect_equal(output, at::cat(all), "all_gather " + name);
    }
  }
}

// Rank r has r + 1 rows.
void check_uneven(c10d::Backend& ranks, Checks& checks) {
  const std::int64_t rank = ranks.getRank();
  const std::int64_t size = ranks.getSize();
  Tensors inputs = {numbers({rank + 1, 3}, at::kFloat, rank)};
  std::vector<Tensors> outputs(1);
  std::vector<Tensors> to_reduce(1);
  for (std::int64_t from = 0; from < size; ++from) {
    outputs[0].push_back(at::empty({from + 1, 3}, at::kFloat));
    to_reduce[0].push_back(numbers({from + 1, 2}, at::kDouble, rank, from));
  }
  ranks.allgather(outputs, inputs, {})->wait();
  for (std::int64_t from = 0; from < size; ++from) {
    checks.expect_equal(outputs[0][static_cast<std::size_t>(from)],
                        numbers({from + 1, 3}, at::kFloat, from), "all_gather, uneven");
  }
  Tensors reduced = {at::empty({rank + 1, 2}, at::kDouble)};
  ranks.reduce_scatter(reduced, to_reduce, {})->wait();
  checks.expect_equal(
      reduced[0], reference(of_all_ranks({rank + 1, 2}, at::kDouble, size, rank), ReduceOp::SUM),
      "reduce_scatter, uneven");
}

// Rank r sends (r + to) % 3 rows of two numbers to rank `to`; some send nothing.
void check_all_to_all(c10d::Backend& ranks, Checks& checks) {
  const std::int64_t rank = ranks.getRank();
  const std::int64_t size = ranks.getSize();
  const auto rows = [](std::int64_t from, std::int64_t to) { return (from + to) % 3; };
  std::vector<std::int64_t> in_splits;
  std::vector<std::int64_t> out_splits;
  Tensors inputs;
  Tensors outputs;
  Tensors wanted;
  for (std::int64_t peer = 0; peer < size; ++peer) {
    in_splits.push_back(rows(rank, peer));
    out_splits.push_back(rows(peer, rank));
    inputs.push_back(numbers({rows(rank, peer), 2}, at::kShort, rank, peer));
    outputs.push_back(at::empty({rows(peer, rank), 2}, at::kShort));
    wanted.push_back(numbers({rows(peer, rank), 2}, at::kShort, peer, rank));
  }
  at::Tensor input = at::cat(inputs);
  at::Tensor output = at::empty(at::cat(wanted).sizes(), at::kShort);
  ranks.alltoall_base(output, input, out_splits, in_splits, {})->wait();
  checks.expect_equal(output, at::cat(wanted), "all_to_all with splits");
  ranks.alltoall(outputs, inputs, {})->wait();
  checks.expect_equal(at::cat(outputs), at::cat(wanted), "all_to_all with lists");

  std::vector<std::int64_t> none;
  at::Tensor even = numbers({2 * size}, at::kLong, rank);
  at::Tensor received = at::empty({2 * size}, at::kLong);
  ranks.alltoall_base(received, even, none, none, {})->wait();
  for (std::int64_t from = 0; from < size; ++from) {
    checks.expect_equal(received.narrow(0, 2 * from, 2),
                        numbers({2 * size}, at::kLong, from).narrow(0, 2 * rank, 2),
                        "all_to_all, even");
  }
}

void check_strides(c10d::Backend& ranks, Checks& checks) {
  const std::int64_t rank = ranks.getRank();
  const std::int64_t size = ranks.getSize();
  const auto transposed = [](std::int64_t of) { return numbers({6, 4}, at::kFloat, of).t(); };
  at::Tensor wanted = transposed(0).to(at::kDouble);
  for (std::int64_t other = 1; other < size; ++other) wanted = wanted + transposed(other);
  // Rank 0 has it permuted, the others not: what counts is the index, not the place in memory.
  Tensors tensors = {rank == 0 ? transposed(rank) : transposed(rank).contiguous()};
  ranks.allreduce(tensors, {})->wait();
  checks.expect_equal(tensors[0], wanted.to(at::kFloat), "all_reduce of a transposed tensor");

  const at::Tensor whole = at::zeros({8}, at::kInt);
  Tensors every_other = {whole.slice(0, 0, 8, 2)};
  every_other[0].copy_(numbers({4}, at::kInt, rank));
  ranks.broadcast(every_other, {.rootRank = 0})->wait();
  checks.expect_equal(every_other[0], numbers({4}, at::kInt, 0), "broadcast with gaps");
  checks.expect(whole.slice(0, 1, 8, 2).eq(0).all().item<bool>(), "the gaps are as before");

  at::Tensor output = at::empty({4, 3 * size}, at::kFloat).t();
  at::Tensor input = numbers({4, 3}, at::kFloat, rank).t();
  ranks._allgather_base(output, input, {})->wait();
  Tensors parts;
  for (std::int64_t from = 0; from < size; ++from)
    parts.push_back(numbers({4, 3}, at::kFloat, from).t());
  checks.expect_equal(output, at::cat(parts), "all_gather of transposed tensors");
}

}  // namespace

void check_collectives(c10d::Backend& backend, Checks& checks) {
  check_reductions(backend, checks);
  check_coalesced(backend, checks);
  check_moves(backend, checks);
  check_uneven(backend, checks);
  check_all_to_all(backend, checks);
  check_strides(backend, checks);
  backend.barrier({})->wait();
}

void check_messages(c10d::Backend& ranks, Checks& checks) {
  const int rank = ranks.getRank();
  const int size = ranks.getSize();
  // Round the ring, two tags in the wrong order.
  const int next = (rank + 1) % size;
  const int before = (rank + size - 1) % size;
  Tensors first = {numbers({100}, at::kHalf, rank)};
  Tensors second = {numbers({6, 4}, at::kLong, rank).t()};
  Tensors got_first = {at::empty({100}, at::kHalf)};
  Tensors got_second = {at::empty({4, 6}, at::kLong)};
  const auto receive_second = ranks.recv(got_second, before, 8);
  const auto receive_first = ranks.recv(got_first, before, 7);
  const auto send_first = ranks.send(first, next, 7);
  const auto send_second = ranks.send(second, next, 8);
  for (const auto& work : {send_second, receive_first, send_first, receive_second}) work->wait();
  checks.expect_equal(got_first[0], numbers({100}, at::kHalf, before), "message with tag 7");
  checks.expect_equal(got_second[0], numbers({6, 4}, at::kLong, before).t(), "message with tag 8");

  // Everybody writes to rank 0, which takes them as they come.
  if (rank != 0) {
    Tensors greeting = {numbers({3}, at::kInt, rank)};
    ranks.send(greeting, 0, 1)->wait();
    return;
  }
  std::vector<bool> came(static_cast<std::size_t>(size), false);
  for (int i = 1; i < size; ++i) {
    Tensors greeting = {at::empty({3}, at::kInt)};
    const auto work = ranks.recvAnysource(greeting, 1);
    work->wait();
    came[static_cast<std::size_t>(work->sourceRank())] = true;
    checks.expect_equal(greeting[0], numbers({3}, at::kInt, work->sourceRank()), "any source");
  }
  checks.expect(std::ranges::count(came, true) == size - 1, "every rank's greeting came");
}

void check_misuse(c10d::Backend& ranks, Checks& checks) {
  const std::int64_t size = ranks.getSize();
  const std::uint64_t number = ranks.getSequenceNumberForGroup();
  Tensors one = {at::ones({2}, at::kFloat)};
  Tensors two = {one[0], one[0]};
  Tensors flag = {at::ones({2}, at::kBool)};
  Tensors complex = {at::ones({2}, at::kComplexFloat)};
  Tensors shared = {at::ones({1}).expand({4})};
  Tensors sparse = {at::ones({2}).to_sparse()};
  Tensors undefined = {at::Tensor()};
  checks.expect_error([&] { ranks.allreduce(two, {}); }, "given 2 tensors, expected 1");
  checks.expect_error([&] { ranks.allreduce(undefined, {}); }, "undefined tensor");
  checks.expect_error([&] { ranks.allreduce(sparse, {}); }, "expected a dense one in CPU memory");
  checks.expect_error([&] { ranks.allreduce(shared, {}); }, "elements share memory");
  checks.expect_error([&] { ranks.allreduce(one, {.reduceOp = ReduceOp::BXOR}); },
                      "bitwise xor is not defined for Float");
  checks.expect_error([&] { ranks.allreduce(flag, {.reduceOp = ReduceOp::AVG}); },
                      "average is not defined for Bool");
  checks.expect_error([&] { ranks.allreduce(complex, {.reduceOp = ReduceOp::MAX}); },
                      "maximum is not defined for ComplexFloat");
  checks.expect_error([&] { ranks.broadcast(one, {.rootRank = size}); },
                      "the root is " + std::to_string(size) + ", expected a rank from 0 to");
  checks.expect_error([&] { ranks.send(one, -1, 0); }, "the receiver is -1, expected a rank");
  const int next = (ranks.getRank() + 1) % ranks.getSize();
  checks.expect_error([&] { ranks.send(one, next, -5); }, "given tag -5, expected one from 0 to");
  checks.expect_error([&] { ranks._allgather_base(one[0], one[0], {}); },
                      "the output has 2 elements, expected " + std::to_string(2 * size));
  at::Tensor other = at::ones({2 * size}, at::kDouble);
  checks.expect_error([&] { ranks._allgather_base(other, one[0], {}); },
                      "given dtypes Double and Float, expected one");
  std::vector<Tensors> short_list = {{one[0]}};
  checks.expect_error([&] { ranks.allgather(short_list, one, {}); },
                      "given 1 tensors for " + std::to_string(size) + " ranks");
  std::vector<std::int64_t> splits(static_cast<std::size_t>(size), 1);
  std::vector<std::int64_t> none;
  at::Tensor input = at::ones({2 * size});
  at::Tensor output = at::empty({2 * size});
  checks.expect_error([&] { ranks.alltoall_base(output, input, none, splits, {}); },
                      "the input has " + std::to_string(2 * size) + " rows for");
  checks.expect(ranks.getSequenceNumberForGroup() == number, "misuse does not count");
}

void check_asynchrony(c10d::Backend& ranks, Checks& checks) {
  const int rank = ranks.getRank();
  const int size = ranks.getSize();
  std::vector<Tensors> tensors;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (std::int64_t i = 0; i < 20; ++i) {
    tensors.push_back({numbers({1 + 4000 * i}, at::kFloat, rank, i)});
    works.push_back(ranks.allreduce(tensors.back(), {}));
    checks.expect(works.back()->getSequencenumber() == ranks.getSequenceNumberForGroup(),
                  "sequence number");
  }
  // The last is never waited for: our thread, or polling, must bring it to its end.
  auto future = works.back()->getFuture();
  future->wait();
  checks.expect(works.back()->isCompleted() && works.back()->isSuccess(), "future is last");
  while (!works.front()->isCompleted()) {
  }
  for (std::int64_t i = 19; i >= 0; --i) {
    const auto index = static_cast<std::size_t>(i);
    works[index]->wait(std::chrono::seconds(60));
    checks.expect_equal(tensors[index][0],
                        reference(of_all_ranks({1 + 4000 * i}, at::kFloat, size, i), ReduceOp::SUM),
                        "in flight");
  }
  checks.expect_equal(future->value().toTensorVector()[0], tensors.back()[0], "future's value");
  checks.expect(works.front()->getFuture()->completed(), "future asked for afterwards");
  checks.expect(works.front()->result()[0].is_same(tensors.front()[0]), "result");

  ranks.startCoalescing();
  ranks.allreduce(tensors[0], {.reduceOp = ReduceOp::MAX});
  ranks.allreduce(tensors[1], {.reduceOp = ReduceOp::MAX});
  const auto both = ranks.endCoalescing();
  both->wait();
  checks.expect(both->result().size() == 2 && both->result()[1].is_same(tensors[1][0]),
                "coalesced results");

  // A dropped handle leaves the operation running; a callback may start the next.
  Tensors chained = {at::ones({1}, at::kInt)};
  auto done = ranks.allreduce(chained, {})
                  ->getFuture()
                  ->then(
                      [&](c10::ivalue::Future&) {
                        ranks.allreduce(chained, {})->wait();
                        return c10::IValue(1);
                      },
                      c10::IntType::get());
  done->wait();
  checks.expect_equal(chained[0], at::full({1}, size * size, at::kInt), "chained operations");
}

}  // namespace trireme::tests
