// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/reader.h>

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>
#include <trireme/checkpoint/crc32.h>
#include <trireme/checkpoint/index_document.h>
#include <trireme/checkpoint/read_bytes.h>
#include <trireme/checkpoint/safetensors_format.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

// Half of what a process may open where nobody has asked for more. Thousands of ranks write
// thousands of files.
constexpr std::size_t kMaximumOpenFiles = 512;

[[noreturn]] void throw_unreadable(const fs::path& path, const ReadFailure& failure) {
  throw_bad_file(path, describe(failure), hint(failure));
}

// A file of the checkpoint whose size and header are what the index says.
UniqueFd open_verified(const fs::path& path, const IndexedFile& expected) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw_bad_file(path, join_message("cannot be read: ", describe_errno(errno)));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw_bad_file(path, "is not a regular file");
  }
  std::vector<std::byte> header(
      static_cast<std::size_t>(std::min<std::int64_t>(expected.header_bytes, status.st_size)));
  if (const auto failure = read_bytes(file.get(), 0, header)) throw_unreadable(path, *failure);
  const bool is_same = crc32_of(header) == expected.header_crc32;
  const bool is_long_enough = status.st_size >= expected.bytes;
  if (is_same && status.st_size != expected.bytes) {
    throw_bad_file(path, join_message(is_long_enough ? "is too long" : "is cut short", ": it has ",
                                      status.st_size, " bytes, expected ", expected.bytes));
  }
  if (is_same) return file;
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

// Dimensions in the order of a range, and back.
at::Tensor in_order(const at::Tensor& tensor, const std::vector<std::int64_t>& order) {
  return order.empty() ? tensor : tensor.permute(order);
}

at::Tensor out_of_order(const at::Tensor& flat, const std::vector<std::int64_t>& shape,
                        const std::vector<std::int64_t>& order) {
  if (order.empty()) return flat.view(shape);
  std::vector<std::int64_t> permuted;
  std::vector<std::int64_t> back(order.size());
  for (std::size_t d = 0; d < order.size(); ++d) {
    permuted.push_back(shape[static_cast<std::size_t>(order[d])]);
    back[static_cast<std::size_t>(order[d])] = static_cast<std::int64_t>(d);
  }
  return flat.view(permuted).permute(back);
}

at::Tensor narrow(at::Tensor tensor, const Box& box, const std::vector<std::int64_t>& origin) {
  for (std::size_t d = 0; d < box.begin.size(); ++d) {
    tensor = tensor.narrow(static_cast<std::int64_t>(d), box.begin[d] - origin[d], box.size[d]);
  }
  return tensor;
}

// Empty sizes where they have nothing in common.
Box intersection(const Box& one, const Box& other) {
  Box both;
  for (std::size_t d = 0; d < one.begin.size(); ++d) {
    const std::int64_t begin = std::max(one.begin[d], other.begin[d]);
    const std::int64_t end = std::min(one.begin[d] + one.size[d], other.begin[d] + other.size[d]);
    both.begin.push_back(begin);
    both.size.push_back(std::max<std::int64_t>(end - begin, 0));
  }
  return both;
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
  at::Tensor read_range(const std::string& name, const IndexedTensor& tensor,
                        const FlatRange& range);
  at::Tensor read_box(const std::string& name, const IndexedTensor& tensor, const Box& box);
  at::Tensor read_whole(const std::string& name, const IndexedTensor& tensor);
};

// Reads bytes of a piece from `begin` on, each block of it with its checksum.
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
      throw_bad_file(where, join_message("is damaged: the bytes of tensor '", name, "' at offsets ",
                                         piece.offset + block_begin, " to ",
                                         piece.offset + block_end, " have CRC-32 ",
                                         hexadecimal(crc), ", expected ", hexadecimal(expected)));
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

at::Tensor Reader::Impl::read_range(const std::string& name, const IndexedTensor& tensor,
                                    const FlatRange& range) {
  const at::Tensor result = at::empty({range.end - range.begin}, tensor.dtype);
  const std::int64_t item = item_bytes(tensor.dtype);
  auto* const data = static_cast<std::byte*>(result.mutable_data_ptr());
  for (const Piece& piece : tensor.pieces) {
    const auto& saved = std::get<FlatRange>(piece.slice);
    const std::int64_t begin = std::max(range.begin, saved.begin);
    const std::int64_t end = std::min(range.end, saved.end);
    if (begin >= end) continue;
    read_piece(
        name, tensor, piece, (begin - saved.begin) * item,
        {data + (begin - range.begin) * item, static_cast<std::size_t>((end - begin) * item)});
  }
  return result;
}

at::Tensor Reader::Impl::read_box(const std::string& name, const IndexedTensor& tensor,
                                  const Box& box) {
  at::Tensor result = at::empty(box.size, tensor.dtype);
  const std::int64_t item = item_bytes(tensor.dtype);
  for (const Piece& piece : tensor.pieces) {
    const Box& saved = std::get<Box>(piece.slice);
    const Box both = intersection(box, saved);
    if (elements(both.size) == 0) continue;
    // All rows of the saved box that have something of it.
    std::int64_t row = 1;
    for (std::size_t d = 1; d < saved.size.size(); ++d) row *= saved.size[d];
    const std::int64_t first = both.begin.empty() ? 0 : both.begin[0] - saved.begin[0];
    std::vector<std::int64_t> sizes = saved.size;
    std::vector<std::int64_t> origin = saved.begin;
    if (!sizes.empty()) {
      sizes[0] = both.size[0];
      origin[0] = both.begin[0];
    }
    const at::Tensor rows = at::empty(sizes, tensor.dtype);
    read_piece(name, tensor, piece, first * row * item,
               {static_cast<std::byte*>(rows.mutable_data_ptr()), rows.nbytes()});
    narrow(result, both, box.begin).copy_(narrow(rows, both, origin));
  }
  return result;
}

at::Tensor Reader::Impl::read_whole(const std::string& name, const IndexedTensor& tensor) {
  if (!tensor.pieces.empty() && std::holds_alternative<Box>(tensor.pieces.front().slice)) {
    return read_box(
        name, tensor,
        {.begin = std::vector<std::int64_t>(tensor.shape.size(), 0), .size = tensor.shape});
  }
  FlatRange all = whole(tensor.shape);
  if (!tensor.pieces.empty()) {
    all.order = std::get<FlatRange>(tensor.pieces.front().slice).order;
  }
  return out_of_order(read_range(name, tensor, all), tensor.shape, all.order).contiguous();
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

at::Tensor Reader::read(const std::string& section_name, const std::string& name) {
  return impl_->read_whole(name, impl_->tensor(section_name, name));
}

at::Tensor Reader::read(const std::string& section_name, const std::string& name,
                        const Slice& slice) {
  const IndexedTensor& tensor = impl_->tensor(section_name, name);
  if (!is_inside(slice, tensor.shape)) {
    throw UsageError(join_message("asked for ", describe(slice), " of tensor '", name,
                                  "' whose shape is ", at::IntArrayRef(tensor.shape)),
                     "ask for a part of it, with as many dimensions");
  }
  if (is_whole(slice, tensor.shape)) return impl_->read_whole(name, tensor).flatten();
  const auto* range = std::get_if<FlatRange>(&slice);
  const Piece* first = tensor.pieces.empty() ? nullptr : tensor.pieces.data();
  if (range != nullptr) {
    const auto* saved = first == nullptr ? nullptr : std::get_if<FlatRange>(&first->slice);
    if (first == nullptr || (saved != nullptr && saved->order == range->order)) {
      return impl_->read_range(name, tensor, *range);
    }
    // `contiguous` first: a whole of one dimension would be a view.
    return in_order(impl_->read_whole(name, tensor), range->order)
        .contiguous()
        .flatten()
        .narrow(0, range->begin, range->end - range->begin)
        .clone();
  }
  const Box& box = std::get<Box>(slice);
  if (first == nullptr || std::holds_alternative<Box>(first->slice)) {
    return impl_->read_box(name, tensor, box);
  }
  const std::vector<std::int64_t> origin(box.begin.size(), 0);
  return narrow(impl_->read_whole(name, tensor), box, origin).clone(at::MemoryFormat::Contiguous);
}

std::vector<std::string> find_damage(const fs::path& path) {
  std::vector<std::string> found;
  const auto note = [&](const auto& read) {
    try {
      read();
    } catch (const CheckpointError& error) {
      // One file that is gone is one line, not one for each of its tensors.
      const std::string line = error.what();
      if (std::ranges::find(found, line) == found.end()) found.push_back(line);
    }
  };
  note([&] {
    Reader reader(path);
    for (const auto& [section, tensors] : reader.index().sections) {
      for (const auto& [name, tensor] : tensors) {
        note([&] { reader.read(section, name); });
      }
    }
    // Files without tensors have a header all the same.
    for (const auto& [name, file] : reader.index().files) {
      note([&] { open_verified(reader.index().format == 0 ? path : path / name, file); });
    }
  });
  return found;
}

}  // namespace trireme::checkpoint
