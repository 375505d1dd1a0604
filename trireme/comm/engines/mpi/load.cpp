// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/mpi/load.h>

#include <trireme/base/error.h>

#include <dlfcn.h>

#include <filesystem>

namespace trireme::comm::mpi {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "trireme_mpi.so";

// Returns the folder of the file that holds this code: the program, or a library or extension
// module that it has loaded.
fs::path folder_of_this_code() {
  ::Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&folder_of_this_code), &info) == 0) return {};
  return fs::path(info.dli_fname).parent_path();
}

fs::path module_path() {
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const fs::path own = folder_of_this_code();  // of a Python package, or of one in the build
  for (const fs::path& path : {folder / kFile, folder / TRIREME_MODULE_FOLDER / kFile,
                               own / "bin" / kFile, own / "../../bin" / kFile}) {
    if (fs::exists(path, ignored)) return path;
  }
  return kFile;  // the linker's search: an installed library hands its folder to programs
}

struct Loaded {
  Module* module = nullptr;
  std::string failure;
};

const Loaded& load() {
  static const Loaded loaded = []() -> Loaded {
    const fs::path path = module_path();
    // Local visibility is sufficient: Open MPI makes its symbols global for its plug-ins by itself.
    void* const object = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* const function = object == nullptr ? nullptr : ::dlsym(object, kModuleFunction);
    if (function == nullptr) return {nullptr, join_message("cannot load it: ", ::dlerror())};
    return {reinterpret_cast<ModuleFunction*>(function)(), ""};
  }();
  return loaded;
}

// Returns what has started this process, if its variables show that it was not the launcher of MPI.
std::string foreign_launcher(std::string_view family, const Environment& environment) {
  if (environment.has("TRIREME_RUN_ID")) return "trireme run";
  if (environment.has("TORCHELASTIC_RUN_ID")) return "torchrun";
  const bool by_open_mpi = environment.has("OMPI_COMM_WORLD_SIZE");
  const bool by_hydra = environment.has("PMI_SIZE") && environment.has("MPI_LOCALNRANKS");
  if (family == "Open MPI" && by_hydra && !by_open_mpi) return "the mpiexec of MPICH (Hydra)";
  if (family == "MPICH" && by_open_mpi && !by_hydra) return "the mpirun of Open MPI";
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_PROCID"}) {
    if (environment.has(variable)) return "";  // the world's size will show
  }
  return "no launcher of MPI";
}

}  // namespace

std::string why_module_is_missing() { return load().failure; }

Module& load_module() {
  if (load().module != nullptr) return *load().module;
  throw ConfigError(
      join_message("engine mpi: ", load().failure),
      "the MPI library that this was built with has moved, or the installation is not "
      "complete: build and install Trireme again");
}

void check_launcher(std::string_view family, const Environment& environment) {
  const std::string launcher = foreign_launcher(family, environment);
  if (launcher.empty()) return;
  const bool is_open_mpi = family == "Open MPI";
  throw ConfigError(
      join_message("engine mpi is built with ", family, ", but this process was started by ",
                   launcher, ", expected ", family, "'s own ", is_open_mpi ? "mpirun" : "mpiexec"),
      join_message(
          "start it by ",
          is_open_mpi ? "mpirun -n N (Debian: mpirun.openmpi)"
                      : "mpiexec -n N (Debian: mpiexec.mpich)",
          ", build with the other MPI (cmake -DMPI_C_COMPILER=…), or take another engine"));
}

}  // namespace trireme::comm::mpi
