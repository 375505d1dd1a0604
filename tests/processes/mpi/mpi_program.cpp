// SPDX-License-Identifier: Apache-2.0
// A rank that connects over MPI and then does what its argument says; mpi_test.cpp starts it.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/engine.h>
#include <trireme/comm/engines/mpi/load.h>
#include <trireme/comm/engines/mpi/mpi.h>
#include <trireme/launch/launcher_environment.h>
#include <trireme/launch/store/rendezvous.h>
#include <trireme/launch/store/store.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <tests/processes/mpi/checks.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <iostream>
#include <map>

namespace trireme::tests {

void Checks::expect(bool holds, const std::string& what) {
  ++num_checks_;
  if (holds) return;
  ++num_failures_;
  std::cout << "FAILED: " + what + "\n" << std::flush;
}

void Checks::expect_equal(const at::Tensor& got, const at::Tensor& wanted,
                          const std::string& what) {
  const bool same = got.scalar_type() == wanted.scalar_type() && at::equal(got, wanted);
  expect(same, what);
}

void Checks::expect_error(const std::function<void()>& call, const std::string& part) {
  try {
    call();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    expect(text.find(part) != std::string::npos, "an error with '" + part + "', got: " + text);
    return;
  }
  expect(false, "an error with '" + part + "', got none");
}

int Checks::report(int rank) const {
  std::cout << "rank " + std::to_string(rank) + ": " + std::to_string(num_checks_) + " checks, " +
                   std::to_string(num_failures_) + " failed\n"
            << std::flush;
  return num_failures_ == 0 ? 0 : 1;
}

namespace {

using std::chrono::milliseconds;

struct Run {
  launch::Identity identity;
  c10::intrusive_ptr<c10d::Store> store;

  comm::Group connect(const std::string& name, std::vector<int> ranks, milliseconds timeout,
                      std::vector<std::string> machines = {}) const {
    const auto own = std::ranges::find(ranks, identity.rank);
    comm::EngineContext context;
    context.store = c10::make_intrusive<c10d::PrefixStore>(name, store);
    context.rank = static_cast<int>(own - ranks.begin());
    context.size = static_cast<int>(ranks.size());
    context.group_name = name;
    context.world_ranks = std::move(ranks);
    context.timeout = timeout;
    if (machines.empty()) return comm::connect(comm::mpi_engine(), context);
    context.machines = std::move(machines);
    context.engine_across = "mpi";
    return comm::connect(comm::choose_engine("hierarchy", /*one_host=*/false), context);
  }

  comm::Group connect_all(milliseconds timeout = std::chrono::minutes(2)) const {
    std::vector<int> all;
    for (int rank = 0; rank < identity.world_size; ++rank) all.push_back(rank);
    return connect("world", all, timeout);
  }
};

Run join() {
  Run run;
  run.identity = launch::read_identity(Environment::of_process());
  run.store = launch::make_store(run.identity, 0, std::chrono::minutes(2));
  launch::rendezvous(*run.store, run.identity, launch::own_peer_info(run.identity),
                     std::chrono::minutes(2));
  return run;
}

int collectives(const Run& run) {
  const comm::Group world = run.connect_all();
  Checks checks;
  check_collectives(*world.backend(), checks);
  check_messages(*world.backend(), checks);
  check_misuse(*world.backend(), checks);
  check_asynchrony(*world.backend(), checks);
  check_pieces(world.rank(), world.size(), checks);
  return checks.report(world.rank());
}

// Overlapping groups, one of them with its ranks in another order, used at once.
int subgroups(const Run& run) {
  const comm::Group world = run.connect_all();
  const int rank = world.rank();
  const int last = world.size() - 1;
  Checks checks;
  std::vector<int> reversed;
  for (int i = last; i >= 0; --i) reversed.push_back(i);
  const comm::Group backwards = run.connect("backwards", reversed, world.timeout());
  checks.expect(backwards.rank() == last - rank, "rank in a group of another order");
  const at::Tensor all = at::full({1}, rank, at::kLong);
  comm::broadcast(all, 0, backwards);
  checks.expect(all.item<std::int64_t>() == last, "root in a group of another order");
  if (rank == 0 || rank == last) {
    const comm::Group ends = run.connect("ends", {0, last}, world.timeout());
    const at::Tensor sum = at::full({1}, rank + 1, at::kLong);
    const at::Tensor again = at::full({1}, 1, at::kLong);
    comm::Work slow = comm::all_reduce_async(sum, ends);
    comm::all_reduce(again, ends);
    slow.wait();
    checks.expect(sum.item<std::int64_t>() == last + 2, "sum over two of the ranks");
    check_messages(*ends.backend(), checks);
  }
  comm::barrier(world);
  return checks.report(rank);
}

// Every other rank on another host, as it is pretended: shared memory inside, MPI across.
int hierarchy(const Run& run) {
  std::vector<int> all;
  std::vector<std::string> machines;
  for (int rank = 0; rank < run.identity.world_size; ++rank) {
    all.push_back(rank);
    machines.emplace_back(rank % 2 == 0 ? "even" : "odd");
  }
  const comm::Group world = run.connect("two hosts", all, std::chrono::minutes(2), machines);
  Checks checks;
  checks.expect(world.engine() == "shm+mpi", "engine is shm+mpi, got " + world.engine());
  const std::int64_t size = world.size();
  for (const std::int64_t part : {1, 100'000}) {  // by one leader, and by several
    const at::Tensor own = at::arange(size * part, at::kLong).add(world.rank());
    const at::Tensor everybodys =
        at::arange(size * part, at::kLong).mul(size).add(size * (size - 1) / 2);
    const at::Tensor slice = at::arange(world.rank() * part, (world.rank() + 1) * part, at::kLong);
    at::Tensor sum = own.clone();
    comm::all_reduce(sum, world);
    checks.expect_equal(sum, everybodys, "all-reduce");
    at::Tensor scattered = at::empty({part}, at::kLong);
    comm::reduce_scatter(scattered, own, world);
    checks.expect_equal(scattered,
                        everybodys.slice(0, world.rank() * part, (world.rank() + 1) * part),
                        "reduce-scatter");
    at::Tensor gathered = at::empty({size * part}, at::kLong);
    comm::all_gather(gathered, slice, world);
    checks.expect_equal(gathered, at::arange(size * part, at::kLong), "all-gather");
    at::Tensor exchanged = at::empty({size * part}, at::kLong);
    comm::all_to_all(exchanged, slice.repeat({size}), world);
    checks.expect_equal(exchanged, at::arange(size * part, at::kLong), "all-to-all");
    at::Tensor given = own.clone();
    comm::broadcast(given, 1, world);
    checks.expect_equal(given, at::arange(size * part, at::kLong).add(1), "broadcast");
  }
  comm::barrier(world);
  return checks.report(world.rank());
}

// Rank 0 waits for a call that the others do not make, and ends.
int deadline(const Run& run) {
  const comm::Group world = run.connect_all(milliseconds(300));
  if (world.rank() != 0) {
    run.store->wait({"rank 0 has seen it"}, std::chrono::minutes(2));
    return 0;
  }
  Checks checks;
  const at::Tensor sum = at::ones({1000});
  const at::Tensor other = at::ones({1000});
  comm::Work pending = comm::all_reduce_async(other, world);
  checks.expect_error([&] { comm::all_reduce(sum, world); }, "s; MPI cannot cancel it");
  checks.expect_error([&] { pending.wait(); }, "s; MPI cannot cancel it");
  checks.expect_error([&] { comm::barrier(world); }, "the connection was given up");
  std::cout << "rank 0 goes on\n" << std::flush;
  const int code = checks.report(0);
  run.store->set("rank 0 has seen it", "");
  return code;
}

// Rank 1 sends less and more than rank 0 expects.
int wrong_size(const Run& run) {
  Checks checks;
  for (const std::int64_t count : {3, 5}) {
    const comm::Group pair =
        run.connect("of " + std::to_string(count), {0, 1}, milliseconds(60000));
    std::vector<at::Tensor> tensors = {at::ones({pair.rank() == 0 ? 4 : count}, at::kInt)};
    if (pair.rank() == 0) {
      checks.expect_error(
          [&] { pair.backend()->recv(tensors, 1, 0)->wait(); },
          count == 3 ? "rank 1 sent 12 bytes, expected 16" : "longer than the 16 bytes");
    } else {
      pair.backend()->send(tensors, 0, 0)->wait();
    }
  }
  return checks.report(run.identity.rank);
}

int family(const Run&) {
  std::cout << comm::mpi::load_module().family() << "\n";
  return 0;
}

const std::map<std::string, int (*)(const Run&)> kCases = {
    {"collectives", collectives}, {"subgroups", subgroups},   {"hierarchy", hierarchy},
    {"deadline", deadline},       {"wrong-size", wrong_size},
};

}  // namespace
}  // namespace trireme::tests

int main(int count, char** arguments) try {
  using namespace trireme::tests;  // NOLINT(google-build-using-namespace): one function
  const std::string name = count > 1 ? arguments[1] : "";
  if (name == "family") return family({});
  return kCases.at(name)(join());
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
