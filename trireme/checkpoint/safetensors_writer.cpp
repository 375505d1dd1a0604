// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/checkpoint/safetensors_format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

constexpr std::int64_t kAlignment =
    64;  // of the first tensor; a cache line, and what LibTorch allocates

// Name of the tensor's dtype in the format; refuses what the format cannot hold.
std::string_view storable_dtype(const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](std::string_view what, std::string_view hint) {
    throw UsageError(join_message("cannot write tensor '", name, "' to a safetensors file: ", what),
                     hint);
  };
  if (name == kMetadataKey) refuse("the format reserves this name", "rename the tensor");
  if (!tensor.defined()) refuse("it is undefined", "leave it out");
  if (tensor.is_complex()) {
    refuse(
        join_message("the format has no complex numbers, and its dtype is ", tensor.scalar_type()),
        "write at::view_as_real(tensor) and restore it with at::view_as_complex");
  }
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    refuse("it is sparse or quantized, and the format holds dense tensors",
           "convert it to a dense tensor");
  }
  if (tensor.is_meta())
    refuse("it is on the meta device and has no values", "materialise it first");
  const auto* found = std::ranges::find(kDtypes, tensor.scalar_type(), &Dtype::type);
  if (found == kDtypes.end()) {
    refuse(join_message("the format has no dtype ", tensor.scalar_type()),
           "convert it to another dtype");
  }
  return found->name;
}

// The values as one dense block of host memory; the tensor itself where it is that already.
at::Tensor dense(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).resolve_neg().contiguous();
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Length field, JSON and the spaces that align what follows.
std::string encode_header(const json& header) {
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    throw UsageError(join_message("cannot write a safetensors header: ", error.what()),
                     "names and metadata have to be valid UTF-8");
  }
  const auto used = static_cast<std::size_t>(kLengthBytes) + text.size();
  text.append((kAlignment - used % kAlignment) % kAlignment, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  return bytes + text;
}

}  // namespace

FileDigest write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                             const Metadata& metadata) {
  struct Item {
    const std::string* name;
    const at::Tensor* tensor;
    std::uint32_t crc32;
  };
  json header = json::object();
  header[kMetadataKey] = metadata;
  std::vector<Item> items;
  for (const auto& [name, tensor] : tensors) {
    header[name]["dtype"] = storable_dtype(name, tensor);
    items.push_back({&name, &tensor, 0});
  }
  // Wide dtypes first, by name among equals, as the reference writer does: then every tensor is
  // aligned for its dtype although the format allows no gaps.
  std::ranges::sort(items, {}, [](const Item& item) {
    return std::pair(-item_bytes(item.tensor->scalar_type()), std::string_view(*item.name));
  });
  std::int64_t offset = 0;
  for (Item& item : items) {
    item.crc32 = crc32_of(bytes_of(dense(*item.tensor)));
    header[kMetadataKey][std::string(kChecksumPrefix) + *item.name] = hexadecimal(item.crc32);
    const auto bytes = static_cast<std::int64_t>(item.tensor->nbytes());
    header[*item.name]["shape"] = item.tensor->sizes().vec();
    header[*item.name]["data_offsets"] = {offset, offset + bytes};
    offset += bytes;
  }

  const std::string head = encode_header(header);
  FileDigest digest{static_cast<std::int64_t>(head.size()) + offset,
                    crc32_of(std::as_bytes(std::span(head)))};
  AtomicFile file(path);
  file.write(head);
  for (const Item& item : items) {
    const at::Tensor values = dense(*item.tensor);
    file.write(bytes_of(values));
    digest.crc32 = join_crc32(digest.crc32, item.crc32, static_cast<std::int64_t>(values.nbytes()));
  }
  file.commit();
  return digest;
}

}  // namespace trireme::checkpoint
