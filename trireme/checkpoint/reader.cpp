// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/reader.h>

#include <trireme/base/error.h>
#include <trireme/base/input_file.h>
#include <trireme/base/unique_fd.h>
#include <trireme/checkpoint/crc32.h>
#include <trireme/checkpoint/index_document.h>
#include <trireme/checkpoint/read_bytes.h>
#include <trireme/checkpoint/region.h>
#include <trireme/checkpoint/safetensors_format.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

// Half of the usual limit of open files of a process. Thousands of ranks write thousands of files.
constexpr std::size_t kMaximumOpenFiles = 512;

// The number of bytes that are read at a time from a piece that must be taken apart.
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

[[noreturn]] void throw_unreadable(const fs::path& path, const ReadFailure& failure) {
  throw_bad_file(path, describe(failure), hint(failure));
}

[[noreturn]] void throw_damaged(const fs::path& path, const std::string& name, std::int64_t begin,
                                std::int64_t end, std::uint32_t crc, std::uint32_t expected) {
  throw_bad_file(path, join_message("is damaged: the bytes of tensor '", name, "' at offsets ",
                                    begin, " to ", end, " have CRC-32 ", hexadecimal(crc),
                                    ", expected ", hexadecimal(expected)));
}

// Opens a file and compares its size and header with the index. Distinguishes a damaged header from
// an intact file of another checkpoint.
UniqueFd open_verified(const fs::path& path, const IndexedFile& expected) {
  InputFile input = open_input(path);
  if (!input) throw_bad_file(path, input.problem);
  std::vector<std::byte> header(
      static_cast<std::size_t>(std::min(expected.header_bytes, input.bytes)));
  if (const auto failure = read_bytes(input.file.get(), 0, header))
    throw_unreadable(path, *failure);
  const bool is_same = crc32_of(header) == expected.header_crc32;
  const bool is_long_enough = input.bytes >= expected.bytes;
  if (is_same && input.bytes != expected.bytes) {
    throw_bad_file(path, join_message(is_long_enough ? "is too long" : "is cut short", ": it has ",
                                      input.bytes, " bytes, expected ", expected.bytes));
  }
  if (is_same) return std::move(input.file);
  bool is_of_another = true;
  try {
    read_header(path);
  } catch (const CheckpointError&) {
    is_of_another = false;
  }
  if (is_of_another) {
    throw_bad_file(path,
                   "is not the one that this checkpoint was written with: it is of another "
                   "checkpoint, or its header is damaged");
  }
  throw_bad_file(path, "is damaged: the checksum of its header does not match");
}

}  // namespace

struct Reader::Impl {
  fs::path path;
  Index index;
  std::map<std::string, UniqueFd> open_files;
  std::atomic<std::int64_t> bytes_read = 0;

  fs::path file_path(const std::string& name) const {
    return index.format == 0 ? path : path / name;
  }

  int file(const std::string& name) {
    auto found = open_files.find(name);
    if (found == open_files.end()) {
      if (open_files.size() >= kMaximumOpenFiles) open_files.erase(open_files.begin());
      found = open_files.emplace(name, open_verified(file_path(name), index.files.at(name))).first;
    }
    return found->second.get();
  }

  const IndexedTensor& tensor(const std::string& section, const std::string& name) const;
  void read_piece(const std::string& name, const IndexedTensor& tensor, const Piece& piece,
                  std::int64_t begin, std::span<std::byte> bytes);
  void verify_piece(const std::string& name, const IndexedTensor& tensor, const Piece& piece);
  void read_scattered(const std::string& name, const IndexedTensor& tensor, const Piece& piece,
                      const Region& saved, const Target& target);
  void read_block(const std::string& name, const Piece& piece, std::optional<std::uint32_t> crc,
                  std::int64_t first, const Region& block, const Target& target);
  at::Tensor read_region(const std::string& name, const IndexedTensor& tensor, Region wanted);
};

// Reads bytes of a piece from `begin` on and verifies the checksum of each block. A block that is
// only partly wanted is read completely into a buffer.
void Reader::Impl::read_piece(const std::string& name, const IndexedTensor& tensor,
                              const Piece& piece, std::int64_t begin, std::span<std::byte> bytes) {
  if (bytes.empty()) return;
  const int handle = file(piece.file);
  const fs::path where = file_path(piece.file);
  const std::int64_t all = slice_elements(piece.slice) * item_bytes(tensor.dtype);
  const std::int64_t end = begin + static_cast<std::int64_t>(bytes.size());
  if (piece.checksums.empty()) {
    if (const auto failure = read_bytes(handle, piece.offset + begin, bytes)) {
      throw_unreadable(where, *failure);
    }
    bytes_read += end - begin;
    return;
  }
  const std::int64_t size = index.block_bytes;
  const auto read_block = [&](std::int64_t block) {
    const std::int64_t block_begin = block * size;
    const std::int64_t block_end = std::min(block_begin + size, all);
    const std::int64_t from = std::max(begin, block_begin);
    const std::int64_t to = std::min(end, block_end);
    const auto wanted =
        bytes.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - from));
    std::vector<std::byte> beside;
    std::span<std::byte> target = wanted;
    if (from > block_begin || to < block_end) {
      beside.resize(static_cast<std::size_t>(block_end - block_begin));
      target = beside;
    }
    std::uint32_t crc = 0;
    if (const auto failure = read_bytes(handle, piece.offset + block_begin, target, crc)) {
      throw_unreadable(where, *failure);
    }
    bytes_read += block_end - block_begin;
    const std::uint32_t expected = piece.checksums[static_cast<std::size_t>(block)];
    if (crc != expected) {
      throw_damaged(where, name, piece.offset + block_begin, piece.offset + block_end, crc,
                    expected);
    }
    if (!beside.empty()) {
      std::memcpy(wanted.data(), beside.data() + (from - block_begin), wanted.size());
    }
  };
  at::parallel_for(begin / size, (end - 1) / size + 1, 1,
                   [&](std::int64_t first, std::int64_t last) {
                     for (std::int64_t block = first; block < last; ++block) read_block(block);
                   });
}

// Verifies all checksums of a piece with a megabyte of memory per thread.
void Reader::Impl::verify_piece(const std::string& name, const IndexedTensor& tensor,
                                const Piece& piece) {
  const int handle = file(piece.file);
  const fs::path where = file_path(piece.file);
  const std::int64_t all = slice_elements(piece.slice) * item_bytes(tensor.dtype);
  const std::int64_t size = piece.checksums.empty() ? all : std::min(index.block_bytes, all);
  if (all == 0) return;
  at::parallel_for(0, (all - 1) / size + 1, 1, [&](std::int64_t first, std::int64_t last) {
    std::vector<std::byte> chunk(static_cast<std::size_t>(std::min(size, kChunkBytes)));
    for (std::int64_t block = first; block < last; ++block) {
      const std::int64_t begin = piece.offset + block * size;
      const std::int64_t end = piece.offset + std::min((block + 1) * size, all);
      std::uint32_t crc = 0;
      for (std::int64_t offset = begin; offset < end; offset += kChunkBytes) {
        const auto part =
            std::span(chunk).first(static_cast<std::size_t>(std::min(kChunkBytes, end - offset)));
        if (const auto failure = read_bytes(handle, offset, part, crc)) {
          throw_unreadable(where, *failure);
        }
        bytes_read += static_cast<std::int64_t>(part.size());
      }
      if (piece.checksums.empty()) continue;
      const std::uint32_t expected = piece.checksums[static_cast<std::size_t>(block)];
      if (crc != expected) throw_damaged(where, name, begin, end, crc, expected);
    }
  });
}

// Reads the block of a piece that begins with element `first`, chunk by chunk, and copies the
// wanted elements. With a checksum all chunks are read, otherwise only the wanted parts.
void Reader::Impl::read_block(const std::string& name, const Piece& piece,
                              std::optional<std::uint32_t> expected, std::int64_t first,
                              const Region& block, const Target& target) {
  if (!target.common_part(block)) return;
  const int handle = file(piece.file);
  const fs::path where = file_path(piece.file);
  const std::int64_t item = target.values().element_size();
  const std::int64_t at_once = kChunkBytes / item;
  const std::int64_t all = block.elements();
  std::uint32_t crc = 0;
  for (std::int64_t begin = 0; begin < all; begin += at_once) {
    std::int64_t from = begin;
    std::int64_t to = std::min(begin + at_once, all);
    const auto common = target.common_part(block.part(from, to));
    if (!expected) {
      if (!common) continue;
      to = from + common->end;
      from += common->begin;
    }
    const at::Tensor values = at::empty({to - from}, target.values().options());
    const std::span<std::byte> bytes(static_cast<std::byte*>(values.mutable_data_ptr()),
                                     values.nbytes());
    if (const auto failure = read_bytes(handle, piece.offset + (first + from) * item, bytes, crc)) {
      throw_unreadable(where, *failure);
    }
    bytes_read += static_cast<std::int64_t>(bytes.size());
    if (common) target.copy_from(block.part(from, to), values);
  }
  if (!expected || crc == *expected) return;
  throw_damaged(where, name, piece.offset + first * item, piece.offset + (first + all) * item, crc,
                *expected);
}

// Copies the wanted elements of a piece whose elements are in another order than those of the
// target.
void Reader::Impl::read_scattered(const std::string& name, const IndexedTensor& tensor,
                                  const Piece& piece, const Region& saved, const Target& target) {
  if (!target.common_part(saved)) return;
  const std::int64_t item = item_bytes(tensor.dtype);
  const bool has_checksums = !piece.checksums.empty();
  const std::int64_t size = has_checksums ? index.block_bytes : kChunkBytes;
  if (size % item != 0) {  // Written by another program; blocks end within elements.
    const at::Tensor values =
        memory_for(join_message("a part of tensor '", name, "'"), {saved.elements()}, tensor.dtype);
    read_piece(name, tensor, piece, 0,
               {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
    target.copy_from(saved, values);
    return;
  }
  file(piece.file);  // Opens the file before the threads use it.
  const std::int64_t per_block = size / item;
  const std::int64_t all = saved.elements();
  at::parallel_for(0, (all - 1) / per_block + 1, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t first = block * per_block;
      const Region region = saved.part(first, first + std::min(per_block, all - first));
      const auto crc = has_checksums
                           ? std::optional(piece.checksums[static_cast<std::size_t>(block)])
                           : std::nullopt;
      read_block(name, piece, crc, first, region, target);
    }
  });
}

// Returns [n] elements in the order of the region.
at::Tensor Reader::Impl::read_region(const std::string& name, const IndexedTensor& tensor,
                                     Region wanted) {
  // Opens the files first, so that no memory is allocated for data that does not exist.
  for (const Piece& piece : tensor.pieces) file(piece.file);
  const at::Tensor values = memory_for(join_message("tensor '", name, "' of ", path.string()),
                                       {wanted.elements()}, tensor.dtype);
  const Target target(std::move(wanted), values);
  const Region& region = target.region();
  const std::int64_t item = item_bytes(tensor.dtype);
  auto* const data = static_cast<std::byte*>(target.values().mutable_data_ptr());
  for (const Piece& piece : tensor.pieces) {
    const Region saved = region_of(piece.slice, tensor.shape);
    const std::int64_t begin = std::max(region.begin, saved.begin);
    const std::int64_t end = std::min(region.end, saved.end);
    // A small part of a large block is read in chunks, to avoid a buffer for the whole block.
    const bool is_large = !piece.checksums.empty() && index.block_bytes > kChunkBytes &&
                          end - begin < saved.elements();
    if (is_large || !counts_alike(saved, region)) {
      read_scattered(name, tensor, piece, saved, target);
      continue;
    }
    if (begin >= end) continue;
    read_piece(
        name, tensor, piece, (begin - saved.begin) * item,
        {data + (begin - region.begin) * item, static_cast<std::size_t>((end - begin) * item)});
  }
  return target.values();
}

Reader::Reader(fs::path path) : impl_(std::make_unique<Impl>()) {
  impl_->index = read_index(path);
  impl_->path = std::move(path);
}
Reader::Reader(Reader&&) noexcept = default;
Reader::~Reader() = default;

const fs::path& Reader::path() const noexcept { return impl_->path; }

const Index& Reader::index() const noexcept { return impl_->index; }

std::int64_t Reader::bytes_read() const noexcept { return impl_->bytes_read; }

const Section& Reader::section(const std::string& name) const {
  static const Section none;
  const auto found = impl_->index.sections.find(name);
  return found == impl_->index.sections.end() ? none : found->second;
}

const std::set<std::string>& Reader::left_out(const std::string& section) const {
  static const std::set<std::string> none;
  const auto found = impl_->index.left_out.find(section);
  return found == impl_->index.left_out.end() ? none : found->second;
}

std::string Reader::describe_section(const std::string& name) const {
  const std::string* only = nullptr;
  for (const auto& [tensor_name, tensor] : section(name)) {
    for (const Piece& piece : tensor.pieces) {
      if (only != nullptr && *only != piece.file) return path().string();
      only = &piece.file;
    }
  }
  return only == nullptr ? path().string() : impl_->file_path(*only).string();
}

const IndexedTensor& Reader::Impl::tensor(const std::string& section,
                                          const std::string& name) const {
  const auto tensors = index.sections.find(section);
  if (tensors != index.sections.end()) {
    const auto found = tensors->second.find(name);
    if (found != tensors->second.end()) return found->second;
  }
  throw UsageError(
      join_message(path.string(), " has no tensor '", name, "' in its section ", section),
      "trireme checkpoint inspect lists what there is");
}

void Reader::verify(const std::string& section_name, const std::string& name) {
  const IndexedTensor& tensor = impl_->tensor(section_name, name);
  for (const Piece& piece : tensor.pieces) impl_->verify_piece(name, tensor, piece);
}

at::Tensor Reader::read(const std::string& section_name, const std::string& name) {
  const IndexedTensor& tensor = impl_->tensor(section_name, name);
  return impl_->read_region(name, tensor, region_of(whole(tensor.shape), tensor.shape))
      .view(tensor.shape);
}

at::Tensor Reader::read(const std::string& section_name, const std::string& name,
                        const Slice& slice) {
  const IndexedTensor& tensor = impl_->tensor(section_name, name);
  if (!is_inside(slice, tensor.shape)) {
    throw UsageError(join_message("asked for ", describe(slice), " of tensor '", name,
                                  "' whose shape is ", at::IntArrayRef(tensor.shape)),
                     "ask for a part of it, with as many dimensions");
  }
  const at::Tensor values = impl_->read_region(name, tensor, region_of(slice, tensor.shape));
  const Box* const box = std::get_if<Box>(&slice);
  return box == nullptr ? values : values.view(box->size);
}

std::vector<std::string> find_damage(const fs::path& path) {
  std::vector<std::string> found;
  const auto note = [&](const auto& read) {
    try {
      read();
    } catch (const CheckpointError& error) {
      // A missing file gives one line, not one for each of its tensors.
      const std::string line = error.what();
      if (std::ranges::find(found, line) == found.end()) found.push_back(line);
    }
  };
  note([&] {
    Reader reader(path);
    for (const auto& [section, tensors] : reader.index().sections) {
      for (const auto& [name, tensor] : tensors) {
        note([&] { reader.verify(section, name); });
      }
    }
    // Files without tensors also have a header to verify.
    for (const auto& [name, file] : reader.index().files) {
      note([&] { open_verified(reader.index().format == 0 ? path : path / name, file); });
    }
  });
  return found;
}

}  // namespace trireme::checkpoint
