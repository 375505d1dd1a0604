// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>

#include <apps/trireme/torch_module.h>
#include <apps/trireme/torch_parts.h>
#include <dlfcn.h>

#include <filesystem>

namespace trireme::apps {
namespace {

constexpr const char* kModule = "trireme_torch.so";

// Beside the program in a build, in the library folder where it is installed.
std::filesystem::path module_path() {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto beside = folder / kModule;
  return std::filesystem::exists(beside) ? beside : folder / TRIREME_MODULE_FOLDER / kModule;
}

// Never closed: LibTorch does not survive being unloaded.
template <typename Function>
Function* load(const char* name) {
  const auto path = module_path();
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const found = module == nullptr ? nullptr : ::dlsym(module, name);
  if (found == nullptr) {
    throw ConfigError(join_message("cannot load ", path.string(), ": ", ::dlerror()),
                      "LibTorch has moved or changed since this was built, or the installation is "
                      "not complete: build "
                      "and install Trireme again");
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

launch::StoreHost store_host() {
  return [](UniqueFd listening_socket, int port) {
    launch::ExitObserver observer;
    load<decltype(trireme_host_store)>("trireme_host_store")(listening_socket, port, observer);
    return observer;
  };
}

int doctor(bool as_rank) { return load<decltype(trireme_doctor)>("trireme_doctor")(as_rank); }

void time_collective(const CommBenchmark& benchmark) {
  load<decltype(trireme_bench_comm)>("trireme_bench_comm")(benchmark);
}

int checkpoint_task(const CheckpointTask& task) {
  return load<decltype(trireme_checkpoint_task)>("trireme_checkpoint_task")(task);
}

}  // namespace trireme::apps
