// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/convert.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/checkpoint/save_steps.h>

#include <ranges>

namespace trireme::checkpoint {

namespace fs = std::filesystem;

FileDigest export_safetensors(const fs::path& checkpoint, const fs::path& file,
                              const std::string& section) {
  Reader reader(checkpoint);
  if (!reader.has(section)) {
    const std::string names = list_text(reader.index().sections | std::views::keys);
    throw CheckpointError(join_message(checkpoint.string(), " has no section '", section,
                                       "'; it has ", names.empty() ? "none" : names),
                          "give one of those");
  }
  TensorSources sources;
  for (const auto& [name, tensor] : reader.section(section)) {
    sources[name] = {.shape = tensor.shape,
                     .dtype = tensor.dtype,
                     .values = [&reader, section, name] { return reader.read(section, name); }};
  }
  // The same mark that the safetensors package writes for tensors of torch.
  return write_safetensors_from(file, sources, {{"format", "pt"}});
}

fs::path convert(const fs::path& source, const SaveOptions& options) {
  Reader reader(source);
  Content content{.parts = {}, .state = reader.state(), .left_out = reader.index().left_out};
  for (const auto& [section, tensors] : reader.index().sections) {
    for (const auto& [name, tensor] : tensors) {
      content.parts.push_back(replicated(section, name, reader.read(section, name)));
    }
  }
  SaveOptions own = options;
  if (!own.score) own.score = reader.index().score;
  const auto& of_ranks = reader.state().of_ranks;
  return save_own(own, [&] { return content; }, comm::Group::self(),
                  {.of_ranks = of_ranks.empty() ? nullptr : &of_ranks});
}

}  // namespace trireme::checkpoint
