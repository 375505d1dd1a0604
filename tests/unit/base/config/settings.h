// SPDX-License-Identifier: Apache-2.0
// A tree of settings with one field of every kind.
#pragma once

#include <trireme/base/config/configuration.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::config::test {

enum class Interpolation { kNearest, kBilinear };

inline EnumNames<Interpolation> enum_names(Interpolation /*interpolation*/) {
  return {{Interpolation::kNearest, "nearest"}, {Interpolation::kBilinear, "bilinear"}};
}

struct Layer {
  std::int64_t width = 8;
  bool bias = true;

  void fields(Fields& fields) {
    fields.add("width", width, "outputs of the layer").at_least(1);
    fields.add("bias", bias, "adds a bias");
  }
  bool operator==(const Layer&) const = default;
};

struct Images {
  std::filesystem::path folder = "data";
  Interpolation interpolation = Interpolation::kBilinear;
  std::array<double, 3> mean = {0.5, 0.5, 0.5};

  bool operator==(const Images&) const = default;
};

// Described from outside, as a struct of somebody else.
inline void describe(Fields& fields, Images& images) {
  fields.add("folder", images.folder, "where they are");
  fields.add("interpolation", images.interpolation, "how they are resized");
  fields.add("mean", images.mean, "of each channel").between(0, 1);
}

struct Settings {
  std::string name = "demo";
  std::int64_t epochs = 10;
  int seed = 1;
  double learning_rate = 0.1;
  float momentum = 0.9F;
  bool shuffle = true;
  std::optional<double> clip_norm;
  std::optional<Layer> head;
  std::vector<std::int64_t> milestones = {30, 60};
  std::vector<std::string> tags;
  std::vector<Layer> layers;
  std::vector<std::pair<std::string, int>> stages;
  std::chrono::milliseconds patience{1500};
  std::chrono::duration<double> limit{0.25};
  Images images{};

  void fields(Fields& fields) {
    fields.add("name", name, "of the run")
        .check_that([](const std::string& text) { return text.find('/') == std::string::npos; },
                    "without a slash");
    fields.add("epochs", epochs, "passes over the data").at_least(1);
    fields.add("seed", seed, "of random numbers");
    fields.add("learning_rate", learning_rate, "step size").above(0).at_most(10);
    fields.add("momentum", momentum, "of SGD").at_least(0).below(1);
    fields.add("shuffle", shuffle, "in every epoch");
    fields.add("clip_norm", clip_norm, "longest gradient").above(0);
    fields.add("head", head, "layer on top");
    fields.add("milestones", milestones, "epochs where the rate falls").at_least(1);
    fields.add("tags", tags, "for people");
    fields.add("layers", layers, "hidden layers");
    fields.add("stages", stages, "by name");
    fields.add("patience", patience, "of early stopping").at_least(std::chrono::milliseconds(0));
    fields.add("limit", limit, "of the whole run");
    fields.add("images", images, "What comes in.");
  }
  bool operator==(const Settings&) const = default;
};

}  // namespace trireme::config::test
