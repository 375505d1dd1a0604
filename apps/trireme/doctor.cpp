// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/doctor.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/machine.h>
#include <trireme/base/text.h>
#include <trireme/comm/collectives.h>
#include <trireme/comm/engine.h>
#include <trireme/comm/tensor_memory.h>
#include <trireme/comm/torch_version.h>
#include <trireme/comm/world.h>
#include <trireme/version.h>

#include <ATen/ops/ones.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <set>
#include <thread>

namespace trireme::apps {
namespace {

struct Finding {
  bool is_good = true;
  std::string name;
  std::string text;
  std::string remedy;  // Only if it is not good.
};

std::string gibibytes(std::int64_t bytes) {
  TextWriter text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / (1LL << 30) << " GiB";
  return text.str();
}

Finding look_at_torch() {
  Finding finding{.name = "LibTorch", .text = comm::loaded_torch_version(), .remedy = ""};
  try {
    comm::check_torch_version();
  } catch (const ConfigError& error) {
    finding.is_good = false;
    finding.text = error.what();
    finding.remedy = "build Trireme again: make build";
  }
  return finding;
}

std::vector<Finding> look_at_engines() {
  std::vector<Finding> findings;
  for (const comm::Engine& engine : comm::engines()) {
    const std::string reason = engine.unavailable_because();
    // A missing engine is no problem as long as there are others; a run that asks for it is told
    // so.
    findings.push_back({.name = join_message("engine ", engine.name),
                        .text = reason.empty() ? "ready" : join_message("not here: ", reason),
                        .remedy = ""});
  }
  return findings;
}

Finding look_at_cores() {
  return {.name = "cores",
          .text = join_message(available_cores(), " for this process, of ",
                               std::thread::hardware_concurrency(), " in the machine"),
          .remedy = ""};
}

Finding look_at_memory() {
  return {
      .name = "memory", .text = gibibytes(available_memory()) + " for this process", .remedy = ""};
}

// Reports the decision that init() will make in this environment.
Finding look_at_tensor_memory() {
  Finding finding{.name = "tensor memory", .text = "", .remedy = ""};
  try {
    const std::string asked = Settings::from(Environment::of_process()).tensor_memory;
    const comm::TensorMemory memory = comm::choose_tensor_memory(asked);
    finding.text = memory.is_pool ? "a pool" : "LibTorch's own: " + memory.reason;
    if (memory.is_pool && !comm::shared_tensor_pages()) finding.text += " of private memory";
  } catch (const ConfigError& error) {
    finding.is_good = false;
    finding.text = error.what();
    finding.remedy = "correct TRIREME_TENSOR_MEMORY, or unset it";
  }
  return finding;
}

Finding look_at_shared_memory() {
  constexpr std::int64_t kEnough = 1LL << 30;
  // Collectives within a host use /dev/shm; containers often limit it to 64 MiB.
  const auto free = free_shared_memory();
  if (!free) {
    return {.is_good = false,
            .name = "shared memory",
            .text = "/dev/shm is not mounted",
            .remedy = "mount -t tmpfs tmpfs /dev/shm; in a container: --shm-size=8g"};
  }
  return {.is_good = *free >= kEnough,
          .name = "shared memory",
          .text = gibibytes(*free) + " free in /dev/shm",
          .remedy =
              "1 GiB or more is wanted: mount -o remount,size=8G /dev/shm; in a container: "
              "--shm-size=8g"};
}

std::string interface_names() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return "none";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, ::freeifaddrs);
  std::set<std::string> names;
  for (const ifaddrs* entry = all.get(); entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) != 0) names.insert(entry->ifa_name);
  }
  return list_text(names);
}

Finding look_at_network() {
  addrinfo* first = nullptr;
  const std::string name = host_name();
  const int failure = ::getaddrinfo(name.c_str(), nullptr, nullptr, &first);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(failure == 0 ? first : nullptr,
                                                                 ::freeaddrinfo);
  const std::string interfaces = "interfaces " + interface_names();
  if (failure == 0)
    return {.name = "network", .text = "host name resolves; " + interfaces, .remedy = ""};
  return {.is_good = false,
          .name = "network",
          .text = join_message("the host name '", name, "' does not resolve (",
                               ::gai_strerror(failure), "); ", interfaces),
          .remedy =
              "add a line '127.0.1.1 " + name + "' to /etc/hosts; one host alone works without it"};
}

// Runs this program twice under its own launcher, as `doctor --as-rank`.
Finding try_two_processes() {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string quoted = "'" + self + "'";
  const std::string command =
      quoted + " run -n 2 --timeout 60 -- " + quoted + " doctor --as-rank 2>&1";
  const auto start = std::chrono::steady_clock::now();
  std::string output;
  // Uses the real launcher, so that the test includes the store, the engine and the environment.
  std::FILE* const pipe =
      ::popen(command.c_str(), "re");  // NOLINT(bugprone-command-processor): our own words
  if (pipe == nullptr)
    throw ConfigError("cannot start a process: " + describe_errno(errno),
                      "free memory or processes");
  std::array<char, 512> chunk{};
  while (std::fgets(chunk.data(), chunk.size(), pipe) != nullptr) output += chunk.data();
  const bool is_good = ::pclose(pipe) == 0;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  TextWriter text;
  text << "two ranks met and added in " << std::setprecision(2) << elapsed.count() << " s";
  return {.is_good = is_good,
          .name = "two processes",
          .text = is_good ? text.str() : "two ranks could not meet and add:\n" + output,
          .remedy = "the lines above say where it stopped"};
}

}  // namespace

void act_as_rank() {
  const World world = init();
  const at::Tensor sum = at::ones({1});
  comm::all_reduce(sum, world.group);
  if (world.size != 2 || sum.item<float>() != 2) {
    throw InternalError(join_message("rank ", world.rank, " of ", world.size, " got ",
                                     sum.item<float>(), ", expected 2"),
                        "please report this");
  }
}

int examine() {
  std::vector<Finding> findings = {look_at_torch()};
  for (Finding& finding : look_at_engines()) findings.push_back(std::move(finding));
  for (const auto& look : {look_at_cores, look_at_memory, look_at_tensor_memory,
                           look_at_shared_memory, look_at_network, try_two_processes}) {
    findings.push_back(look());
  }
  int num_bad = 0;
  std::cout << "trireme " TRIREME_VERSION "\n";
  for (const Finding& finding : findings) {
    std::cout << (finding.is_good ? "  ok    " : "  BAD   ") << std::left << std::setw(18)
              << finding.name << finding.text << '\n';
    if (finding.is_good) continue;
    ++num_bad;
    std::cout << "        -> " << finding.remedy << '\n';
  }
  std::cout << (num_bad == 0 ? "everything is in order\n" : join_message(num_bad, " to fix\n"));
  return num_bad == 0 ? 0 : 1;
}

}  // namespace trireme::apps
