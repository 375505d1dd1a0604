// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/files/npy_format.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/data/files/check_is_file.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaximumDimensions = 64;
constexpr std::string_view kDamaged = "the file is damaged: save it anew with numpy.save";

// Parses the header, a Python dictionary of three literals in any order: {'descr': '<f4',
// 'fortran_order': False, 'shape': (3, 4), }.
class Literal {
 public:
  // `offset` is the position of the text in the file.
  Literal(const fs::path& path, std::string_view text, std::size_t offset)
      : path_(path), text_(text), offset_(offset) {}

  [[noreturn]] void fail(std::string_view expected) const {
    throw DataError(join_message(path_.string(), ": offset ", offset_ + place_,
                                 ": the header cannot be read: expected ", expected),
                    kDamaged);
  }

  // Skips spaces, then consumes the next character if it is this one.
  bool accept(char character) {
    skip_spaces();
    if (place_ == text_.size() || text_[place_] != character) return false;
    ++place_;
    return true;
  }

  void expect(char character) {
    if (!accept(character)) fail(join_message("'", character, "'"));
  }

  std::string read_string() {
    const char quote = accept('"') ? '"' : '\'';
    if (quote == '\'') expect('\'');
    const std::size_t end = text_.find(quote, place_);
    if (end == std::string_view::npos) fail("the end of a string");
    std::string text(text_.substr(place_, end - place_));
    place_ = end + 1;
    return text;
  }

  bool read_boolean() {
    skip_spaces();
    for (const auto& [word, value] : {std::pair{"True", true}, std::pair{"False", false}}) {
      if (!text_.substr(place_).starts_with(word)) continue;
      place_ += std::string_view(word).size();
      return value;
    }
    fail("True or False");
  }

  std::vector<std::int64_t> read_shape() {
    std::vector<std::int64_t> shape;
    expect('(');
    while (!accept(')')) {
      std::int64_t size = 0;
      const char* const begin = text_.data() + place_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), size);
      if (error != std::errc{} || size < 0) fail("a size of at least 0");
      place_ += static_cast<std::size_t>(end - begin);
      shape.push_back(size);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return shape;
  }

  void expect_end() {
    skip_spaces();
    if (place_ != text_.size()) fail("the end of the header");
  }

 private:
  void skip_spaces() {
    while (place_ < text_.size() && (text_[place_] == ' ' || text_[place_] == '\n')) ++place_;
  }

  const fs::path& path_;
  std::string_view text_;
  std::size_t offset_;
  std::size_t place_ = 0;
};

[[noreturn]] void refuse(const fs::path& path, std::string_view what, std::string_view remedy) {
  throw DataError(join_message(path.string(), ": ", what), remedy);
}

// `descr` is the byte order, the kind and the size of an element, such as '<f4'. An element of one
// byte has no byte order. Returns kind and size.
std::string check_descr(const fs::path& path, const std::string& descr) {
  static const std::vector<std::string> known = {"b1", "u1", "u2", "u4", "u8", "i1", "i2",
                                                 "i4", "i8", "f2", "f4", "f8", "c8", "c16"};
  const std::string dtype = descr.empty() ? descr : descr.substr(1);
  if (std::ranges::find(known, dtype) == known.end()) {
    refuse(path, join_message("the elements are of dtype '", descr, "', which is not supported"),
           "save booleans, integers, floating-point or complex numbers");
  }
  if (descr[0] != '<' && !dtype.ends_with('1')) {
    refuse(path,
           join_message("the elements are of dtype '", descr,
                        descr[0] == '>' ? "', which is big-endian"
                                        : "', which is not said to be little-endian"),
           "save array.astype(array.dtype.newbyteorder('<'))");
  }
  return dtype;
}

std::int64_t bytes_of(const fs::path& path, const NpyHeader& header) {
  std::int64_t width = 0;
  std::from_chars(header.dtype.data() + 1, header.dtype.data() + header.dtype.size(), width);
  // Sizes next to a 0 count as well, because LibTorch multiplies them for the strides.
  if (header.shape.size() > kMaximumDimensions) {
    refuse(path,
           join_message("the shape has ", header.shape.size(), " dimensions, more than NumPy's ",
                        kMaximumDimensions),
           kDamaged);
  }
  std::int64_t bytes = width;
  bool is_empty = false;
  for (const std::int64_t size : header.shape) {
    is_empty = is_empty || size == 0;
    if (bytes > std::numeric_limits<std::int64_t>::max() / std::max<std::int64_t>(size, 1)) {
      refuse(path,
             join_message("the shape of ", header.shape.size(),
                          " dimensions has more elements than memory can address"),
             kDamaged);
    }
    bytes *= std::max<std::int64_t>(size, 1);
  }
  return is_empty ? 0 : bytes;
}

// Reads the magic string, the version and the length of the header. Returns that length.
std::size_t read_preamble(const fs::path& path, std::ifstream& stream) {
  std::string preamble(8, '\0');
  stream.read(preamble.data(), 8);
  if (!stream || !preamble.starts_with(kMagic)) {
    throw DataError(join_message(path.string(), ": offset 0: not the magic string of a .npy file"),
                    "this is another kind of file (a .npz is an archive of them); use numpy.save");
  }
  const int major = static_cast<std::uint8_t>(preamble[6]);
  const int minor = static_cast<std::uint8_t>(preamble[7]);
  if (major < 1 || major > 2 || minor != 0) {
    throw DataError(join_message(path.string(), ": offset 6: format ", major, ".", minor,
                                 ", expected 1.0 or 2.0"),
                    "save an array of plain numbers, without names of fields");
  }
  const std::size_t width = major == 1 ? 2 : 4;
  std::string length(width, '\0');
  stream.read(length.data(), static_cast<std::streamsize>(width));
  if (!stream) {
    throw DataError(join_message(path.string(), ": offset 8: the file is cut short in its header"),
                    kDamaged);
  }
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < width; ++i)
    bytes |= std::size_t{static_cast<std::uint8_t>(length[i])} << (8 * i);
  return bytes;
}

void check_bytes(const fs::path& path, const NpyHeader& header) {
  const auto there = static_cast<std::int64_t>(fs::file_size(path)) - header.offset;
  if (there == header.bytes) return;
  throw DataError(join_message(path.string(), ": offset ", header.offset, ": the elements have ",
                               there, " bytes, but the header promises ", header.bytes),
                  there < header.bytes ? "the file is cut short: save it anew"
                                       : "the file holds more than one array: save each by itself");
}

NpyHeader parse(const fs::path& path, const std::string& text, std::size_t begin) {
  Literal literal(path, text, begin);
  std::optional<std::string> descr;
  std::optional<bool> is_fortran;
  std::optional<std::vector<std::int64_t>> shape;
  literal.expect('{');
  while (!literal.accept('}')) {
    const std::string key = literal.read_string();
    literal.expect(':');
    if (key == "descr") {
      if (literal.accept('[')) {
        refuse(path, "the elements are structures with fields",
               "save each field as an array of its own");
      }
      descr = literal.read_string();
    } else if (key == "fortran_order") {
      is_fortran = literal.read_boolean();
    } else if (key == "shape") {
      shape = literal.read_shape();
    } else {
      literal.fail("the key 'descr', 'fortran_order' or 'shape' before this");
    }
    if (!literal.accept(',')) {
      literal.expect('}');
      break;
    }
  }
  literal.expect_end();
  if (!descr || !is_fortran || !shape)
    literal.fail("the keys 'descr', 'fortran_order' and 'shape'");
  if (*is_fortran) {
    refuse(path, "the elements are in Fortran order", "save numpy.ascontiguousarray(array)");
  }
  return {.dtype = check_descr(path, *descr), .shape = *std::move(shape)};
}

}  // namespace

NpyHeader read_npy_header(const fs::path& path) {
  check_is_file(path);
  std::ifstream stream(path, std::ios::binary);
  const std::size_t length = read_preamble(path, stream);
  const auto begin = static_cast<std::size_t>(stream.tellg());
  // A header that states more bytes than the file has is rejected before memory is allocated for
  // it.
  std::string text(begin + length > fs::file_size(path) ? 0 : length, '\0');
  if (text.size() < length || !stream.read(text.data(), static_cast<std::streamsize>(length))) {
    throw DataError(join_message(path.string(), ": offset ", begin,
                                 ": the file is cut short in its header of ", length, " bytes"),
                    kDamaged);
  }
  NpyHeader header = parse(path, text, begin);
  header.offset = static_cast<std::int64_t>(begin + length);
  header.bytes = bytes_of(path, header);
  check_bytes(path, header);
  return header;
}

std::string make_npy_header(const NpyHeader& header) {
  constexpr std::size_t kAlignment = 64;
  constexpr std::size_t kPreamble = 10;
  std::string text = "{'descr': '" + std::string(header.dtype.ends_with('1') ? "|" : "<") +
                     header.dtype + "', 'fortran_order': False, 'shape': (";
  text += list_text(header.shape) + (header.shape.size() == 1 ? ",), }" : "), }");
  text.append(kAlignment - 1 - (kPreamble + text.size()) % kAlignment, ' ');
  text += '\n';
  std::string bytes(kMagic);
  bytes +=
      {'\1', '\0', static_cast<char>(text.size() & 0xFFU), static_cast<char>(text.size() >> 8U)};
  return bytes + text;
}

}  // namespace trireme::data
