// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/checkpoint.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/module_state.h>
#include <trireme/checkpoint/optimizer_state.h>
#include <trireme/checkpoint/safetensors.h>

#include <nlohmann/json.hpp>
#include <zlib.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kFormat = 1;
constexpr auto kModelFile = "model.safetensors";
constexpr auto kOptimizerFile = "optimizer.safetensors";
constexpr auto kStateFile = "state.json";
constexpr auto kOptimizerScalars = "trireme.optimizer";  // metadata of the optimizer's file
constexpr auto kOwnChecksum = "crc32";

json to_json(const FileDigest& digest) {
  return {{"bytes", digest.bytes}, {"crc32", digest.crc32}};
}

// Checksum of the document without its own entry for it. Objects print their keys in sorted order,
// so that the text is the same when it has been read back.
std::uint32_t checksum(json document) {
  document.erase(kOwnChecksum);
  const std::string text = document.dump();
  return static_cast<std::uint32_t>(
      ::crc32_z(0, reinterpret_cast<const unsigned char*>(text.data()), text.size()));
}

[[noreturn]] void fail(
    const fs::path& file, const std::string& what,
    std::string_view hint = "restore it from a good copy, or load another checkpoint") {
  throw CheckpointError(join_message("checkpoint file ", file.string(), " ", what), hint);
}

json read_state_file(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    fail(file, join_message("cannot be opened: ", describe_errno(errno)),
         "give the folder of one checkpoint, prefix-<epoch>_<step>");
  }
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object())
    fail(file, join_message("is cut short or damaged: its ", text.size(),
                            " bytes are not a JSON object"));
  const json format = document.value("format", json());
  if (format != kFormat) {
    fail(file, join_message("is of format ", format.dump(), ", expected ", kFormat),
         "read it with the version of Trireme that wrote it");
  }
  if (document.value(kOwnChecksum, json()) != checksum(document)) {
    fail(file, "is damaged: its checksum does not match");
  }
  return document;
}

// Reads a tensor file and holds it against what state.json says of it.
TensorFile read_verified(const fs::path& file, const json& expected) {
  const auto bytes = expected.at("bytes").get<std::int64_t>();
  std::error_code failure;
  const auto actual = fs::file_size(file, failure);
  if (failure) fail(file, join_message("cannot be read: ", describe_errno(failure.value())));
  if (static_cast<std::int64_t>(actual) != bytes) {
    fail(file,
         join_message(static_cast<std::int64_t>(actual) < bytes ? "is cut short" : "is too long",
                      ": it has ", actual, " bytes, expected ", bytes));
  }
  TensorFile content = read_safetensors(file);
  if (content.digest.crc32 != expected.at("crc32").get<std::uint32_t>()) {
    fail(file, "is damaged: its checksum is not the one in state.json");
  }
  return content;
}

}  // namespace

fs::path save(const SaveOptions& options, const torch::nn::Module& module,
              const torch::optim::Optimizer* optimizer, const State& state) {
  if (options.keep < 0) {
    throw UsageError(
        join_message("asked to keep ", options.keep, " checkpoints, expected 0 or more"),
        "0 keeps all of them");
  }
  // Collected before anything is written: an optimizer that cannot be saved leaves no traces.
  std::optional<OptimizerState> optimizer_content;
  if (optimizer != nullptr) optimizer_content = optimizer_state(*optimizer, module);

  remove_leftovers(options.folder, options.prefix);
  CheckpointFolderWriter writer(options.folder, options.prefix, state.epoch, state.step);
  json document{{"format", kFormat},
                {"epoch", state.epoch},
                {"step", state.step},
                {"entries", state.entries}};
  document["files"][kModelFile] =
      to_json(write_safetensors(writer.path() / kModelFile, module_tensors(module)));
  if (optimizer_content) {
    document["files"][kOptimizerFile] =
        to_json(write_safetensors(writer.path() / kOptimizerFile, optimizer_content->tensors,
                                  {{kOptimizerScalars, optimizer_content->scalars}}));
  }
  try {
    document[kOwnChecksum] = checksum(document);
  } catch (const json::exception& error) {
    throw UsageError(join_message("cannot write the entries of a checkpoint: ", error.what()),
                     "entries have to be valid UTF-8");
  }
  AtomicFile file(writer.path() / kStateFile);
  file.write(document.dump(2) + "\n");
  file.commit();
  fs::path path = writer.commit();
  if (options.keep > 0) keep_last(options.folder, options.prefix, options.keep);
  return path;
}

State load(const fs::path& path, torch::nn::Module& module, torch::optim::Optimizer* optimizer) {
  const fs::path state_file = path / kStateFile;
  const json document = read_state_file(state_file);
  State state;
  TensorFile model;
  OptimizerState optimizer_content;
  const fs::path model_file = path / kModelFile;
  const fs::path optimizer_file = path / kOptimizerFile;
  try {
    document.at("epoch").get_to(state.epoch);
    document.at("step").get_to(state.step);
    document.at("entries").get_to(state.entries);
    const json& files = document.at("files");
    model = read_verified(model_file, files.at(kModelFile));
    if (optimizer != nullptr) {
      if (!files.contains(kOptimizerFile)) {
        fail(state_file, "lists no optimizer: the checkpoint holds a model alone",
             "load it without an optimizer, or give a checkpoint that was saved with one");
      }
      TensorFile content = read_verified(optimizer_file, files.at(kOptimizerFile));
      optimizer_content = {std::move(content.tensors), content.metadata[kOptimizerScalars]};
    }
  } catch (const json::exception& error) {
    fail(state_file, join_message("lacks something: ", error.what()));
  }
  check_module_tensors(model.tensors, module, model_file.string());
  if (optimizer != nullptr)
    load_optimizer_state(optimizer_content, *optimizer, module, optimizer_file.string());
  load_module_tensors(model.tensors, module, model_file.string());
  return state;
}

}  // namespace trireme::checkpoint
