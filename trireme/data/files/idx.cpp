// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/files/idx.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iomanip>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kFirstBytes = std::uint64_t{1} << 26;  // 64 MiB: all of MNIST at once.

constexpr std::string_view kRemedy =
    "Fashion-MNIST comes with Debian's and Ubuntu's package dataset-fashion-mnist (sudo apt-get "
    "install "
    "dataset-fashion-mnist), which puts it into /usr/share/datasets/fashion-mnist";

// Reads an IDX file through zlib, which accepts gzip and plain files alike.
class IdxFile {
 public:
  explicit IdxFile(const fs::path& path) : path_(path), file_(::gzopen(path.c_str(), "rb")) {
    if (!file_)
      throw DataError(join_message("cannot open ", path_.string(), ": ", describe_errno(errno)),
                      kRemedy);
    ::gzbuffer(file_.get(), 1U << 17);
  }

  // Reads a number of the header, which is big-endian.
  std::uint32_t read_number() {
    std::array<std::uint8_t, 4> bytes{};
    read(bytes.data(), 4);
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
           std::uint32_t{bytes[2]} << 8 | bytes[3];
  }

  void expect_magic(std::uint32_t expected, std::string_view kind) {
    const std::uint32_t magic = read_number();
    if (magic == expected) return;
    throw DataError(join_message(path_.string(), ": offset 0: magic number ", hex(magic),
                                 ", expected ", hex(expected), " for ", kind),
                    "this is another kind of file, or a damaged one: get the data set anew");
  }

  std::vector<std::uint8_t> read_bytes(std::uint64_t count) {
    // Deflate expands one byte to at most 1032. A header that states more than that is rejected
    // before memory is allocated for it.
    const std::uint64_t most = fs::file_size(path_) * 1032;
    if (count > most) {
      throw DataError(join_message(path_.string(), ": offset 4: the header promises ", count,
                                   " bytes, more than this file can hold"),
                      "the file is damaged: get the data set anew");
    }
    // Within that limit a damaged header may still state far more than there is, so the buffer
    // grows with the bytes that were read.
    std::vector<std::uint8_t> bytes;
    while (bytes.size() < count) {
      const std::uint64_t there = bytes.size();
      const std::uint64_t more = std::min(count - there, std::max(there, kFirstBytes));
      bytes.resize(there + more);
      read(bytes.data() + there, more);
    }
    return bytes;
  }

  // Throws unless the file ends here. This read also makes zlib compare the checksum, which it does
  // only at the end.
  void expect_end() {
    std::uint8_t byte = 0;
    const int read = ::gzread(file_.get(), &byte, 1);
    if (read < 0) fail_reading();
    if (read == 0) return;
    throw DataError(join_message(path_.string(), ": offset ", offset_,
                                 ": the file goes on after its last record"),
                    "the file is damaged: get the data set anew");
  }

 private:
  struct Close {
    void operator()(gzFile file) const { ::gzclose(file); }
  };

  void read(std::uint8_t* destination, std::uint64_t count) {
    while (count > 0) {
      const auto wanted = static_cast<unsigned>(std::min<std::uint64_t>(count, 1U << 30));
      const int read = ::gzread(file_.get(), destination, wanted);
      if (read < 0) fail_reading();
      offset_ += static_cast<std::uint64_t>(read);
      if (static_cast<unsigned>(read) < wanted)
        fail_short(count - static_cast<std::uint64_t>(read));
      destination += read;
      count -= wanted;
    }
  }

  [[noreturn]] void fail_reading() const {
    int code = 0;
    const int error_number = errno;
    std::string cause = ::gzerror(file_.get(), &code);
    if (code == Z_ERRNO) cause = describe_errno(error_number);
    const std::string prefix = path_.string() + ": ";  // zlib repeats the path in its messages.
    if (cause.starts_with(prefix)) cause.erase(0, prefix.size());
    throw DataError(join_message(path_.string(), ": offset ", offset_, ": cannot be read: ", cause),
                    "the file is damaged: get the data set anew");
  }

  [[noreturn]] void fail_short(std::uint64_t missing) const {
    int code = 0;
    ::gzerror(file_.get(), &code);
    const std::string_view kind =
        code == Z_BUF_ERROR ? ": the gzip file is cut short, " : ": the file is cut short, ";
    throw DataError(join_message(path_.string(), ": offset ", offset_, kind, missing,
                                 " more bytes were expected"),
                    "a download was probably interrupted: get the data set anew");
  }

  static std::string hex(std::uint32_t value) {
    TextWriter text;
    text << "0x" << std::hex << std::setw(8) << std::setfill('0') << value;
    return text.str();
  }

  fs::path path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::uint64_t offset_ = 0;  // In uncompressed bytes.
};

fs::path find_file(const fs::path& folder, const std::string& name) {
  const std::string names = join_message(name, ".gz and ", name);
  if (!fs::is_directory(folder)) {
    throw DataError(join_message("no folder ", folder.string(), " (looked there for ", names, ")"),
                    kRemedy);
  }
  for (const fs::path& path : {folder / name, folder / (name + ".gz")}) {
    if (fs::exists(path)) return path;
  }
  throw DataError(join_message("no data set in ", folder.string(), ": looked for ", names),
                  kRemedy);
}

}  // namespace

ImageSet read_mnist(const fs::path& folder, Split split) {
  const std::string prefix = split == Split::kTrain ? "train" : "t10k";
  const fs::path image_path = find_file(folder, prefix + "-images-idx3-ubyte");
  const fs::path label_path = find_file(folder, prefix + "-labels-idx1-ubyte");

  // The third byte, 08, stands for unsigned bytes; the fourth is the number of dimensions.
  IdxFile labels(label_path);
  labels.expect_magic(0x00000801, "labels");
  const std::uint32_t label_count = labels.read_number();
  IdxFile images(image_path);
  images.expect_magic(0x00000803, "images");
  const std::uint32_t count = images.read_number();
  if (count != label_count) {
    throw DataError(join_message(image_path.string(), " has ", count, " images, but ",
                                 label_path.string(), " has ", label_count, " labels"),
                    "the files are of different sets: get the data set anew");
  }
  const std::uint32_t height = images.read_number();
  const std::uint32_t width = images.read_number();
  const std::uint64_t image_bytes = std::uint64_t{height} * width;
  if (image_bytes == 0 || image_bytes > (1U << 28)) {
    throw DataError(join_message(image_path.string(), ": offset 8: images of ", height, " x ",
                                 width, " pixels"),
                    "the file is damaged: get the data set anew");
  }

  ImageSet set{.height = height,
               .width = width,
               .pixels = images.read_bytes(count * image_bytes),
               .labels = labels.read_bytes(count)};
  images.expect_end();
  labels.expect_end();
  return set;
}

}  // namespace trireme::data
