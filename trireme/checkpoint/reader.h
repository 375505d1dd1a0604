// SPDX-License-Identifier: Apache-2.0
// Reads tensors of a checkpoint, or slices of them, whatever ranks wrote which part.
#pragma once

#include <trireme/checkpoint/index.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// A checkpoint that is open for reading, or one safetensors file as the section `model`.
///
/// Reads only what is requested, in whole blocks whose checksums it verifies. It holds no more in
/// memory than that and a megabyte per thread. Every method throws CheckpointError with file,
/// tensor and offset for data that is missing, truncated or damaged. Not thread-safe; other
/// programs may read at the same time.
class Reader {
 public:
  /// Reads and verifies the index.
  explicit Reader(std::filesystem::path path);
  /// Moves an open checkpoint.
  Reader(Reader&&) noexcept;
  ~Reader();

  const std::filesystem::path& path() const noexcept;
  /// Returns the index.
  const Index& index() const noexcept;
  /// Returns the state of the run.
  const State& state() const noexcept { return index().state; }

  bool has(const std::string& section) const { return index().sections.contains(section); }
  /// Returns the tensors of a section; an empty one if the section does not exist.
  const Section& section(const std::string& name) const;
  /// Returns the names of tensors that were not saved; see SaveOptions::leave_out.
  const std::set<std::string>& left_out(const std::string& section) const;
  /// Returns the location of a section for messages: its file, or the folder if there are several
  /// files.
  std::string describe_section(const std::string& name) const;

  /// Returns a whole tensor in new CPU memory. Throws UsageError if the tensor does not exist.
  at::Tensor read(const std::string& section, const std::string& name);
  /// Returns a slice: [n] for a range, also for a range of a box, and the size of the box for a
  /// box. Throws UsageError if the slice is not inside the tensor.
  at::Tensor read(const std::string& section, const std::string& name, const Slice& slice);

  /// Verifies the checksums of all bytes of a tensor, without memory for the tensor.
  void verify(const std::string& section, const std::string& name);

  /// Returns the number of bytes read so far, to check that a rank reads only its part.
  std::int64_t bytes_read() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads a whole checkpoint and returns one line for each problem; an empty list if it is complete
/// and undamaged.
std::vector<std::string> find_damage(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
