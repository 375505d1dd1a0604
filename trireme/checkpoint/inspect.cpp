// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/inspect.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/load_plan.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/report/number.h>

#include <torch/torch.h>

#include <algorithm>
#include <set>
#include <span>

namespace trireme::checkpoint {
namespace {

std::string readable_bytes(std::int64_t bytes) {
  return report::bytes_as_text(static_cast<double>(bytes));
}

std::int64_t bytes_of_tensor(const IndexedTensor& tensor) {
  return elements(tensor.shape) * static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
}

void describe_entries(const std::string& title, const Entries& entries, TextWriter& text) {
  if (entries.empty()) return;
  text << title << ":";
  for (const auto& [name, value] : entries) {
    text << " " << printable(name) << " ("
         << readable_bytes(static_cast<std::int64_t>(value.size())) << ")";
  }
  text << "\n";
}

void describe_section(const std::string& name, const Section& tensors, TextWriter& text) {
  std::int64_t bytes = 0;
  std::size_t width = 0;
  for (const auto& [tensor_name, tensor] : tensors) {
    bytes += bytes_of_tensor(tensor);
    width = std::max(width, tensor_name.size());
  }
  text << "\n"
       << printable(name) << ": " << tensors.size() << " tensors, " << readable_bytes(bytes)
       << "\n";
  for (const auto& [tensor_name, tensor] : tensors) {
    text << "  " << printable(tensor_name) << std::string(width - tensor_name.size(), ' ') << "  "
         << dtype_name(tensor.dtype) << " " << at::IntArrayRef(tensor.shape);
    if (tensor.pieces.size() > 1) text << " in " << tensor.pieces.size() << " parts";
    text << "\n";
  }
}

// Returns a message about the difference between two tensors, or an empty string if they are
// bitwise equal.
std::string difference(const at::Tensor& one, const at::Tensor& other) {
  if (one.scalar_type() != other.scalar_type() || one.sizes() != other.sizes()) {
    return join_message("is ", dtype_name(one.scalar_type()), " ", one.sizes(), " in the one, ",
                        dtype_name(other.scalar_type()), " ", other.sizes(), " in the other");
  }
  // Compares bytes and not values, so that NaNs are equal to themselves and -0 differs from 0.
  const auto bytes = [](const at::Tensor& tensor) {
    return std::span(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
  };
  if (std::ranges::equal(bytes(one), bytes(other))) return {};
  const auto width = static_cast<std::size_t>(one.element_size());
  std::int64_t count = 0;
  for (std::size_t place = 0; place < one.nbytes(); place += width) {
    if (!std::ranges::equal(bytes(one).subspan(place, width), bytes(other).subspan(place, width))) {
      ++count;
    }
  }
  // The largest difference is computed in float64, which represents the elements of most dtypes
  // exactly.
  const at::ScalarType wide = one.is_complex() ? at::kComplexDouble : at::kDouble;
  const double most = (one.to(wide) - other.to(wide)).abs().max().item<double>();
  return join_message("differs in ", count, " of ", one.numel(), " elements, by ", most,
                      " at most");
}

void compare_entries(const std::string& title, const Entries& one, const Entries& other,
                     std::vector<std::string>& found) {
  std::set<std::string> names;
  for (const auto& [name, text] : one) names.insert(name);
  for (const auto& [name, text] : other) names.insert(name);
  for (const std::string& name : names) {
    if (!one.contains(name) || !other.contains(name)) {
      found.push_back(join_message(title, " ", name, " is in the ",
                                   one.contains(name) ? "first" : "second", " alone"));
    } else if (one.at(name) != other.at(name)) {
      found.push_back(join_message(title, " ", name, " differs"));
    }
  }
}

void compare_sections(Reader& one, Reader& other, const std::string& section,
                      std::vector<std::string>& found) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : one.section(section)) names.insert(name);
  for (const auto& [name, tensor] : other.section(section)) names.insert(name);
  for (const std::string& name : names) {
    const bool in_one = one.section(section).contains(name);
    const bool in_other = other.section(section).contains(name);
    if (!in_one || !in_other) {
      found.push_back(
          join_message(section, ": ", name, " is in the ", in_one ? "first" : "second", " alone"));
      continue;
    }
    const std::string what = difference(one.read(section, name), other.read(section, name));
    if (!what.empty()) found.push_back(join_message(section, ": ", name, " ", what));
  }
}

std::string scalars_or_none(const Reader& reader) {
  return has_optimizer(reader) ? optimizer_scalars(reader) : std::string();
}

}  // namespace

std::string describe_checkpoint(const std::filesystem::path& path) {
  const Reader reader(path);
  const Index& index = reader.index();
  const State state = state_for_rank(reader, 0);
  TextWriter text;
  text << printable(path.string()) << "\n";
  if (index.format == 0) {
    text << "a safetensors file";
  } else {
    text << "checkpoint of format " << index.format << ", epoch " << state.epoch << ", step "
         << state.step;
  }
  if (index.order > 0) text << ", number " << index.order << " of its prefix";
  text << "\n";
  if (index.written_at > 0) text << "written " << utc_text(index.written_at) << "\n";
  if (index.score) text << "score " << *index.score << "\n";
  if (!state.of_ranks.empty()) text << "saved by " << state.of_ranks.size() << " ranks\n";
  for (const auto& [name, file] : index.files) {
    text << "file " << printable(name) << ", " << readable_bytes(file.bytes) << "\n";
  }
  describe_entries("entries", state.entries, text);
  for (std::size_t rank = 0; rank < state.of_ranks.size(); ++rank) {
    describe_entries(join_message("entries of rank ", rank), state.of_ranks[rank], text);
  }
  for (const auto& [name, tensors] : index.sections) describe_section(name, tensors, text);
  for (const auto& [section, names] : index.left_out) {
    text << "\n" << printable(section) << ", left out when it was saved:";
    for (const std::string& name : names) text << " " << printable(name);
    text << "\n";
  }
  return text.str();
}

std::vector<std::string> differences(const std::filesystem::path& one,
                                     const std::filesystem::path& other) {
  Reader first(one);
  Reader second(other);
  std::vector<std::string> found;
  const State state = state_for_rank(first, 0);
  const State other_state = state_for_rank(second, 0);
  const auto compare_numbers = [&](const char* what, std::int64_t a, std::int64_t b) {
    if (a != b)
      found.push_back(join_message(what, " is ", a, " in the first, ", b, " in the second"));
  };
  compare_numbers("epoch", state.epoch, other_state.epoch);
  compare_numbers("step", state.step, other_state.step);
  compare_entries("entry", state.entries, other_state.entries, found);
  const std::size_t ranks = std::max(state.of_ranks.size(), other_state.of_ranks.size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Entries none;
    compare_entries(join_message("rank ", rank, "'s entry"),
                    rank < state.of_ranks.size() ? state.of_ranks[rank] : none,
                    rank < other_state.of_ranks.size() ? other_state.of_ranks[rank] : none, found);
  }
  if (scalars_or_none(first) != scalars_or_none(second)) {
    found.emplace_back("optimizer: options, or numbers in the state, differ");
  }
  std::set<std::string> sections;
  for (const auto& [name, tensors] : first.index().sections) sections.insert(name);
  for (const auto& [name, tensors] : second.index().sections) sections.insert(name);
  for (const std::string& section : sections) compare_sections(first, second, section, found);
  // Names come from files and may contain control characters.
  for (std::string& line : found) line = printable(line);
  return found;
}

}  // namespace trireme::checkpoint
