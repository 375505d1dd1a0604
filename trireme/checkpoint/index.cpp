// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/index.h>

#include <trireme/base/error.h>
#include <trireme/base/input_file.h>
#include <trireme/base/json_depth.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/checkpoint_folder.h>
#include <trireme/checkpoint/crc32.h>
#include <trireme/checkpoint/index_document.h>
#include <trireme/checkpoint/safetensors_format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <system_error>
#include <tuple>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr auto kOwnChecksum = "crc32";
constexpr int kFormat = 2;

// Returns the checksum of a document without its own entry.
std::uint32_t checksum(json document) {
  document.erase(kOwnChecksum);
  const std::string text = document.dump();
  return crc32_of(std::as_bytes(std::span(text)));
}

// Returns a text unchanged if JSON can hold it, otherwise its bytes as hexadecimal digits.
json text_to_json(const std::string& text) {
  try {
    json value = text;
    std::ignore = value.dump();
    return value;
  } catch (const json::exception&) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string digits;
    digits.reserve(2 * text.size());
    for (const char byte : text) {
      const auto value = static_cast<unsigned char>(byte);
      digits += kDigits[value / 16U];
      digits += kDigits[value % 16U];
    }
    return {{"hex", digits}};
  }
}

std::string text_from_json(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  const auto digits = value.at("hex").get<std::string>();
  std::string text;
  text.reserve(digits.size() / 2);
  for (std::size_t place = 0; place + 1 < digits.size(); place += 2) {
    int byte = 0;
    std::from_chars(digits.data() + place, digits.data() + place + 2, byte, 16);
    text += static_cast<char>(byte);
  }
  return text;
}

// Returns an integer. JSON has numbers of any size and fractions, which a cast would silently
// change.
template <typename Integer>
Integer integer_of(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (std::in_range<Integer>(number)) return static_cast<Integer>(number);
  } else if (value.is_number_integer()) {
    const auto number = value.get<std::int64_t>();
    if (std::in_range<Integer>(number)) return static_cast<Integer>(number);
  }
  throw std::range_error(
      join_message(value.dump(), " is not an integer of ", 8 * sizeof(Integer), " bits"));
}

std::int64_t integer_at(const json& object, const char* key) {
  return integer_of<std::int64_t>(object.at(key));
}

template <typename Integer = std::int64_t>
std::vector<Integer> integers_of(const json& list) {
  std::vector<Integer> numbers;
  for (const json& value : list) numbers.push_back(integer_of<Integer>(value));
  return numbers;
}

json entries_to_json(const Entries& entries) {
  json result = json::object();
  for (const auto& [name, text] : entries) result[name] = text_to_json(text);
  return result;
}

Entries entries_from_json(const json& value) {
  Entries entries;
  for (const auto& [name, text] : value.items()) entries[name] = text_from_json(text);
  return entries;
}

// Returns the range of a piece, or null if it is a box.
template <typename Variant>
auto* range_of(Variant& slice) {
  auto* const part = std::get_if<BoxRange>(&slice);
  return part == nullptr ? std::get_if<FlatRange>(&slice) : &part->range;
}

template <typename Variant>
auto* box_of(Variant& slice) {
  auto* const part = std::get_if<BoxRange>(&slice);
  return part == nullptr ? std::get_if<Box>(&slice) : &part->box;
}

json piece_to_json(const Piece& piece) {
  json result{{"file", piece.file}, {"offset", piece.offset}, {"crc32", piece.checksums}};
  if (const Box* const box = box_of(piece.slice)) result["box"] = {box->begin, box->size};
  if (const FlatRange* const range = range_of(piece.slice)) {
    result["range"] = {range->begin, range->end};
    if (!range->order.empty()) result["order"] = range->order;
  }
  return result;
}

Piece piece_from_json(const json& value) {
  Piece piece;
  value.at("file").get_to(piece.file);
  piece.offset = integer_at(value, "offset");
  piece.checksums = integers_of<std::uint32_t>(value.at("crc32"));
  const bool is_range = value.contains("range");
  if (value.contains("box")) {
    piece.slice = is_range ? Slice(BoxRange{}) : Slice(Box{});
    Box& box = *box_of(piece.slice);
    box.begin = integers_of(value.at("box").at(0));
    box.size = integers_of(value.at("box").at(1));
  }
  if (FlatRange* const range = range_of(piece.slice)) {
    range->begin = integer_of<std::int64_t>(value.at("range").at(0));
    range->end = integer_of<std::int64_t>(value.at("range").at(1));
    if (value.contains("order")) range->order = integers_of(value.at("order"));
  }
  return piece;
}

json files_to_json(const Index& index) {
  json result = json::object();
  for (const auto& [name, file] : index.files) {
    result[name] = {{"bytes", file.bytes},
                    {"header_bytes", file.header_bytes},
                    {"header_crc32", file.header_crc32}};
  }
  return result;
}

json sections_to_json(const Index& index) {
  json result = json::object();
  for (const auto& [section, tensors] : index.sections) {
    json& all = result[section] = json::object();
    for (const auto& [name, tensor] : tensors) {
      json pieces = json::array();
      for (const Piece& piece : tensor.pieces) pieces.push_back(piece_to_json(piece));
      all[name] = {
          {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"pieces", pieces}};
    }
  }
  return result;
}

void read_contents(const json& document, Index& index) {
  for (const auto& [name, file] : document.at("files").items()) {
    index.files[name] = {.bytes = integer_at(file, "bytes"),
                         .header_bytes = integer_at(file, "header_bytes"),
                         .header_crc32 = integer_of<std::uint32_t>(file.at("header_crc32"))};
  }
  for (const auto& [section, tensors] : document.at("sections").items()) {
    Section& all = index.sections[section];
    for (const auto& [name, value] : tensors.items()) {
      IndexedTensor& tensor = all[name];
      const auto type = value.at("dtype").get<std::string>();
      const Dtype* const known = find_dtype(type);
      if (known == nullptr) {
        throw CheckpointError(
            join_message("tensor '", name, "' has dtype ", type, ", which is not known here"),
            "read it with the version of Trireme that wrote it");
      }
      tensor.dtype = known->type;
      tensor.shape = integers_of(value.at("shape"));
      for (const json& piece : value.at("pieces")) tensor.pieces.push_back(piece_from_json(piece));
    }
  }
  if (const auto left_out = document.find("left_out"); left_out != document.end()) {
    left_out->get_to(index.left_out);
  }
}

// Returns a name in quotes, on one line whatever it contains.
std::string quoted(const std::string& name) {
  std::string text = json(name).dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/false,
                                     json::error_handler_t::replace);
  text.front() = text.back() = '\'';
  return text;
}

// JSON has no infinite numbers: those are texts, `inf` and `-inf`.
json score_to_json(double score) {
  return std::isinf(score) ? json(shortest_text(score)) : json(score);
}

double score_from_json(const json& value) {
  if (!value.is_string()) return value.get<double>();
  const auto& text = value.get_ref<const std::string&>();
  const auto score = parse_number<double>(text);
  if (!score || std::isnan(*score)) {
    throw std::range_error(join_message("the score ", quoted(text), " is no number"));
  }
  return *score;
}

void check_files(const Index& index, const fs::path& file) {
  for (const auto& [name, own] : index.files) {
    const bool has_header = own.header_bytes >= 0 && own.header_bytes <= own.bytes &&
                            own.header_bytes <= kLengthBytes + kMaximumHeaderBytes;
    if (is_file_name(name) && has_header) continue;
    throw_bad_file(file, join_message("lists the file ", quoted(name), " with ", own.bytes,
                                      " bytes, of which ", own.header_bytes,
                                      " are its header; expected one beside it"));
  }
}

// Checks what the reader relies on: pieces lie within their files and have a checksum for each
// block.
void check_places(const Index& index, const fs::path& file) {
  for (const auto& [section, tensors] : index.sections) {
    for (const auto& [name, tensor] : tensors) {
      for (const Piece& piece : tensor.pieces) {
        const auto found = index.files.find(piece.file);
        const std::int64_t bytes = slice_elements(piece.slice) * item_bytes(tensor.dtype);
        const std::int64_t blocks = bytes == 0 ? 0 : (bytes - 1) / index.block_bytes + 1;
        if (found == index.files.end() || piece.offset < found->second.header_bytes ||
            bytes > found->second.bytes - piece.offset ||
            static_cast<std::int64_t>(piece.checksums.size()) != blocks) {
          throw_bad_file(file, join_message("places tensor '", name, "' ", describe(piece.slice),
                                            " where it cannot be"));
        }
      }
    }
  }
}

// Compares the file `order` with the index. A checkpoint copied from another one may have a wrong
// number.
void check_order(const fs::path& folder, std::int64_t order) {
  const fs::path file = folder / kOrderFile;
  constexpr std::int64_t kMostBytes = 64;
  InputFile input = open_input(file);
  if (input.error_number == ENOENT) return;
  const auto text = read_text(input, kMostBytes);
  if (!text) throw_bad_file(file, input.problem);
  if (*text == join_message(order, "\n")) return;
  throw_bad_file(
      file, join_message("is damaged: it should hold ", order, ", the number in ", kIndexFile));
}

// Returns the text of a document with its checksum added. The checksum is that of the document
// without it.
std::string seal(json document) {
  try {
    document[kOwnChecksum] = checksum(document);
    return document.dump(1) + "\n";
  } catch (const json::exception& error) {
    throw UsageError(join_message("cannot write the index of a checkpoint: ", error.what()),
                     "names of tensors and entries have to be valid UTF-8");
  }
}

// Reads a document and verifies its checksum. `format` is the expected format.
json read_sealed(const fs::path& file, int format) {
  InputFile input = open_input(file);
  const auto content = read_text(input, kMostIndexBytes);
  if (!content) {
    throw_bad_file(file, input.problem, "give the folder of one checkpoint, prefix-<epoch>_<step>");
  }
  const std::string& text = *content;
  if (json_depth(text) > kDeepestJson) {
    throw_bad_file(file, join_message("is damaged: more than ", kDeepestJson,
                                      " lists and objects lie in each other"));
  }
  json document = json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) {
    throw_bad_file(file, join_message("is cut short or damaged: its ", text.size(),
                                      " bytes are not a JSON object"));
  }
  const json found = document.value("format", json());
  if (found != format) {
    throw_bad_file(file, join_message("is of format ", found.dump(), ", expected ", format),
                   "read it with the version of Trireme that wrote it");
  }
  // Compares the text as well, because a flipped bit may change the text but not its meaning.
  const bool is_own_text =
      text == document.dump(1) + "\n" || (format == 1 && text == document.dump(2) + "\n");
  if (!is_own_text || document.value(kOwnChecksum, json()) != checksum(document)) {
    throw_bad_file(file, "is damaged: its checksum does not match");
  }
  return document;
}

}  // namespace

void throw_bad_file(const fs::path& file, const std::string& what, std::string_view hint) {
  throw CheckpointError(join_message("checkpoint file ", file.string(), " ", what), hint);
}

bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

std::string_view dtype_name(at::ScalarType dtype) {
  const Dtype* const known = find_dtype(dtype);
  return known == nullptr ? "?" : known->name;
}

std::string write_index(const Index& index) {
  // nlohmann::json sorts keys, so equal indices have equal text.
  json ranks = json::array();
  for (const Entries& entries : index.state.of_ranks) ranks.push_back(entries_to_json(entries));
  json document{{"format", kFormat},
                {"order", index.order},
                {"written_at", index.written_at},
                {"block_bytes", index.block_bytes},
                {"epoch", index.state.epoch},
                {"step", index.state.step},
                {"entries", entries_to_json(index.state.entries)},
                {"ranks", std::move(ranks)},
                {"files", files_to_json(index)},
                {"sections", sections_to_json(index)}};
  if (!index.left_out.empty()) document["left_out"] = index.left_out;
  if (index.score && !std::isnan(*index.score)) document["score"] = score_to_json(*index.score);
  return seal(std::move(document));
}

StateOfFormat1 read_state_of_format_1(const fs::path& file) {
  const json document = read_sealed(file, 1);
  StateOfFormat1 result;
  try {
    result.state.epoch = integer_at(document, "epoch");
    result.state.step = integer_at(document, "step");
    document.at("entries").get_to(result.state.entries);
    for (const auto& [name, digest] : document.at("files").items()) {
      result.files[name] = {.bytes = integer_at(digest, "bytes"),
                            .crc32 = integer_of<std::uint32_t>(digest.at("crc32"))};
    }
  } catch (const json::exception& error) {
    throw_bad_file(file, join_message("lacks something: ", error.what()));
  } catch (const std::range_error& error) {
    throw_bad_file(file, join_message("has a damaged number: ", error.what()));
  }
  for (const auto& [name, digest] : result.files) {
    if (is_file_name(name)) continue;
    throw_bad_file(file, join_message("lists the file ", quoted(name), ", expected one beside it"));
  }
  return result;
}

Index read_index(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return index_of_file(path);
  const fs::path file = path / kIndexFile;
  // A folder without index.json but with state.json is of format 1.
  if (!fs::exists(file, ignored) && fs::exists(path / kStateFile, ignored)) {
    return index_of_format_1(path);
  }
  const json document = read_sealed(file, kFormat);
  Index index;
  try {
    index.order = integer_at(document, "order");
    index.written_at = integer_at(document, "written_at");
    index.block_bytes = integer_at(document, "block_bytes");
    index.state.epoch = integer_at(document, "epoch");
    index.state.step = integer_at(document, "step");
    if (document.contains("score")) index.score = score_from_json(document.at("score"));
    index.state.entries = entries_from_json(document.at("entries"));
    for (const json& entries : document.at("ranks")) {
      index.state.of_ranks.push_back(entries_from_json(entries));
    }
    read_contents(document, index);
  } catch (const json::exception& error) {
    throw_bad_file(file, join_message("lacks something: ", error.what()));
  } catch (const std::range_error& error) {
    throw_bad_file(file, join_message("has a damaged number: ", error.what()));
  }
  if (index.block_bytes <= 0) {
    throw_bad_file(file, join_message("has blocks of ", index.block_bytes, " bytes"));
  }
  check_files(index, file);
  for (const auto& [section, tensors] : index.sections) {
    for (const auto& [name, tensor] : tensors) check_cover(name, tensor, file.string());
  }
  check_places(index, file);
  check_order(path, index.order);
  return index;
}

std::string describe_own(const Index& own) {
  try {
    return json{{"own", entries_to_json(own.state.own)},
                {"files", files_to_json(own)},
                {"left_out", own.left_out},
                {"sections", sections_to_json(own)}}
        .dump();
  } catch (const json::exception& error) {
    throw UsageError(join_message("cannot write the index of a checkpoint: ", error.what()),
                     "names of tensors and entries have to be valid UTF-8");
  }
}

Index join_indices(const std::vector<std::string>& by_rank) {
  Index all;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const json document = json::parse(by_rank[rank]);
    all.state.of_ranks.push_back(entries_from_json(document.at("own")));
    Index own;
    read_contents(document, own);
    // File names contain the rank, so they cannot collide.
    all.files.merge(own.files);
    for (const auto& [section, names] : own.left_out) {
      all.left_out[section].insert(names.begin(), names.end());
    }
    for (auto& [section, tensors] : own.sections) {
      for (auto& [name, tensor] : tensors) {
        IndexedTensor& joined =
            all.sections[section]
                .try_emplace(
                    name, IndexedTensor{.dtype = tensor.dtype, .shape = tensor.shape, .pieces = {}})
                .first->second;
        if (joined.dtype != tensor.dtype || joined.shape != tensor.shape) {
          throw CheckpointError(
              join_message("ranks disagree on tensor '", name, "': ", dtype_name(tensor.dtype), " ",
                           at::IntArrayRef(tensor.shape), " on rank ", rank, ", ",
                           dtype_name(joined.dtype), " ", at::IntArrayRef(joined.shape),
                           " on a rank before it"),
              "save the same module on all ranks");
        }
        joined.pieces.insert(joined.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
      }
    }
  }
  for (const auto& [section, tensors] : all.sections) {
    for (const auto& [name, tensor] : tensors) check_cover(name, tensor, "the checkpoint");
  }
  return all;
}

}  // namespace trireme::checkpoint
