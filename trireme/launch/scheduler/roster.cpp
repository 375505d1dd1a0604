// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/roster.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/version.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace trireme::launch {
namespace {

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

// Takes the digits at the beginning of a text, without leading zeros.
std::string_view take_number(std::string_view& text) {
  std::size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return digits;
}

// Compares names, in which digits count as numbers.
bool is_before(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a;
  const std::string_view whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view number_a = take_number(a);
      const std::string_view number_b = take_number(b);
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size();
      if (number_a != number_b) return number_a < number_b;
    } else if (a.front() != b.front()) {
      return a.front() < b.front();
    } else {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() && b.empty()) return whole_a < whole_b;  // 1 and 01 are different names
  return a.empty();
}

std::string describe_program_of(const Program& program) {
  return join_message(program.path, " (", program.bytes, " bytes, checksum ", program.checksum,
                      ")");
}

}  // namespace

std::string describe(const Hello& worker, const std::string& address) {
  std::string text = join_message("process ", worker.process, " on ", worker.host, " (", address,
                                  worker.node_id.empty() ? "" : ", node id ", worker.node_id, ")");
  if (worker.ranks > 1) text += join_message(" with ", worker.ranks, " ranks");
  return text;
}

std::optional<Refused> Roster::objection(const Hello& worker, const std::string& address) const {
  const std::string who = describe(worker, address);
  if (worker.protocol != kSchedulerProtocol || worker.version != TRIREME_VERSION) {
    return Refused{
        .reason = join_message(who, " has version ", worker.version, " of Trireme with protocol ",
                               worker.protocol, ", expected ", TRIREME_VERSION, " with protocol ",
                               kSchedulerProtocol, ", as the scheduler has"),
        .hint = "build the scheduler and all workers with one version",
        .cause = "another version of Trireme"};
  }
  if (worker.workers && *worker.workers != workers_) {
    return Refused{
        .reason = join_message(who, " expects ", *worker.workers, " workers, the scheduler has ",
                               workers_),
        .hint =
            "set TRIREME_WORKERS or MS_WORKER_NUM to the same number for the scheduler and all "
            "workers",
        .cause = "another number of workers"};
  }
  for (const Worker& other : all_) {
    if (worker.node_id.empty() || worker.node_id != other.hello.node_id) continue;
    return Refused{.reason = join_message(who, " has the node id '", worker.node_id,
                                          "', which is already that of ",
                                          describe(other.hello, other.address)),
                   .hint = "give each worker its own TRIREME_NODE_ID or MS_NODE_ID, or none",
                   .cause = "a node id that another worker has",
                   .is_for_room = true};
  }
  if (!all_.empty()) {
    const Worker& first = all_.front();
    const Program& expected = first.hello.program;
    if (worker.program.bytes != expected.bytes || worker.program.checksum != expected.checksum) {
      return Refused{.reason = join_message(who, " runs another program, ",
                                            describe_program_of(worker.program), ", than ",
                                            describe(first.hello, first.address), ", which runs ",
                                            describe_program_of(expected)),
                     .hint = "start one build of one program on all hosts",
                     .cause = "another program"};
    }
  }
  if (ranks() + worker.ranks > workers_) {
    return Refused{
        .reason = join_message(who, " came when ", ranks(), " of ", workers_,
                               " ranks were there already, and it brings ", worker.ranks,
                               "; there are:\n", describe_all()),
        .hint =
            "start as many workers as the scheduler was told (--workers, TRIREME_WORKERS or "
            "MS_WORKER_NUM), or give it another port if it belongs to another run",
        .cause = "more workers than expected",
        .is_for_room = true};
  }
  return std::nullopt;
}

void Roster::add(std::uint64_t key, Hello worker, std::string address) {
  all_.push_back({.key = key, .hello = std::move(worker), .address = std::move(address)});
}

void Roster::remove(std::uint64_t key) {
  std::erase_if(all_, [&](const Worker& worker) { return worker.key == key; });
}

int Roster::ranks() const {
  int sum = 0;
  for (const Worker& worker : all_) sum += worker.hello.ranks;
  return sum;
}

std::vector<const Roster::Worker*> Roster::in_order() const {
  std::map<std::string, std::size_t> hosts;  // the order in which hosts came
  for (const Worker& worker : all_) hosts.emplace(worker.hello.machine, hosts.size());
  std::vector<const Worker*> order;
  order.reserve(all_.size());
  for (const Worker& worker : all_) order.push_back(&worker);
  std::ranges::stable_sort(order, [&](const Worker* a, const Worker* b) {
    const std::string& name_a = a->hello.node_id;
    const std::string& name_b = b->hello.node_id;
    if (!name_a.empty() && !name_b.empty()) return is_before(name_a, name_b);
    if (name_a.empty() != name_b.empty()) return name_b.empty();
    return hosts.at(a->hello.machine) < hosts.at(b->hello.machine);
  });
  return order;
}

std::map<std::uint64_t, Assignment> Roster::assign(int store_port,
                                                   const std::string& run_id) const {
  struct Host {
    int number = 0;
    int ranks = 0;
  };
  std::map<std::string, Host> hosts;
  std::map<std::uint64_t, Assignment> places;
  const std::vector<const Worker*> order = in_order();
  int rank = 0;
  for (const Worker* const worker : order) {
    Host& host =
        hosts.emplace(worker->hello.machine, Host{.number = static_cast<int>(hosts.size())})
            .first->second;
    places[worker->key] = {.first_rank = rank,
                           .world_size = workers_,
                           .first_local_rank = host.ranks,
                           .node_rank = host.number,
                           .store_port = store_port,
                           .run_id = run_id};
    host.ranks += worker->hello.ranks;
    rank += worker->hello.ranks;
  }
  for (const Worker* const worker : order) {
    places.at(worker->key).local_world_size = hosts.at(worker->hello.machine).ranks;
    places.at(worker->key).nodes = static_cast<int>(hosts.size());
  }
  return places;
}

std::string Roster::describe_all() const {
  constexpr std::size_t kMost = 32;
  std::string text;
  for (std::size_t i = 0; i < all_.size() && i < kMost; ++i) {
    text += join_message(i == 0 ? "  " : "\n  ", describe(all_[i].hello, all_[i].address));
  }
  if (all_.size() > kMost) text += join_message("\n  and ", all_.size() - kMost, " more");
  return text.empty() ? "  none" : text;
}

}  // namespace trireme::launch
