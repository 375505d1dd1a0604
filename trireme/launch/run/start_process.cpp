// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/start_process.h>

#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

namespace trireme::launch {
namespace {

bool is_file(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

bool is_folder(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool is_executable(const std::string& path) { return ::access(path.c_str(), X_OK) == 0; }

// Returns a hint for source files, which must be built or given to an interpreter; permissions
// alone do not make them run.
std::string_view source_hint(const std::string& path) {
  const std::string kind = std::filesystem::path(path).extension().string();
  constexpr std::array<std::string_view, 10> kCompiled{".c", ".cc", ".cpp", ".cxx", ".c++",
                                                       ".C", ".cu", ".h",   ".hpp", ".hh"};
  if (std::ranges::find(kCompiled, kind) != kCompiled.end())
    return "build it, and run the program that comes out; docs/guide/first-steps.md says how";
  if (kind == ".py") return "run it by its interpreter: trireme run -- python3 and this file";
  return "";
}

std::string check_path(const std::string& path) {
  if (is_folder(path))
    throw ConfigError(join_message("cannot run ", path, ": it is a folder"),
                      "name a program in it");
  if (!is_file(path)) {
    throw ConfigError(join_message("cannot run ", path, ": no such file"),
                      "check the path; is the program built?");
  }
  if (!is_executable(path)) {
    if (const auto hint = source_hint(path); !hint.empty())
      throw ConfigError(join_message("cannot run ", path, ": it is a source file"), hint);
    throw ConfigError(join_message("cannot run ", path, ": it is not executable"),
                      "chmod +x " + path);
  }
  return path;
}

std::vector<std::string> folders_of(std::string_view search_path) {
  std::vector<std::string> folders;
  while (true) {
    const auto colon = search_path.find(':');
    const std::string_view folder = search_path.substr(0, colon);
    folders.emplace_back(folder.empty() ? "." : folder);
    if (colon == std::string_view::npos) return folders;
    search_path.remove_prefix(colon + 1);
  }
}

// All data that the child uses between fork and exec, where it must neither allocate memory nor
// take locks.
struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* variables;
  const cpu_set_t* cores;  // may be null
  std::size_t cores_bytes;
  int input, output, error;
  const sigset_t* signal_mask;
  const rlimit* open_files;  // may be null
  pid_t parent;
  int failure_pipe;
};

[[noreturn]] void report_and_exit(const ChildPlan& plan) {
  const int failure = errno;
  [[maybe_unused]] const ssize_t written = ::write(plan.failure_pipe, &failure, sizeof(failure));
  ::_exit(127);
}

[[noreturn]] void become(const ChildPlan& plan) {
  ::setpgid(0, 0);
  // From here on, the kernel kills this process when its parent ends. If the parent ended before
  // this call, the signal never comes, so the parent's id is checked as well.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(127);
  if (::dup2(plan.input, 0) < 0 || ::dup2(plan.output, 1) < 0 || ::dup2(plan.error, 2) < 0)
    report_and_exit(plan);
  if (plan.cores != nullptr && ::sched_setaffinity(0, plan.cores_bytes, plan.cores) != 0)
    report_and_exit(plan);
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGTTOU, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  if (plan.open_files != nullptr) ::setrlimit(RLIMIT_NOFILE, plan.open_files);
  ::sigprocmask(SIG_SETMASK, plan.signal_mask, nullptr);
  ::execve(plan.program, plan.arguments, plan.variables);
  report_and_exit(plan);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> merged_environment(const ProcessStart& start) {
  auto variables = Environment::of_process().variables();
  for (const auto& [name, value] : start.variables) variables[name] = value;
  std::vector<std::string> entries;
  entries.reserve(variables.size());
  for (const auto& [name, value] : variables) entries.push_back(join_message(name, "=", value));
  return entries;
}

// Returns a core mask that is large enough for the highest core.
std::vector<cpu_set_t> core_mask(const std::vector<int>& cores) {
  if (cores.empty()) return {};
  const auto sets = static_cast<std::size_t>(std::ranges::max(cores)) / CPU_SETSIZE + 1;
  std::vector<cpu_set_t> mask(sets);
  CPU_ZERO_S(sets * sizeof(cpu_set_t), mask.data());
  for (const int core : cores)
    CPU_SET_S(static_cast<std::size_t>(core), sets * sizeof(cpu_set_t), mask.data());
  return mask;
}

[[noreturn]] void refuse(const ProcessStart& start, int error_number) {
  const std::string what = join_message("cannot run ", start.program, ": ");
  switch (error_number) {
    case ENOEXEC:
      if (const auto hint = source_hint(start.program); !hint.empty())
        throw ConfigError(what + "it is a source file", hint);
      throw ConfigError(what + "it is not a program that this machine can run",
                        "a script needs a first line such as #!/bin/sh; a binary must be built for "
                        "this processor");
    case ENOENT:
      throw ConfigError(
          what + "the interpreter that it names is missing",
          "check the script's first line (#!…), or what `file` says about a binary's interpreter");
    case EACCES:
      throw ConfigError(what + "permission denied",
                        "check that its file system is not mounted noexec and that its interpreter "
                        "is executable");
    case E2BIG:
      throw ConfigError(what + "arguments and environment are too long",
                        "hand long lists over in a file");
    default:
      throw ConfigError(what + describe_errno(error_number),
                        "check the limits of this user and machine (ulimit -a)");
  }
}

}  // namespace

std::string find_program(const std::string& name, std::string_view search_path) {
  if (name.find('/') != std::string::npos) return check_path(name);
  std::string found_without_permission;
  for (const std::string& folder : folders_of(search_path)) {
    const std::string path = folder + "/" + name;
    if (!is_file(path)) continue;
    if (is_executable(path)) return path;
    found_without_permission = path;
  }
  if (!found_without_permission.empty()) return check_path(found_without_permission);
  throw ConfigError(
      join_message("program '", name, "' not found in PATH (", search_path, ")"),
      is_file("./" + name) ? "did you mean ./" + name + "?" : "check its name, or give its path");
}

pid_t start_process(const ProcessStart& start) {
  std::vector<std::string> command = start.command;
  std::vector<std::string> variables = merged_environment(start);
  const std::vector<char*> argument_pointers = pointers(command);
  const std::vector<char*> variable_pointers = pointers(variables);
  const std::vector<cpu_set_t> cores = core_mask(start.cores);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) refuse(start, errno);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const ChildPlan plan{.program = start.program.c_str(),
                       .arguments = argument_pointers.data(),
                       .variables = variable_pointers.data(),
                       .cores = cores.empty() ? nullptr : cores.data(),
                       .cores_bytes = cores.size() * sizeof(cpu_set_t),
                       .input = start.input,
                       .output = start.output,
                       .error = start.error,
                       .signal_mask = &start.signal_mask,
                       .open_files = start.open_files ? &*start.open_files : nullptr,
                       .parent = ::getpid(),
                       .failure_pipe = write_end.get()};
  const pid_t child = ::fork();
  if (child == 0) become(plan);
  if (child < 0) refuse(start, errno);
  write_end.reset();
  // A successful exec closes the pipe, because it is close-on-exec. Otherwise the pipe delivers the
  // errno of the failure.
  int failure = 0;
  ssize_t count = 0;
  do {
    count = ::read(read_end.get(), &failure, sizeof(failure));
  } while (count < 0 && errno == EINTR);
  if (count == 0) return child;
  ::waitpid(child, nullptr, 0);
  refuse(start, failure);
}

}  // namespace trireme::launch
