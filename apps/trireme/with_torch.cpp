// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/environment.h>
#include <trireme/base/error.h>

#include <apps/trireme/torch_module.h>
#include <apps/trireme/torch_parts.h>
#include <dlfcn.h>

#include <filesystem>
#include <string>

namespace trireme::apps {
namespace {

constexpr const char* kModule = "trireme_torch.so";

// Returns the path of the shared object: next to the program in a build, in the library folder of
// an installation.
std::filesystem::path module_path() {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto beside = folder / kModule;
  return std::filesystem::exists(beside) ? beside : folder / TRIREME_MODULE_FOLDER / kModule;
}

// Loads LibTorch from TRIREME_TORCH_DIR if it is set, because LibTorch may have moved since the
// build. The variable has the same meaning as for the build: the folder with lib/libtorch.so, or
// its CMake prefix (share/cmake). A library that was loaded by path satisfies the shared object's
// dependency by name. Returns an error message, or an empty string.
std::string load_torch_of_environment() {
  const auto given = Environment::of_process().find("TRIREME_TORCH_DIR");
  if (!given) return {};
  for (const char* const up : {".", "../.."}) {
    const auto folder = std::filesystem::path(*given) / up / "lib";
    if (!std::filesystem::exists(folder / "libtorch.so")) continue;
    for (const char* const library : {"libc10.so", "libtorch_cpu.so", "libtorch.so"}) {
      if (::dlopen((folder / library).c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
        return ::dlerror();
    }
    return {};
  }
  return join_message("TRIREME_TORCH_DIR=", *given, " has no lib/libtorch.so");
}

// The shared object is never closed, because LibTorch does not survive unloading.
template <typename Function>
Function* load(const char* name) {
  const auto path = module_path();
  const std::string problem = load_torch_of_environment();
  void* const module = problem.empty() ? ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  void* const found = module == nullptr ? nullptr : ::dlsym(module, name);
  if (found == nullptr) {
    throw ConfigError(
        join_message("cannot load ", path.string(), ": ", problem.empty() ? ::dlerror() : problem),
        "there is no LibTorch where this looks for one, or the installation is not complete: set "
        "TRIREME_TORCH_DIR to the folder of a LibTorch of the minor version that this was built "
        "with (the folder with lib/libtorch.so), or install Trireme again");
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

launch::StoreOpener store_opener() {
  return [](launch::StoreAddress place) {
    std::unique_ptr<launch::RunStore> store;
    load<decltype(trireme_open_store)>("trireme_open_store")(place, store);
    return store;
  };
}

int doctor(bool as_rank) { return load<decltype(trireme_doctor)>("trireme_doctor")(as_rank); }

void time_collective(const CommBenchmark& benchmark) {
  load<decltype(trireme_bench_comm)>("trireme_bench_comm")(benchmark);
}

void calibrate_host(const CalibrateTask& task) {
  load<decltype(trireme_calibrate)>("trireme_calibrate")(task);
}

int accelerators_of_host(const std::string& device) {
  return load<decltype(trireme_count_accelerators)>("trireme_count_accelerators")(device);
}

int checkpoint_task(const CheckpointTask& task) {
  return load<decltype(trireme_checkpoint_task)>("trireme_checkpoint_task")(task);
}

int plan_task(const PlanTask& task) {
  return load<decltype(trireme_plan_task)>("trireme_plan_task")(task);
}

int predict_task(const PredictTask& task) {
  return load<decltype(trireme_predict_task)>("trireme_predict_task")(task);
}

void text_data_task(const TextDataTask& task) {
  load<decltype(trireme_text_data_task)>("trireme_text_data_task")(task);
}

}  // namespace trireme::apps
