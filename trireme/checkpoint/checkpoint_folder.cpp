// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/checkpoint_folder.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <limits>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporarySuffix = ".tmp";

void check_prefix(const std::string& prefix) {
  if (!prefix.empty() && prefix.front() != '.' && prefix.find('/') == std::string::npos) return;
  throw UsageError(join_message("checkpoint prefix is '", prefix,
                                "', expected a name without '/' or leading '.'"),
                   "give the folder apart from the prefix");
}

struct Numbered {
  std::int64_t order = 0;
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  fs::path path{};
};

// Epoch and step of a folder name; nothing where it is not one that checkpoint_name makes for this
// prefix.
std::optional<Numbered> parse_name(std::string_view name, const std::string& prefix) {
  if (!name.starts_with(prefix + "-")) return std::nullopt;
  Numbered result;
  const char* end = name.data() + name.size();
  const auto epoch = std::from_chars(name.data() + prefix.size() + 1, end, result.epoch);
  if (epoch.ec != std::errc{} || epoch.ptr == end || *epoch.ptr != '_') return std::nullopt;
  const auto step = std::from_chars(epoch.ptr + 1, end, result.step);
  if (step.ec != std::errc{} || step.ptr != end || result.epoch < 0 || result.step < 0)
    return std::nullopt;
  return result;
}

// Which of its prefix a checkpoint is in the order of writing, from 1; 0 where nothing says so.
std::int64_t read_order(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kOrderFile;
  std::error_code ignored;
  std::ifstream stream(file);
  std::int64_t order = 0;
  if (!stream && !fs::exists(file, ignored)) return order;
  if (!(stream >> order) || order < 0 || order == std::numeric_limits<std::int64_t>::max()) {
    throw CheckpointError(
        join_message("checkpoint file ", file.string(),
                     " holds no number, or one that none can follow; expected which checkpoint of "
                     "its prefix this is, counted from 1"),
        "write the number, or remove the file: the checkpoint then counts as the oldest");
  }
  return order;
}

std::vector<fs::path> children(const fs::path& folder) {
  std::error_code failure;
  std::vector<fs::path> paths;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    paths.push_back(entry->path());
  }
  if (failure && failure != std::errc::no_such_file_or_directory)
    throw_cannot("list", folder, failure.value());
  return paths;
}

// In the order of writing.
std::vector<Numbered> find_checkpoints(const fs::path& folder, const std::string& prefix) {
  check_prefix(prefix);
  std::vector<Numbered> found;
  for (const fs::path& path : children(folder)) {
    std::error_code ignored;
    auto numbered = parse_name(path.filename().string(), prefix);
    if (numbered && fs::is_directory(path, ignored)) {
      numbered->path = path;
      numbered->order = read_order(path);
      found.push_back(std::move(*numbered));
    }
  }
  std::ranges::sort(found, {},
                    [](const Numbered& one) { return std::tuple(one.order, one.epoch, one.step); });
  return found;
}

// A lock on the folder itself, which ends with the process that holds it; none where somebody else
// has it.
UniqueFd try_lock(const fs::path& folder) {
  UniqueFd handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle && ::flock(handle.get(), LOCK_EX | LOCK_NB) != 0) handle.reset();
  return handle;
}

// A hidden name beside a checkpoint that nothing has: a process of this number may have left one
// where folders cannot be locked.
fs::path hidden_sibling(const fs::path& path) {
  const std::string begin = join_message(".", path.filename().string(), ".", ::getpid());
  fs::path hidden = path.parent_path() / join_message(begin, kTemporarySuffix);
  std::error_code ignored;
  for (int i = 1; fs::exists(fs::symlink_status(hidden, ignored)); ++i) {
    hidden = path.parent_path() / join_message(begin, "-", i, kTemporarySuffix);
  }
  return hidden;
}

// Whether a name is hidden_sibling's for a checkpoint of this prefix, and not of one that begins
// like it.
bool is_hidden_of(std::string_view name, const std::string& prefix) {
  if (!name.starts_with('.') || !name.ends_with(kTemporarySuffix)) return false;
  if (name.size() <= kTemporarySuffix.size()) return false;
  name.remove_prefix(1);
  name.remove_suffix(kTemporarySuffix.size());
  const auto process = name.rfind('.');
  return process != std::string_view::npos && parse_name(name.substr(0, process), prefix);
}

}  // namespace

std::string checkpoint_name(const std::string& prefix, std::int64_t epoch, std::int64_t step) {
  check_prefix(prefix);
  if (epoch < 0 || step < 0) {
    throw UsageError(
        join_message("checkpoint of epoch ", epoch, " and step ", step, ": expected 0 or more"),
        "count epochs and steps up from 0 or 1");
  }
  return join_message(prefix, "-", epoch, "_", step);
}

std::vector<fs::path> list_checkpoints(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> paths;
  for (Numbered& one : find_checkpoints(folder, prefix)) paths.push_back(std::move(one.path));
  return paths;
}

std::optional<fs::path> latest(const fs::path& folder, const std::string& prefix) {
  auto paths = list_checkpoints(folder, prefix);
  if (paths.empty()) return std::nullopt;
  return std::move(paths.back());
}

void remove_checkpoint(const fs::path& path, FileLayer& files) {
  // Hidden first: a kill while its files go must not leave something that looks complete.
  const fs::path hidden = hidden_sibling(path);
  if (files.rename(path, hidden) != 0) throw_cannot("remove", path, errno);
  remove_all(hidden, files);
}

void remove_leftovers(const fs::path& folder, const std::string& prefix, FileLayer& files) {
  check_prefix(prefix);
  for (const fs::path& path : children(folder)) {
    if (!is_hidden_of(path.filename().string(), prefix)) continue;
    if (const UniqueFd lock = try_lock(path)) remove_all(path, files);
  }
}

CheckpointFolderWriter::CheckpointFolderWriter(const fs::path& folder, const std::string& prefix,
                                               std::int64_t epoch, std::int64_t step,
                                               FileLayer& files)
    : files_(files),
      destination_(folder / checkpoint_name(prefix, epoch, step)),
      temporary_(hidden_sibling(destination_)) {
  make_folders(folder, files_);
  const auto earlier = find_checkpoints(folder, prefix);
  order_ = earlier.empty() ? 1 : earlier.back().order + 1;
  if (files_.make_folder(temporary_) != 0) throw_cannot("create", temporary_, errno);
  is_made_ = true;
  lock_ = try_lock(temporary_);
}

CheckpointFolderWriter::~CheckpointFolderWriter() { remove_hidden(); }

void CheckpointFolderWriter::remove_hidden() {
  if (!std::exchange(is_made_, false)) return;
  try {
    remove_all(temporary_, files_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the next save removes it
  }
}

fs::path CheckpointFolderWriter::commit() {
  OutputFile order(temporary_ / kOrderFile, files_);
  order.append(join_message(order_, "\n"));
  order.finish();
  flush_names(temporary_, files_);
  bool is_exchanged = false;
  if (files_.rename(temporary_, destination_) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) {
      throw_cannot("give a finished checkpoint its name", destination_, errno);
    }
    if (files_.exchange(temporary_, destination_) != 0) {
      throw CheckpointError(
          join_message("cannot replace the checkpoint ", destination_.string(),
                       " in one step: ", describe_errno(errno)),
          "remove it or choose another prefix; some network file systems cannot exchange folders");
    }
    is_exchanged = true;
  }
  is_made_ = is_exchanged;  // the old one, which now has the hidden name
  const fs::path folder = destination_.has_parent_path() ? destination_.parent_path() : ".";
  flush_names(folder, files_);
  remove_hidden();
  return destination_;
}

}  // namespace trireme::checkpoint
