// SPDX-License-Identifier: Apache-2.0
// The pipelines of bench/multi/data.cpp with LibTorch's DataLoader. `--form samples` is its usual
// way, transforms of single tensors and then Stack; `--form batches` is written by hand: random
// crops and flips of single images, everything else on whole batches.
#include <trireme/data/cifar.h>
#include <trireme/data/mnist.h>

#include <CLI/CLI.hpp>
#include <bench/multi/measured_time.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <exception>
#include <iostream>
#include <random>
#include <string>
#include <vector>

namespace {

using torch::Tensor;
using Example = torch::data::Example<>;
namespace transforms = torch::data::transforms;

struct Options {
  std::string pipeline = "cifar10";
  std::string folder;
  std::string form = "samples";
  int workers = 1;
  double seconds = 4;
  bool check = false;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times a pipeline of images with LibTorch's DataLoader.");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--pipeline", options.pipeline)
      ->check(CLI::IsMember({"cifar10", "fashion_mnist"}));
  app.add_option("--data", options.folder)->required();
  app.add_option("--form", options.form)->check(CLI::IsMember({"samples", "batches"}));
  app.add_option("--workers", options.workers);
  app.add_option("--seconds", options.seconds);
  app.add_flag("--check", options.check);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

// The whole set in memory: images uint8 [N, C, H, W], labels int64 [N].
struct Images {
  Tensor images;
  Tensor labels;
};

Images load(const Options& options) {
  namespace data = trireme::data;
  const auto set = options.pipeline == "cifar10"
                       ? data::cifar10(options.folder, data::Split::kTrain)
                       : data::mnist(options.folder, data::Split::kTrain);
  return {set->stored().at(0), set->stored().at(1).to(torch::kLong)};
}

// No lock and no tensor for one number.
std::int64_t below(std::int64_t bound) {
  thread_local std::mt19937 engine(std::random_device{}());
  return std::uniform_int_distribution<std::int64_t>(0, bound - 1)(engine);
}

Tensor random_crop_and_flip(const Tensor& image) {
  const Tensor padded = torch::constant_pad_nd(image, {4, 4, 4, 4});
  const Tensor piece = padded.narrow(1, below(9), 32).narrow(2, below(9), 32);
  return below(2) == 1 ? piece.flip(2) : piece;
}

// uint8 [N, C, H, W], for which LibTorch has vectorised kernels of integers.
Tensor resize(const Tensor& images) {
  return torch::upsample_bilinear2d(images.contiguous(), {224, 224}, /*align_corners=*/false);
}

const Tensor& mean() {
  static const Tensor value = torch::tensor({0.4914F, 0.4822F, 0.4465F}).view({3, 1, 1});
  return value;
}
const Tensor& deviation() {
  static const Tensor value = torch::tensor({0.2023F, 0.1994F, 0.2010F}).view({3, 1, 1});
  return value;
}

Tensor rescale_and_normalize(const Tensor& images) {
  return images.to(torch::kFloat).div_(255).sub_(mean()).div_(deviation());
}

Tensor normalize_fashion_mnist(const Tensor& images) {
  return images.to(torch::kFloat).sub_(72.94).div_(90.02);
}

class SampleSet : public torch::data::Dataset<SampleSet> {
 public:
  explicit SampleSet(Images images) : images_(std::move(images)) {}
  Example get(std::size_t index) override {
    const auto row = static_cast<std::int64_t>(index);
    return {images_.images[row], images_.labels[row]};
  }
  torch::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(images_.labels.size(0));
  }

 private:
  Images images_;
};

// A batch at once.
class BatchSet : public torch::data::datasets::BatchDataset<BatchSet, Example> {
 public:
  BatchSet(Images images, bool is_cifar10, bool is_random)
      : images_(std::move(images)), is_cifar10_(is_cifar10), is_random_(is_random) {}

  Example get_batch(torch::ArrayRef<std::size_t> indices) override {
    std::vector<std::int64_t> rows(indices.begin(), indices.end());
    const Tensor index = torch::tensor(rows);
    const Tensor labels = images_.labels.index_select(0, index);
    if (!is_cifar10_)
      return {normalize_fashion_mnist(images_.images.index_select(0, index)), labels};
    Tensor images;
    if (is_random_) {
      std::vector<Tensor> pieces;
      pieces.reserve(rows.size());
      for (const std::int64_t row : rows)
        pieces.push_back(random_crop_and_flip(images_.images[row]));
      images = torch::stack(pieces);
    } else {
      images = images_.images.index_select(0, index);
    }
    return {rescale_and_normalize(resize(images)), labels};
  }
  torch::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(images_.labels.size(0));
  }

 private:
  Images images_;
  bool is_cifar10_;
  bool is_random_;
};

template <typename Loader>
nlohmann::json sums_of(Loader& loader) {
  std::vector<double> sums;
  std::vector<std::int64_t> labels;
  for (const Example& batch : loader) {
    if (sums.size() == 10) continue;  // a loader cannot be left in the middle
    sums.push_back(batch.data.sum(torch::kDouble).template item<double>());
    labels.push_back(batch.target.sum().template item<std::int64_t>());
  }
  return {{"sums", sums}, {"labels", labels}};
}

template <typename Loader>
nlohmann::json throughput_of(Loader& loader, double seconds) {
  auto batch = loader.begin();
  const auto take = [&](double duration) {
    const bench::MeasuredTime time;
    std::int64_t samples = 0;
    while (time.elapsed() < duration) {
      if (batch == loader.end()) batch = loader.begin();
      samples += batch->target.size(0);
      ++batch;
    }
    return nlohmann::json{
        {"samples", samples}, {"seconds", time.elapsed()}, {"core_seconds", time.used()}};
  };
  take(seconds / 4);
  return take(seconds);
}

template <typename Set>
nlohmann::json measure(Set set, const Options& options) {
  const auto loading = torch::data::DataLoaderOptions()
                           .batch_size(options.pipeline == "cifar10" ? 32 : 64)
                           .workers(static_cast<std::size_t>(options.workers))
                           .max_jobs(4)
                           .drop_last(true);
  if (options.check) {
    const auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
        std::move(set), loading);
    return sums_of(*loader);
  }
  const auto loader =
      torch::data::make_data_loader<torch::data::samplers::RandomSampler>(std::move(set), loading);
  return throughput_of(*loader, options.seconds);
}

nlohmann::json measure(const Options& options) {
  const bool is_cifar10 = options.pipeline == "cifar10";
  if (options.form == "batches")
    return measure(BatchSet(load(options), is_cifar10, !options.check), options);
  const bool is_random = !options.check;
  const transforms::TensorLambda<> prepare([=](const Tensor& image) {
    if (!is_cifar10) return normalize_fashion_mnist(image);
    const Tensor piece = is_random ? random_crop_and_flip(image) : image;
    return rescale_and_normalize(resize(piece.unsqueeze(0)).squeeze(0));
  });
  return measure(SampleSet(load(options)).map(prepare).map(transforms::Stack<>()), options);
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  torch::set_num_threads(1);
  const torch::NoGradGuard no_grad;
  const auto record = measure(options);
  std::cout << record << std::endl;
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
