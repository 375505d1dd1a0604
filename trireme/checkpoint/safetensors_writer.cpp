// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/crc32.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/checkpoint/safetensors_format.h>
#include <trireme/tensor/distributed_tensor.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

// The alignment of the first tensor: a cache line, and the alignment of LibTorch's allocator.
constexpr std::int64_t kAlignment = 64;

// Throws the UsageError for a tensor that cannot be written.
[[noreturn]] void refuse(const std::string& name, std::string_view what, std::string_view hint) {
  throw UsageError(join_message("cannot write tensor '", name, "' to a safetensors file: ", what),
                   hint);
}

}  // namespace

void check_storable(const std::string& name, const at::Tensor& tensor) {
  if (name == kMetadataKey) refuse(name, "the format reserves this name", "rename the tensor");
  if (!tensor.defined()) refuse(name, "it is undefined", "leave it out");
  if (has_layout(tensor)) {
    refuse(name, join_message("it is a distributed tensor, ", trireme::describe(tensor)),
           "write checkpoint::full_tensors, which all ranks of its mesh call, or save a checkpoint "
           "and write that to a file with export_safetensors");
  }
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    refuse(name, "it is sparse or quantized, and the format holds dense tensors",
           "convert it to a dense tensor");
  }
  if (tensor.is_meta())
    refuse(name, "it is on the meta device and has no values", "materialise it first");
  if (find_dtype(tensor.scalar_type()) == nullptr) {
    refuse(name, join_message("the format has no dtype ", tensor.scalar_type()),
           "convert it to another dtype");
  }
}

at::Tensor dense(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

void sort_for_file(std::vector<HeaderTensor>& tensors) {
  std::ranges::sort(tensors, {}, [](const HeaderTensor& tensor) {
    return std::pair(-item_bytes(tensor.type), std::string_view(tensor.name));
  });
}

std::string encode_header(std::vector<HeaderTensor>& tensors, const Metadata& metadata,
                          const std::map<std::string, std::uint32_t>& checksums) {
  json header = json::object();
  json texts = metadata;
  std::int64_t offset = 0;
  for (HeaderTensor& tensor : tensors) {
    std::int64_t bytes = item_bytes(tensor.type);
    for (const std::int64_t size : tensor.shape) bytes *= size;
    tensor.begin = offset;
    tensor.end = offset += bytes;
    // A complex tensor is written as pairs of real numbers; its dtype goes to the metadata.
    at::ScalarType type = tensor.type;
    std::vector<std::int64_t> shape = tensor.shape;
    if (c10::isComplexType(type)) {
      texts[std::string(kComplexPrefix) + tensor.name] = find_dtype(type)->name;
      type = c10::toRealValueType(type);
      shape.push_back(2);
    }
    header[tensor.name] = {{"dtype", find_dtype(type)->name},
                           {"shape", shape},
                           {"data_offsets", {tensor.begin, tensor.end}}};
  }
  for (const auto& [name, checksum] : checksums) {
    texts[std::string(kChecksumPrefix) + name] = hexadecimal(checksum);
  }
  header[kMetadataKey] = std::move(texts);
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    throw UsageError(join_message("cannot write a safetensors header: ", error.what()),
                     "names and metadata have to be valid UTF-8");
  }
  // Spaces after the JSON text are allowed by the format and align the data.
  const auto used = static_cast<std::size_t>(kLengthBytes) + text.size();
  text.append((kAlignment - used % kAlignment) % kAlignment, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += text;
  for (HeaderTensor& tensor : tensors) {
    tensor.begin += static_cast<std::int64_t>(bytes.size());
    tensor.end += static_cast<std::int64_t>(bytes.size());
  }
  return bytes;
}

FileDigest write_safetensors_from(const std::filesystem::path& path, const TensorSources& tensors,
                                  const Metadata& metadata) {
  std::vector<HeaderTensor> items;
  std::map<std::string, std::uint32_t> checksums;
  // Makes the values of a tensor. A source must return what it declared, because the header is
  // written first.
  const auto values_of = [](const std::string& name, const TensorSource& source) {
    const at::Tensor values = source.values();
    check_storable(name, values);
    TRIREME_CHECK(values.sizes() == at::IntArrayRef(source.shape) &&
                  values.scalar_type() == source.dtype);
    return dense(values);
  };
  for (const auto& [name, source] : tensors) {
    items.push_back({.name = name, .type = source.dtype, .shape = source.shape});
    checksums[name] = crc32_of(bytes_of(values_of(name, source)));
  }
  // The header needs all checksums, so every tensor is made once for its checksum and once to be
  // written.
  sort_for_file(items);
  const std::string head = encode_header(items, metadata, checksums);
  FileDigest digest{static_cast<std::int64_t>(head.size()),
                    crc32_of(std::as_bytes(std::span(head)))};
  AtomicFile file(path);
  file.write(head);
  for (const HeaderTensor& item : items) {
    const at::Tensor values = values_of(item.name, tensors.at(item.name));
    const std::uint32_t checksum = checksums.at(item.name);
    // Detects a tensor that another thread changed between the two passes; the file would be
    // invalid.
    if (crc32_of(bytes_of(values)) != checksum) {
      throw CheckpointError(join_message("cannot write ", path.string(), ": tensor '", item.name,
                                         "' changed while it was written"),
                            "write it when nobody else works with it, or write a copy");
    }
    file.write(bytes_of(values));
    const auto bytes = static_cast<std::int64_t>(values.nbytes());
    digest.crc32 = join_crc32(digest.crc32, checksum, bytes);
    digest.bytes += bytes;
  }
  file.commit();
  return digest;
}

FileDigest write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                             const Metadata& metadata) {
  TensorSources sources;
  for (const auto& [name, tensor] : tensors) {
    check_storable(name, tensor);
    sources[name] = {.shape = tensor.sizes().vec(),
                     .dtype = tensor.scalar_type(),
                     .values = [&tensor] { return tensor; }};
  }
  return write_safetensors_from(path, sources, metadata);
}

}  // namespace trireme::checkpoint
