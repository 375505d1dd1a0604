// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/save_steps.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/warning.h>
#include <trireme/checkpoint/consensus.h>
#include <trireme/checkpoint/crc32.h>
#include <trireme/checkpoint/safetensors_format.h>
#include <trireme/tensor/distributed_tensor.h>

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <map>
#include <numeric>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

Retention retention_of(const SaveOptions& options) {
  return {.last = options.keep,
          .best = options.keep_best,
          .higher_is_better = options.higher_is_better,
          .every = options.keep_every};
}

void check_options(const SaveOptions& options) {
  check(retention_of(options));
  if (!options.folder.empty()) return;
  throw UsageError("a checkpoint is to be saved, and SaveOptions::folder is empty",
                   "give the folder that checkpoints go to");
}

void check_part(const TensorPart& part) {
  const bool is_section =
      !part.section.empty() && std::ranges::all_of(part.section, [](char letter) {
        return (letter >= 'a' && letter <= 'z') || letter == '_';
      });
  if (!is_section) {
    throw UsageError(
        join_message("tensor '", part.name, "' is to go to the section '", part.section, "'"),
        "name it by lower-case letters, such as model");
  }
  if (!part.local.defined()) {
    throw UsageError(join_message("the part ", describe(part.slice), " of tensor '", part.name,
                                  "' is an undefined tensor"),
                     "leave it out, or give one without elements");
  }
  if (has_layout(part.local)) {
    throw UsageError(join_message("the part ", describe(part.slice), " of tensor '", part.name,
                                  "' is a distributed tensor, ", trireme::describe(part.local)),
                     "make parts of distributed tensors with checkpoint::part_of");
  }
  if (part.local.numel() == slice_elements(part.slice)) return;
  throw UsageError(
      join_message("the part ", describe(part.slice), " of tensor '", part.name, "' has ",
                   slice_elements(part.slice), " elements, and its tensor ", part.local.sizes()),
      "give the part that the slice says");
}

// Returns the ranks that hold a part; an empty list if only this rank does.
std::vector<int> holders_of(const TensorPart& part, const comm::Group& group) {
  std::vector<int> holders = part.holders;
  if (part.is_replicated) {
    holders.resize(static_cast<std::size_t>(group.size()));
    std::iota(holders.begin(), holders.end(), 0);
  }
  if (holders.empty()) return holders;
  const bool is_list =
      std::ranges::adjacent_find(holders, std::greater_equal<>()) == holders.end() &&
      std::ranges::binary_search(holders, group.rank()) && holders.front() >= 0 &&
      holders.back() < group.size();
  if (is_list) return holders;
  throw UsageError(join_message("the part ", describe(part.slice), " of tensor '", part.name,
                                "' is said to be held by the ranks ", c10::ArrayRef<int>(holders),
                                " of ", group.size(), ", and rank ", group.rank(), " gives it"),
                   "list ranks of the group that saves, each once, in ascending order");
}

std::string file_name(const std::string& section, const comm::Group& group) {
  if (group.size() == 1) return section + ".safetensors";
  std::array<char, 32> numbers{};
  std::snprintf(numbers.data(), numbers.size(), "-%05d-of-%05d", group.rank(), group.size());
  return section + numbers.data() + ".safetensors";
}

bool fits(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

// Writes the files of this rank.
Index write_own(const fs::path& folder, const Content& own, const comm::Group& group,
                FileLayer& files, CopyOnWrite* tensors) {
  std::map<std::string, std::vector<TensorPart>> sections;
  for (const TensorPart& part : own.parts) sections[part.section].push_back(part);
  Index index;
  index.state.own = own.state.own;
  index.left_out = own.left_out;
  for (const auto& [section, parts] : sections) {
    write_part_file(folder, file_name(section, group), parts, files, index, tensors);
  }
  return index;
}

// Adds the parts of the index that are not about tensors.
void describe_whole(const SaveOptions& options, const State& state, Index& index) {
  index.written_at = std::chrono::duration_cast<std::chrono::seconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  index.score = options.score;
  index.block_bytes = kBlockBytes;
  index.state.epoch = state.epoch;
  index.state.step = state.step;
  index.state.entries = state.entries;
}

// Rejects patterns that match nothing: such a pattern is a mistake, and its tensors would be saved.
void check_patterns(const SaveOptions& options, const Index& index) {
  for (const std::string& pattern : options.leave_out) {
    const auto fits_one = [&](const auto& section) {
      return std::ranges::any_of(section.second,
                                 [&](const std::string& name) { return fits(pattern, name); });
    };
    if (std::ranges::any_of(index.left_out, fits_one)) continue;
    throw UsageError(join_message("SaveOptions::leave_out has the pattern '", pattern,
                                  "', which fits no parameter and no buffer"),
                     "patterns are of whole names: `rotary.*` fits all below rotary, `*.cos` all "
                     "that end so");
  }
}

// Removes earlier data, but only warns on failure. They take space, but that is no reason to stop
// training.
void try_to_remove(const SaveOptions& options, const std::function<void()>& remove) {
  try {
    remove();
  } catch (const std::exception& error) {
    warn("what was to go from ", options.folder.string(),
         " is still there, and saving goes on: ", message_of(error));
  }
}

// Calls `use` with all bytes of a part, in blocks that have one checksum each.
void for_each_block(const TensorPart& part, CopyOnWrite* tensors,
                    const std::function<void(std::span<const std::byte>)>& use) {
  if (tensors != nullptr) return tensors->read(part, kBlockBytes, use);
  const at::Tensor values = dense(part.local);
  for (auto bytes = bytes_of(values); !bytes.empty();) {
    const auto block = bytes.first(std::min(bytes.size(), static_cast<std::size_t>(kBlockBytes)));
    use(block);
    bytes = bytes.subspan(block.size());
  }
}

// Returns the checksum of all bytes from those of their blocks.
std::uint32_t join_all(const std::vector<std::uint32_t>& checksums, std::int64_t bytes) {
  std::uint32_t all = 0;
  for (const std::uint32_t checksum : checksums) {
    const std::int64_t block = std::min(bytes, kBlockBytes);
    all = join_crc32(all, checksum, block);
    bytes -= block;
  }
  return all;
}

std::string name_in_file(const TensorPart& part) {
  return is_whole(part.slice, part.shape) ? part.name : part.name + describe(part.slice);
}

}  // namespace

std::vector<TensorPart> choose_own(const std::vector<TensorPart>& parts, const comm::Group& group) {
  std::vector<TensorPart> own;
  std::map<std::vector<int>, std::vector<const TensorPart*>> shared;
  for (const TensorPart& part : parts) {
    check_part(part);
    if (part.local.numel() == 0 && elements(part.shape) > 0) continue;
    const std::vector<int> holders = holders_of(part, group);
    if (holders.empty()) {
      own.push_back(part);
    } else {
      shared[holders].push_back(&part);
    }
  }
  for (auto& [holders, held] : shared) {
    std::ranges::stable_sort(held, std::greater<>(),
                             [](const TensorPart* part) { return part->local.nbytes(); });
    std::vector<std::size_t> bytes(holders.size(), 0);
    for (const TensorPart* part : held) {
      const auto least = std::ranges::min_element(bytes);
      *least += part->local.nbytes();
      if (holders[static_cast<std::size_t>(least - bytes.begin())] == group.rank()) {
        own.push_back(*part);
      }
    }
  }
  return own;
}

void choose_own(const SaveOptions& options, const comm::Group& group, Content& content) {
  std::erase_if(content.parts, [&](const TensorPart& part) {
    const bool is_left_out =
        part.section == "model" && std::ranges::any_of(options.leave_out, [&](const auto& pattern) {
          return fits(pattern, part.name);
        });
    if (is_left_out) content.left_out[part.section].insert(part.name);
    return is_left_out;
  });
  content.parts = choose_own(content.parts, group);
}

fs::path save_own(const SaveOptions& options, const std::function<Content()>& own,
                  const comm::Group& group, const SaveSources& sources) {
  comm::check_given(group, "save_parts");
  FileLayer& files = options.files == nullptr ? system_files() : *options.files;
  const bool is_first = group.rank() == 0;
  Content content;
  std::optional<CheckpointFolderWriter> writer;
  // Every step is agreed upon, so that an error of one rank stops all ranks before the next step.
  // First rank 0 creates the hidden folder and tells its path.
  const auto places = agree(group, "cannot save", [&]() -> std::string {
    content = own();
    if (!is_first) return {};
    check_options(options);
    try_to_remove(options, [&] { remove_leftovers(options.folder, options.prefix, files); });
    writer.emplace(options.folder, options.prefix, content.state.epoch, content.state.step, files);
    return fs::absolute(writer->path()).string();
  });
  // Each rank writes its files and returns their index.
  const auto written = agree(group, "cannot save", [&] {
    return describe_own(write_own(places.front(), content, group, files, sources.tensors));
  });
  // Rank 0 joins the indices, writes index.json last and publishes the folder.
  const auto published = agree(group, "cannot save", [&]() -> std::string {
    if (!is_first) return {};
    Index index = join_indices(written);
    describe_whole(options, content.state, index);
    check_patterns(options, index);
    index.order = writer->order();
    if (sources.of_ranks != nullptr) index.state.of_ranks = *sources.of_ranks;
    OutputFile file(writer->path() / kIndexFile, files);
    file.append(write_index(index));
    file.finish();
    return writer->commit().string();
  });
  // Retention comes after publication, so a failure here cannot lose the new checkpoint.
  agree(group, "cannot tidy up", [&]() -> std::string {
    if (!is_first) return {};
    try_to_remove(options,
                  [&] { keep(options.folder, options.prefix, retention_of(options), files); });
    return {};
  });
  return published.front();
}

fs::path save_parts(const SaveOptions& options, const std::vector<TensorPart>& parts,
                    const State& state, const comm::Group& group) {
  return save_parts(options, [&] { return Content{.parts = parts, .state = state}; }, group);
}

fs::path save_parts(const SaveOptions& options, const std::function<Content()>& make,
                    const comm::Group& group) {
  return save_own(
      options,
      [&] {
        Content content = make();
        choose_own(options, group, content);
        return content;
      },
      group);
}

void write_part_file(const std::filesystem::path& folder, const std::string& name,
                     const std::vector<TensorPart>& parts, FileLayer& files, Index& index,
                     CopyOnWrite* tensors_of_parts) {
  std::vector<HeaderTensor> tensors;
  std::map<std::string, const TensorPart*> by_name;
  std::map<std::string, std::uint32_t> checksums;
  for (const TensorPart& part : parts) {
    std::string own_name = name_in_file(part);
    check_storable(own_name, part.local);
    const bool keeps_shape = is_whole(part.slice, part.shape);
    tensors.push_back({.name = own_name,
                       .type = part.local.scalar_type(),
                       .shape = keeps_shape ? part.shape : part.local.sizes().vec()});
    checksums[own_name] = 0;
    if (!by_name.emplace(std::move(own_name), &part).second) {
      throw UsageError(
          join_message("the same part of tensor '", part.name, "' is to be saved twice"),
          "give each part once, and no two tensors of one name");
    }
  }
  sort_for_file(tensors);
  // The header comes first but contains the checksums. Its length does not depend on their values,
  // so its space is reserved and filled in at the end.
  const std::string room = encode_header(tensors, {}, checksums);

  OutputFile file(folder / name, files);
  file.skip(static_cast<std::int64_t>(room.size()));
  for (const HeaderTensor& tensor : tensors) {
    const TensorPart& part = *by_name.at(tensor.name);
    Piece piece{.file = name, .offset = tensor.begin, .slice = part.slice, .checksums = {}};
    // A block is written while it is still in the cache from computing its checksum.
    for_each_block(part, tensors_of_parts, [&](std::span<const std::byte> block) {
      piece.checksums.push_back(crc32_of(block));
      file.append(block);
    });
    checksums[tensor.name] = join_all(piece.checksums, tensor.end - tensor.begin);
    IndexedTensor& indexed = index.sections[part.section][part.name];
    indexed.dtype = tensor.type;
    indexed.shape = part.shape;
    if (tensor.end > tensor.begin) indexed.pieces.push_back(std::move(piece));
  }
  const std::string header = encode_header(tensors, {}, checksums);
  TRIREME_CHECK_EQ(header.size(), room.size());
  file.write_at(0, std::as_bytes(std::span(header)));
  file.finish();
  index.files[name] = {
      .bytes = tensors.empty() ? static_cast<std::int64_t>(header.size()) : tensors.back().end,
      .header_bytes = static_cast<std::int64_t>(header.size()),
      .header_crc32 = crc32_of(std::as_bytes(std::span(header)))};
}

}  // namespace trireme::checkpoint
