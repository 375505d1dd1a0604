// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/base/input_file.h>
#include <trireme/base/json_depth.h>
#include <trireme/base/unique_fd.h>
#include <trireme/checkpoint/crc32.h>
#include <trireme/checkpoint/read_bytes.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/checkpoint/safetensors_format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

// Finds names that occur twice in the outermost object; a parsed document keeps only the last one.
// This is a single pass. A callback of json::parse would search all earlier entries for each
// tensor.
class RepeatedName final : public nlohmann::json_sax<json> {
 public:
  const std::string& found() const { return found_; }

  bool key(string_t& name) override {
    if (depth_ == 1 && !names_.insert(name).second) found_ = name;
    return true;
  }
  bool start_object(std::size_t /*elements*/) override { return step(1); }
  bool end_object() override { return step(-1); }
  bool start_array(std::size_t /*elements*/) override { return step(1); }
  bool end_array() override { return step(-1); }
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool parse_error(std::size_t /*place*/, const std::string& /*token*/,
                   const json::exception& /*error*/) override {
    return false;
  }

 private:
  bool step(int change) {
    depth_ += change;
    return true;
  }

  std::unordered_set<std::string> names_;
  std::string found_;
  int depth_ = 0;
};

class FileReader {
 public:
  explicit FileReader(const std::filesystem::path& path);
  TensorFile read();
  FileHeader header();

 private:
  [[noreturn]] void fail(std::string_view what,
                         std::string_view hint = "restore the file from a good copy") const;
  [[noreturn]] void fail(const ReadFailure& failure, std::string_view what) const;
  void fill(std::int64_t offset, std::span<std::byte> bytes, std::string_view what) const;
  std::string read_header();
  json parse_header(const std::string& text) const;
  void restore_complex(HeaderTensor& entry, const std::string& dtype) const;
  HeaderTensor parse_entry(const std::string& name, const json& value) const;
  std::int64_t parse_integer(const json& value, const std::string& name,
                             std::string_view field) const;
  std::vector<HeaderTensor> parse_entries(const json& header) const;
  at::Tensor read_tensor(const HeaderTensor& entry, std::uint32_t& crc) const;

  std::filesystem::path path_;
  UniqueFd file_;
  std::int64_t file_bytes_ = 0;
  std::int64_t data_begin_ = 0;
};

FileReader::FileReader(const std::filesystem::path& path) : path_(path) {
  InputFile input = open_input(path);
  if (!input) {
    fail(input.problem, input.error_number == 0 ? "give the path of a .safetensors file"
                                                : "check path and permissions");
  }
  file_ = std::move(input.file);
  file_bytes_ = input.bytes;
}

void FileReader::fail(std::string_view what, std::string_view hint) const {
  throw CheckpointError(join_message("safetensors file ", path_.string(), " ", what), hint);
}

void FileReader::fail(const ReadFailure& failure, std::string_view what) const {
  fail(join_message(describe(failure), " (", what, ")"), hint(failure));
}

void FileReader::fill(std::int64_t offset, std::span<std::byte> bytes,
                      std::string_view what) const {
  if (const auto failure = read_bytes(file_.get(), offset, bytes)) fail(*failure, what);
}

// Reads the header. Its length is checked against the file before memory is allocated for it.
std::string FileReader::read_header() {
  if (file_bytes_ < kLengthBytes) {
    fail(join_message("is cut short: it has ", file_bytes_,
                      " bytes, and the header length alone takes ", kLengthBytes));
  }
  std::uint64_t length = 0;
  fill(0, std::as_writable_bytes(std::span(&length, 1)), "header length");
  if (length > static_cast<std::uint64_t>(file_bytes_ - kLengthBytes)) {
    fail(join_message("is cut short or no safetensors file: the header is said to take ", length,
                      " bytes from offset 8, and the file has ", file_bytes_, " bytes"));
  }
  if (length > static_cast<std::uint64_t>(kMaximumHeaderBytes)) {
    fail(join_message("has a header of ", length, " bytes; at most ", kMaximumHeaderBytes,
                      " are allowed"));
  }
  std::string text(length, '\0');
  fill(kLengthBytes, std::as_writable_bytes(std::span(text)), "header");
  data_begin_ = kLengthBytes + static_cast<std::int64_t>(length);
  return text;
}

json FileReader::parse_header(const std::string& text) const {
  constexpr std::size_t kDepthOfSizes = 3;  // Header, tensor and shape.
  if (json_depth(text) > kDepthOfSizes) {
    fail("has a damaged header: lists in lists, where a tensor has numbers");
  }
  json header;
  try {
    header = json::parse(text);
  } catch (const json::parse_error& error) {
    fail(join_message("has a damaged header: not valid JSON at offset ",
                      kLengthBytes + static_cast<std::int64_t>(error.byte)));
  } catch (const json::out_of_range&) {
    fail("has a damaged header: a number that is out of range");
  }
  if (!header.is_object()) fail("has a damaged header: expected a JSON object at offset 8");
  RepeatedName repeated;
  json::sax_parse(text, &repeated);
  if (!repeated.found().empty()) {
    fail(join_message("names tensor '", repeated.found(), "' twice in its header"));
  }
  return header;
}

std::int64_t FileReader::parse_integer(const json& value, const std::string& name,
                                       std::string_view field) const {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) {
    fail(join_message("has a damaged header: tensor '", name, "' has ", value.dump(), " in ", field,
                      ", expected an integer from 0 to 2^63-1"));
  }
  return value.get<std::int64_t>();
}

HeaderTensor FileReader::parse_entry(const std::string& name, const json& value) const {
  const auto damaged = [&](const std::string& what) {
    fail(join_message("has a damaged header: tensor '", name, "' ", what));
  };
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    damaged("lacks one of dtype, shape, data_offsets");
  }
  const json& dtype = value["dtype"];
  const json& shape = value["shape"];
  const json& offsets = value["data_offsets"];
  if (!dtype.is_string()) damaged("has a dtype that is not a string");
  if (!shape.is_array()) damaged("has a shape that is not a list");
  if (!offsets.is_array() || offsets.size() != 2)
    damaged("has data_offsets that are not [begin, end]");

  HeaderTensor entry{.name = name, .shape = {}};
  const auto dtype_name = dtype.get<std::string>();
  const Dtype* const known = find_dtype(dtype_name);
  if (known == nullptr) {
    fail(join_message("holds tensor '", name, "' of dtype ", dtype_name,
                      ", which is not known here"),
         "write it with one of F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 I16 I8 U64 U32 U16 U8 BOOL "
         "C64");
  }
  entry.type = known->type;
  std::int64_t bytes = item_bytes(entry.type);
  // Counts empty dimensions as 1, because LibTorch's strides must not overflow either.
  std::int64_t stride_limit = bytes;
  for (const json& size : shape) {
    const std::int64_t dimension = parse_integer(size, name, "its shape");
    entry.shape.push_back(dimension);
    if (__builtin_mul_overflow(stride_limit, std::max<std::int64_t>(dimension, 1), &stride_limit)) {
      damaged(join_message("has the impossible shape ", shape.dump()));
    }
    bytes *= dimension;
  }
  entry.begin = parse_integer(offsets[0], name, "data_offsets");
  entry.end = parse_integer(offsets[1], name, "data_offsets");
  if (entry.begin > entry.end || entry.end - entry.begin != bytes) {
    damaged(join_message("takes ", bytes, " bytes by dtype ", dtype_name, " and shape ",
                         shape.dump(), ", but its data_offsets are ", offsets.dump()));
  }
  return entry;
}

// Returns the entries in the order of their bytes. These must be consecutive, without gaps, up to
// the end of the file.
std::vector<HeaderTensor> FileReader::parse_entries(const json& header) const {
  std::vector<HeaderTensor> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != kMetadataKey) entries.push_back(parse_entry(name, value));
  }
  std::ranges::sort(entries, {},
                    [](const HeaderTensor& entry) { return std::pair(entry.begin, entry.end); });
  std::int64_t expected = 0;
  for (HeaderTensor& entry : entries) {
    // Unsigned, because offsets may be up to 2^63 - 1 and the beginning of the data is added.
    const auto data_begin = static_cast<std::uint64_t>(data_begin_);
    const std::uint64_t begin = data_begin + static_cast<std::uint64_t>(entry.begin);
    if (entry.begin != expected) {
      fail(join_message("has a damaged header: tensor '", entry.name, "' begins at offset ", begin,
                        ", which leaves ", entry.begin < expected ? "an overlap" : "a hole",
                        "; expected ", data_begin_ + expected));
    }
    if (entry.end > file_bytes_ - data_begin_) {
      fail(join_message("is cut short: tensor '", entry.name, "' takes offsets ", begin, " to ",
                        data_begin + static_cast<std::uint64_t>(entry.end), ", and the file has ",
                        file_bytes_, " bytes"));
    }
    expected = entry.end;
    entry.begin += data_begin_;
    entry.end += data_begin_;
  }
  if (data_begin_ + expected != file_bytes_) {
    fail(join_message("has ", file_bytes_, " bytes, expected ", data_begin_ + expected,
                      " by its header: something follows the last tensor"));
  }
  return entries;
}

at::Tensor FileReader::read_tensor(const HeaderTensor& entry, std::uint32_t& crc) const {
  const at::Tensor tensor =
      memory_for(join_message("tensor '", entry.name, "' of safetensors file ", path_.string()),
                 entry.shape, entry.type);
  const std::span bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
  crc = 0;
  if (const auto failure = read_bytes(file_.get(), entry.begin, bytes, crc)) {
    fail(*failure, "tensor '" + entry.name + "'");
  }
  return tensor;
}

// Converts an entry of real pairs that is marked as complex.
void FileReader::restore_complex(HeaderTensor& entry, const std::string& dtype) const {
  const Dtype* const known = find_dtype(dtype);
  const bool is_pair = known != nullptr && c10::isComplexType(known->type) &&
                       c10::toRealValueType(known->type) == entry.type && !entry.shape.empty() &&
                       entry.shape.back() == 2;
  if (!is_pair) {
    fail(join_message("has a damaged header: tensor '", entry.name, "' is said to be pairs of ",
                      dtype, ", and is ", find_dtype(entry.type)->name, " ",
                      at::IntArrayRef(entry.shape)));
  }
  entry.type = known->type;
  entry.shape.pop_back();
}

FileHeader FileReader::header() {
  const std::string text = read_header();
  const json document = parse_header(text);
  FileHeader header;
  header.tensors = parse_entries(document);
  header.file_bytes = file_bytes_;
  header.header_bytes = data_begin_;
  // Metadata with a prefix of this library are interpreted; the others are returned to the caller.
  const json metadata = document.value(kMetadataKey, json::object());
  if (!metadata.is_object()) fail("has a damaged header: __metadata__ is not a JSON object");
  for (HeaderTensor& tensor : header.tensors) {
    const auto mark = metadata.find(std::string(kComplexPrefix) + tensor.name);
    if (mark != metadata.end() && mark->is_string()) {
      restore_complex(tensor, mark->get<std::string>());
    }
  }
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) fail(join_message("has metadata '", key, "' that is not a string"));
    if (key.starts_with(kComplexPrefix)) continue;
    if (key.starts_with(kChecksumPrefix)) {
      header.checksums[key.substr(kChecksumPrefix.size())] = value.get<std::string>();
    } else {
      header.metadata[key] = value.get<std::string>();
    }
  }
  const std::uint64_t length = text.size();
  header.header_crc32 =
      update_crc32(crc32_of(std::as_bytes(std::span(&length, 1))), std::as_bytes(std::span(text)));
  return header;
}

TensorFile FileReader::read() {
  FileHeader described = header();
  TensorFile file;
  file.metadata = std::move(described.metadata);
  file.digest = {.bytes = file_bytes_, .crc32 = described.header_crc32};
  for (const HeaderTensor& entry : described.tensors) {
    std::uint32_t crc = 0;
    file.tensors[entry.name] = read_tensor(entry, crc);
    const auto checksum = described.checksums.find(entry.name);
    if (checksum != described.checksums.end() && checksum->second != hexadecimal(crc)) {
      fail(join_message("is damaged: the bytes of tensor '", entry.name, "' at offsets ",
                        entry.begin, " to ", entry.end, " have CRC-32 ", hexadecimal(crc),
                        ", expected ", checksum->second));
    }
    // The digest of the file is computed from those of its parts, without reading it again.
    file.digest.crc32 = join_crc32(file.digest.crc32, crc, entry.end - entry.begin);
  }
  return file;
}

}  // namespace

TensorFile read_safetensors(const std::filesystem::path& path) { return FileReader(path).read(); }

FileHeader read_header(const std::filesystem::path& path) { return FileReader(path).header(); }

}  // namespace trireme::checkpoint
