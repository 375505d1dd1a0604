// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/checkpoint_folder.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/input_file.h>
#include <trireme/base/text.h>
#include <trireme/base/warning.h>
#include <trireme/checkpoint/index.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <exception>
#include <limits>
#include <mutex>
#include <set>
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

// Returns epoch and step of a folder name, or nullopt if checkpoint_name() does not make it for
// this prefix.
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

// The number of a checkpoint in the order of writing, from 1; 0 if it is unknown.
struct Order {
  std::int64_t number = 0;
  std::string problem{};  // The reason why the number is not certain; then it is only a guess.
};

std::optional<std::int64_t> parse_order(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  const auto number = parse_number<std::int64_t>(text);
  const bool can_be = number && *number >= 0 && *number < std::numeric_limits<std::int64_t>::max();
  return can_be ? number : std::nullopt;
}

// Throws for errors of the machine, such as too many open files. The checkpoint may be intact and
// the newest one, so skipping it would lose work.
void throw_if_of_the_machine(const fs::path& file, int error_number) {
  constexpr std::array kOfTheMachine{EMFILE, ENFILE, ENOMEM, EIO, EINTR, ESTALE, ETIMEDOUT, EACCES};
  if (std::ranges::count(kOfTheMachine, error_number) > 0) throw_cannot("read", file, error_number);
}

// Returns the number in index.json without parsing it: it is on a line of its own before all long
// parts. Returns nullopt if it cannot be found.
std::optional<std::int64_t> order_in_index(const fs::path& file) {
  constexpr std::string_view kKey = "\n \"order\": ";
  const InputFile input = open_input(file);
  throw_if_of_the_machine(file, input.error_number);
  std::string text;
  std::array<char, std::size_t{1} << 14U> block{};
  while (input) {
    const ssize_t count = ::read(input.file.get(), block.data(), block.size());
    if (count < 0) throw_if_of_the_machine(file, errno);
    if (count <= 0) break;
    text.append(block.data(), static_cast<std::size_t>(count));
    const auto place = text.find(kKey);
    const auto end = place == std::string::npos ? place : text.find_first_of(",\n", place + 1);
    if (end != std::string::npos) {
      const std::size_t begin = place + kKey.size();
      return parse_order(std::string_view(text).substr(begin, end - begin));
    }
    // Keeps a possible beginning of the line, which may continue in the next block.
    text.erase(0, std::min(place, text.size() - std::min(text.size(), kKey.size())));
  }
  return std::nullopt;
}

Order read_order(const fs::path& checkpoint) {
  constexpr std::int64_t kMostBytes = 64;
  const fs::path file = checkpoint / kOrderFile;
  const fs::path index = checkpoint / kIndexFile;
  InputFile input = open_input(file);
  if (input.error_number == ENOENT) return {};
  const auto text = read_text(input, kMostBytes);
  if (!text) throw_if_of_the_machine(file, input.error_number);
  const auto number = text ? parse_order(*text) : std::nullopt;
  std::error_code ignored;
  const bool has_index = fs::exists(index, ignored);
  const auto indexed = has_index ? order_in_index(index) : number;
  Order order{.number = indexed.value_or(0)};
  if (!text) {
    order.problem = join_message(file.string(), " ", input.problem);
  } else if (!number) {
    order.problem =
        join_message(file.string(), " holds '", *text,
                     "', expected which checkpoint of its prefix this is, counted from 1");
  } else if (!indexed) {
    order.problem = join_message(index.string(), " is damaged: it does not hold the number ",
                                 *number, " that is in ", kOrderFile);
  } else if (*number != *indexed) {
    order.problem = join_message(file.string(), " holds ", *number, ", and ", index.string(), " ",
                                 *indexed, ": one of them is damaged");
  }
  return order;
}

// Warns once per process about each checkpoint, because a process may look for checkpoints every
// few steps.
void warn_of(const Order& order, const fs::path& checkpoint) {
  static std::mutex mutex;
  static std::set<fs::path> known;
  const std::scoped_lock lock(mutex);
  if (!known.insert(checkpoint).second) return;
  warn("the checkpoint ", checkpoint.string(), " is passed over: ", order.problem,
       "\n  hint: restore the file from a good copy, or move the checkpoint elsewhere; it is "
       "neither loaded as the latest nor removed");
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

struct Found {
  std::vector<Numbered> checkpoints{};  // In the order of writing.
  std::int64_t highest = 0;  // The highest number, including those of skipped checkpoints.
};

// A number that cannot be read is an error for those who need the newest checkpoint, and a warning
// for those who write another.
enum class Purpose : std::uint8_t { kReading, kWriting };

Found find_checkpoints(const fs::path& folder, const std::string& prefix, Purpose purpose) {
  check_prefix(prefix);
  Found found;
  std::int64_t num_unreadable = 0;  // Each may have one number more than the readable ones.
  const auto read = [&](const fs::path& path) {
    try {
      Order order = read_order(path);
      // It may have been replaced between the reads.
      if (!order.problem.empty()) order = read_order(path);
      return order;
    } catch (const CheckpointError& error) {
      if (purpose == Purpose::kReading) throw;
      ++num_unreadable;
      return Order{.number = 0, .problem = message_of(error)};
    }
  };
  for (const fs::path& path : children(folder)) {
    std::error_code ignored;
    auto numbered = parse_name(path.filename().string(), prefix);
    if (numbered && fs::is_directory(path, ignored)) {
      const Order order = read(path);
      found.highest = std::max(found.highest, order.number);
      if (!order.problem.empty()) {
        warn_of(order, path);
        continue;
      }
      numbered->path = path;
      numbered->order = order.number;
      found.checkpoints.push_back(std::move(*numbered));
    }
  }
  found.highest += num_unreadable;
  std::ranges::sort(found.checkpoints, {},
                    [](const Numbered& one) { return std::tuple(one.order, one.epoch, one.step); });
  return found;
}

// Locks the folder itself; returns nothing if another process holds the lock. The lock ends with
// the process.
UniqueFd try_lock(const fs::path& folder) {
  UniqueFd handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle && ::flock(handle.get(), LOCK_EX | LOCK_NB) != 0) handle.reset();
  return handle;
}

// Returns an unused hidden name next to a checkpoint. A process with this process id may have left
// one on a file system that cannot lock folders.
fs::path hidden_sibling(const fs::path& path) {
  const std::string begin = join_message(".", path.filename().string(), ".", ::getpid());
  fs::path hidden = path.parent_path() / join_message(begin, kTemporarySuffix);
  std::error_code ignored;
  for (int i = 1; fs::exists(fs::symlink_status(hidden, ignored)); ++i) {
    hidden = path.parent_path() / join_message(begin, "-", i, kTemporarySuffix);
  }
  return hidden;
}

// Returns true if hidden_sibling() makes this name for a checkpoint of this prefix, and not of a
// longer prefix.
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
  for (Numbered& one : find_checkpoints(folder, prefix, Purpose::kReading).checkpoints)
    paths.push_back(std::move(one.path));
  return paths;
}

std::optional<fs::path> latest(const fs::path& folder, const std::string& prefix) {
  auto paths = list_checkpoints(folder, prefix);
  if (paths.empty()) return std::nullopt;
  return std::move(paths.back());
}

void remove_checkpoint(const fs::path& path, FileLayer& files) {
  // Renames first: if the process is killed while it removes files, nothing must look like a
  // complete checkpoint.
  const fs::path hidden = hidden_sibling(path);
  if (files.rename(path, hidden) != 0) throw_cannot("remove", path, errno);
  remove_all(hidden, files);
}

void remove_leftovers(const fs::path& folder, const std::string& prefix, FileLayer& files) {
  check_prefix(prefix);
  std::exception_ptr failure;  // The first failure.
  for (const fs::path& path : children(folder)) {
    if (!is_hidden_of(path.filename().string(), prefix)) continue;
    try {
      if (const UniqueFd lock = try_lock(path)) remove_all(path, files);
    } catch (const CheckpointError&) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

CheckpointFolderWriter::CheckpointFolderWriter(const fs::path& folder, const std::string& prefix,
                                               std::int64_t epoch, std::int64_t step,
                                               FileLayer& files)
    : files_(files),
      destination_(folder / checkpoint_name(prefix, epoch, step)),
      temporary_(hidden_sibling(destination_)) {
  make_folders(folder, files_);
  order_ = find_checkpoints(folder, prefix, Purpose::kWriting).highest + 1;
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
  // The order of these steps makes the checkpoint crash-safe: all files are flushed, then their
  // names, then the folder is renamed, and the parent folder is flushed last.
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
  // After an exchange, the hidden name belongs to the old checkpoint, which is removed.
  is_made_ = is_exchanged;
  const fs::path folder = destination_.has_parent_path() ? destination_.parent_path() : ".";
  flush_names(folder, files_);
  remove_hidden();
  return destination_;
}

}  // namespace trireme::checkpoint
