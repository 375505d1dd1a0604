// SPDX-License-Identifier: Apache-2.0
// Reads tensors of a checkpoint, or any slice of them, whatever ranks wrote which part.
#pragma once

#include <trireme/checkpoint/index.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// A checkpoint, or one safetensors file as the section `model`, open for reading. Reads no more
/// than it is asked for, in whole blocks whose checksums it verifies, and holds no more than that
/// and a megabyte a thread. Every method throws
/// CheckpointError naming file, tensor and offset for what is missing, cut short or damaged. Not
/// thread-safe; other programs may read at the same time.
class Reader {
 public:
  explicit Reader(std::filesystem::path path);
  Reader(Reader&&) noexcept;
  ~Reader();

  const std::filesystem::path& path() const noexcept;
  const Index& index() const noexcept;
  const State& state() const noexcept { return index().state; }

  bool has(const std::string& section) const { return index().sections.contains(section); }
  /// Empty where there is no such section.
  const Section& section(const std::string& name) const;
  /// Names of tensors that were there and were not saved; see SaveOptions::leave_out.
  const std::set<std::string>& left_out(const std::string& section) const;
  /// Where a section lies, for messages: its file, or the folder where there are several.
  std::string describe_section(const std::string& name) const;

  /// Returns a tensor of the whole shape, in new CPU memory. UsageError where there is none of that
  /// name.
  at::Tensor read(const std::string& section, const std::string& name);
  /// Returns a slice: [n] for a range, of a box too, of the box's size for a box. UsageError for
  /// one that the tensor has not.
  at::Tensor read(const std::string& section, const std::string& name, const Slice& slice);

  /// Holds every byte of a tensor against its checksums, with no memory for the tensor.
  void verify(const std::string& section, const std::string& name);

  /// Bytes read so far, for whoever wants to see that it reads its own part alone.
  std::int64_t bytes_read() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads all of a checkpoint and returns what is wrong with it, a line for each; empty where it is
/// whole and undamaged.
std::vector<std::string> find_damage(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
