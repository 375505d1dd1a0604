// SPDX-License-Identifier: Apache-2.0
// The measured timelines of a pipeline that lie in a run folder: reads pictures and traces of steps
// (docs/formats/run.md), and shows them on the page. A picture becomes an image of the page, in
// which no browser runs scripts or loads other files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::report {

/// The measured timeline of one step.
struct PipelinePicture {
  std::int64_t step = 0;  ///< the global step
  std::string svg{};      ///< the picture, as it was in its file
  /// The time from the first start on any rank to the last end, in milliseconds. std::nullopt if
  /// there is no trace that can be read.
  std::optional<double> milliseconds{};
  /// The share of the time in which a rank does not compute (schedule::Timeline::bubble_rate).
  std::optional<double> bubble{};
};

/// The timelines of a run folder.
struct PipelinePictures {
  std::vector<PipelinePicture> shown{};  ///< the last steps, in ascending order
  std::size_t num_pictures = 0;          ///< the number of pictures in the folder
};

/// Reads `pipeline-step<n>.svg` and `pipeline-step<n>.json` of the last steps in a folder. Adds a
/// note for a picture that cannot be read, is none, or is larger than a page should hold.
PipelinePictures read_pipeline_pictures(const std::filesystem::path& folder,
                                        std::vector<std::string>& notes);

/// Returns the section of the page as HTML, or an empty text without pictures.
std::string pipeline_section(const PipelinePictures& steps);

}  // namespace trireme::report
