// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/status_address.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/unique_fd.h>
#include <trireme/launch/status/http_request.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>

namespace trireme::launch {
namespace {

constexpr int kMostPort = 65535;

// Reads the beginning of a small file. Returns std::nullopt if it cannot be read.
std::optional<std::string> read_small_file(const std::filesystem::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::array<char, 4096> buffer{};
  const ssize_t count = fd ? ::read(fd.get(), buffer.data(), buffer.size()) : -1;
  if (count < 0) return std::nullopt;
  return std::string(buffer.data(), static_cast<std::size_t>(count));
}

// Flushes the name of a file to the disk, where the file system can do that.
void flush_folder_of(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd) ::fsync(fd.get());
}

}  // namespace

std::string url_of(const StatusAddress& address) {
  return join_message(address.is_encrypted ? "https://" : "http://", text_of(address.place), "/",
                      address.token.empty() ? "" : "?token=", address.token);
}

StatusAddress parse_status_address(const std::string& source, const std::string& text) {
  constexpr std::string_view kPlain = "http://";
  constexpr std::string_view kEncrypted = "https://";
  StatusAddress address{.place = {}};
  std::string_view rest = text;
  if (rest.starts_with(kEncrypted)) {
    address.is_encrypted = true;
    rest.remove_prefix(kEncrypted.size());
  } else if (rest.starts_with(kPlain)) {
    rest.remove_prefix(kPlain.size());
  }
  const std::size_t end = std::min(rest.find_first_of("/?"), rest.size());
  const std::size_t mark = rest.find('?');
  if (mark != std::string_view::npos)
    address.token = value_in_query(rest.substr(mark + 1), "token");
  address.place = parse_host_and_port(source, rest.substr(0, end));
  return address;
}

HostAndPort parse_status_place(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const auto port =
      parse_number<int>(std::string_view(text).substr(colon == std::string::npos ? 0 : colon + 1));
  HostAndPort place{.host = "127.0.0.1", .port = port.value_or(-1)};
  if (colon != std::string::npos) place.host = text.substr(0, colon);
  if (place.host.starts_with('[') && place.host.ends_with(']'))
    place.host = place.host.substr(1, place.host.size() - 2);
  if (place.port < 0 || place.port > kMostPort || place.host.empty()) {
    throw ConfigError(
        join_message("--status is '", text, "', expected a port from 0 to 65535, or ADDRESS:PORT"),
        "--status 0 serves it at a free port of 127.0.0.1");
  }
  return place;
}

void write_private_file(const std::filesystem::path& file, std::string_view text) {
  const auto fail = [&] {
    throw ConfigError(
        join_message("cannot write the file ", file.string(), ": ", describe_errno(errno)),
        "give a folder that exists and may be written to");
  };
  // The new file has its name only when it is complete, and is never readable by others.
  std::string temporary = file.string() + ".XXXXXX";
  const UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));  // mode 0600
  if (!fd) fail();
  const bool is_written =
      ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  // Without this, the new name could lead to an empty file after a crash of the host.
  const bool is_on_disk = is_written && ::fsync(fd.get()) == 0;
  if (is_on_disk && ::rename(temporary.c_str(), file.c_str()) == 0) return flush_folder_of(file);
  const int error_number = errno;
  ::unlink(temporary.c_str());
  errno = error_number;
  fail();
}

StatusAddress read_status_address(const std::filesystem::path& file_or_folder) {
  std::error_code failure;
  const bool is_folder = std::filesystem::is_directory(file_or_folder, failure);
  const std::filesystem::path file = is_folder ? file_or_folder / kStatusFile : file_or_folder;
  const auto text = read_small_file(file);
  if (!text) {
    throw ConfigError(join_message("cannot read ", file.string(), ": ", describe_errno(errno)),
                      "give the folder of a run that was started with --status (--log-dir of "
                      "trireme run, --run-dir of trireme scheduler), or HOST:PORT");
  }
  return parse_status_address(file.string(), text->substr(0, text->find('\n')));
}

}  // namespace trireme::launch
