// SPDX-License-Identifier: Apache-2.0
// Joins its run by two connections, Gloo over all ranks and a hierarchy; checks that both give the
// same, and times an all-reduce of the given bytes over both in turn. Rank 0 prints one line.
#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/engine.h>
#include <trireme/comm/engines/hierarchy/hierarchy.h>
#include <trireme/launch/launcher_environment.h>
#include <trireme/launch/store/rendezvous.h>
#include <trireme/launch/store/store.h>

#include <ATen/Functions.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace {

using trireme::comm::Group;

void check(bool right, const char* what, const Group& group) {
  if (right) return;
  throw trireme::InternalError(
      trireme::join_message(what, " by ", group.engine(), " is wrong on rank ", group.rank()), "");
}

void check_collectives(const Group& group) {
  const int ranks = group.size();
  for (const std::int64_t size : {1, 1000, 300'001}) {
    const at::Tensor numbers = at::arange(size, at::kFloat).remainder(8);
    const at::Tensor sum = numbers.mul(group.rank() + 1);
    trireme::comm::all_reduce(sum, group);
    check(at::equal(sum, numbers.mul(ranks * (ranks + 1) / 2)), "all-reduce", group);

    const at::Tensor copy = numbers.add(group.rank());
    trireme::comm::broadcast(copy, ranks - 1, group);
    check(at::equal(copy, numbers.add(ranks - 1)), "broadcast", group);

    const at::Tensor gathered = at::empty({ranks * size});
    trireme::comm::all_gather(gathered, numbers.add(group.rank()), group);
    const at::Tensor shares = gathered.view({ranks, size});
    const at::Tensor scattered = at::empty({size});
    trireme::comm::reduce_scatter(scattered, gathered, group);
    for (int rank = 0; rank < ranks; ++rank) {
      check(at::equal(shares[rank], numbers.add(rank)), "all-gather", group);
    }
    check(at::equal(scattered, numbers.add(group.rank()).mul(ranks)), "reduce-scatter", group);
  }
  trireme::comm::barrier(group);
}

double milliseconds_of_all_reduce(const at::Tensor& tensor, const Group& group) {
  tensor.fill_(group.rank() + 1);
  trireme::comm::barrier(group);
  const auto started = std::chrono::steady_clock::now();
  trireme::comm::all_reduce(tensor, group);
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - started;
  const int sum = group.size() * (group.size() + 1) / 2;
  check(at::equal(tensor, at::full_like(tensor, sum)), "timed all-reduce", group);
  return elapsed.count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void run(std::int64_t bytes, int repeats) {
  const auto environment = trireme::Environment::of_process();
  const auto identity = trireme::launch::read_identity(environment);
  const auto settings = trireme::Settings::from(environment);
  const auto store = trireme::launch::make_store(identity, 0, settings.timeout);
  const auto all = trireme::launch::rendezvous(
      *store, identity, trireme::launch::own_peer_info(identity), settings.timeout);
  trireme::comm::EngineContext context = {
      .store = c10::make_intrusive<c10d::PrefixStore>("flat", store),
      .rank = identity.rank,
      .size = identity.world_size,
      .group_name = "flat",
      .interface = settings.interface,
      .timeout = settings.timeout};
  for (const auto& entry : all) context.machines.push_back(entry.machine);
  const Group flat =
      trireme::comm::connect(trireme::comm::choose_engine("gloo", context.is_one_host()), context);
  context.store = c10::make_intrusive<c10d::PrefixStore>("hierarchy", store);
  context.group_name = "hierarchy";
  const Group nested = trireme::comm::connect(trireme::comm::hierarchical_engine(), context);

  check_collectives(flat);
  check_collectives(nested);
  const at::Tensor tensor = at::empty({bytes / static_cast<std::int64_t>(sizeof(float))});
  std::vector<double> flat_times;
  std::vector<double> nested_times;
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    const double flat_time = milliseconds_of_all_reduce(tensor, flat);
    const double nested_time = milliseconds_of_all_reduce(tensor, nested);
    if (repeat == 0) continue;  // warms up
    flat_times.push_back(flat_time);
    nested_times.push_back(nested_time);
  }
  if (identity.rank != 0) return;
  std::cout << trireme::comm::hosts_of(context.machines).back() + 1 << " hosts, " << bytes
            << " bytes: " << flat.engine() << " " << median(flat_times) << " ms, "
            << nested.engine() << " " << median(nested_times) << " ms, ratio "
            << median(nested_times) / median(flat_times) << std::endl;
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 3) {
    std::cerr << "usage: hierarchy_program BYTES REPEATS" << std::endl;
    return 2;
  }
  run(std::stoll(arguments[1]), std::stoi(arguments[2]));
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
