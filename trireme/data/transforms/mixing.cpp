// SPDX-License-Identifier: Apache-2.0
// Batch transforms that mix rows: mixup, cutmix. They are loops over memory, so that no OpenMP
// threads start.
#include <trireme/base/error.h>
#include <trireme/data/batch_transform.h>
#include <trireme/data/detail/dataset_checks.h>

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace trireme::data {
namespace {

// Returns a number in (0, 1], where the logarithm is finite.
double positive_uniform(Random& random) { return 1.0 - static_cast<double>(random.uniform()); }

// Returns the logarithm of a Gamma(shape, 1) number (Marsaglia and Tsang, "A simple method for
// generating gamma variables", 2000). For small shapes the number itself may underflow to 0.
double draw_log_gamma(double shape, Random& random) {
  double raise = 0;
  if (shape < 1) {
    raise = std::log(positive_uniform(random)) / shape;
    shape += 1;
  }
  const double d = shape - 1 / 3.0;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random.normal();
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(positive_uniform(random)) < x * x / 2 + d - d * v + d * std::log(v)) {
      return std::log(d * v) + raise;
    }
  }
}

// Returns a Beta(alpha, alpha) number: a / (a + b) of two Gamma numbers, from their logarithms.
double draw_weight(double alpha, Random& random) {
  const double first = draw_log_gamma(alpha, random);
  const double second = draw_log_gamma(alpha, random);
  return 1 / (1 + std::exp(second - first));
}

void check_settings(std::string_view name, std::int64_t classes, double alpha) {
  if (classes < 1) {
    throw UsageError(join_message(name, " with ", classes, " classes"),
                     "give the number of classes");
  }
  if (!(alpha > 0) || !std::isfinite(alpha)) {
    throw UsageError(join_message(name, " with alpha ", alpha), "give a positive number");
  }
}

std::size_t previous(std::size_t row, std::size_t rows) { return (row + rows - 1) % rows; }

// Returns the labels as probabilities, float32 [rows, classes].
at::Tensor soften(const at::Tensor& labels, std::int64_t classes) {
  if (labels.scalar_type() == at::kFloat && labels.dim() == 2 && labels.size(1) == classes) {
    return labels.contiguous();
  }
  if (labels.scalar_type() != at::kLong || labels.dim() != 1) {
    throw UsageError(
        join_message("the labels are ", labels.scalar_type(), " ", labels.sizes(),
                     ", expected class numbers Long [rows] or soft labels Float [rows, ", classes,
                     "]"),
        "bring the labels to one of these by map or type_cast");
  }
  const at::Tensor numbers = labels.contiguous();
  const auto* const number = numbers.const_data_ptr<std::int64_t>();
  at::Tensor soft = at::empty({labels.size(0), classes}, at::kFloat);
  auto* const value = soft.mutable_data_ptr<float>();
  std::fill_n(value, soft.numel(), 0.F);
  for (std::int64_t row = 0; row < labels.size(0); ++row) {
    if (number[row] < 0 || number[row] >= classes) {
      throw UsageError(join_message("the label of row ", row, " is ", number[row],
                                    ", expected 0 to ", classes - 1),
                       "give the right number of classes");
    }
    value[row * classes + number[row]] = 1;
  }
  return soft;
}

// Computes w x + (1 - w) x' for float32 or float64, where x' is the row before.
at::Tensor blend(const at::Tensor& rows, double w) {
  const at::Tensor input = rows.contiguous();
  at::Tensor output = at::empty(input.sizes(), input.scalar_type());
  const auto count = static_cast<std::size_t>(input.size(0));
  const std::size_t size = static_cast<std::size_t>(input.numel()) / count;
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "mixup", [&] {
    const auto* const x = input.const_data_ptr<scalar_t>();
    auto* const y = output.mutable_data_ptr<scalar_t>();
    const auto own = static_cast<scalar_t>(w);
    const auto other = static_cast<scalar_t>(1 - w);
    for (std::size_t row = 0; row < count; ++row) {
      const scalar_t* const a = x + row * size;
      const scalar_t* const b = x + previous(row, count) * size;
      for (std::size_t i = 0; i < size; ++i) y[row * size + i] = a[i] * own + b[i] * other;
    }
  });
  return output;
}

struct Rectangle {
  std::int64_t top;
  std::int64_t left;
  std::int64_t bottom;
  std::int64_t right;
};

Rectangle draw_rectangle(std::int64_t height, std::int64_t width, double w, Random& random) {
  const double half = 0.5 * std::sqrt(1 - w);
  const std::int64_t x = random.below(width);
  const std::int64_t y = random.below(height);
  const auto half_width = static_cast<std::int64_t>(half * static_cast<double>(width));
  const auto half_height = static_cast<std::int64_t>(half * static_cast<double>(height));
  return {.top = std::max<std::int64_t>(y - half_height, 0),
          .left = std::max<std::int64_t>(x - half_width, 0),
          .bottom = std::min(y + half_height, height),
          .right = std::min(x + half_width, width)};
}

// Returns each image with the rectangle of the image before.
at::Tensor paste(const at::Tensor& images, const Rectangle& rectangle) {
  const at::Tensor input = images.contiguous();
  at::Tensor output = at::empty(input.sizes(), input.scalar_type());
  std::memcpy(output.mutable_data_ptr(), input.const_data_ptr(), input.nbytes());
  const auto* const x = static_cast<const std::byte*>(input.const_data_ptr());
  auto* const y = static_cast<std::byte*>(output.mutable_data_ptr());
  const auto size = [](std::int64_t number) { return static_cast<std::size_t>(number); };
  const std::size_t line = size(input.size(-1)) * input.dtype().itemsize();
  const std::size_t plane = size(input.size(-2)) * line;
  const std::size_t image = input.nbytes() / size(input.size(0));
  const std::size_t begin = size(rectangle.left) * input.dtype().itemsize();
  const std::size_t bytes = size(rectangle.right - rectangle.left) * input.dtype().itemsize();
  for (std::size_t row = 0; row < size(input.size(0)); ++row) {
    const std::byte* const from = x + previous(row, size(input.size(0))) * image;
    for (std::size_t place = 0; place < image; place += plane) {
      for (std::size_t i = size(rectangle.top); i < size(rectangle.bottom); ++i) {
        const std::size_t offset = place + i * line + begin;
        std::memcpy(y + row * image + offset, from + offset, bytes);
      }
    }
  }
  return output;
}

struct Places {
  std::size_t image;
  std::size_t label;
};

Places find(const Batch& batch, const MixColumns& columns) {
  return {detail::column_index(batch.names, columns.image),
          detail::column_index(batch.names, columns.label)};
}

}  // namespace

BatchTransform mixup(std::int64_t classes, double alpha, MixColumns columns) {
  check_settings("mixup", classes, alpha);
  const auto mix = [classes, alpha, columns = std::move(columns)](Batch batch, Random& random) {
    const auto [image, label] = find(batch, columns);
    const at::Tensor images = batch.columns[image];
    if (images.scalar_type() != at::kFloat && images.scalar_type() != at::kDouble) {
      throw UsageError(join_message("the images are ", images.scalar_type(), " ", images.sizes(),
                                    ", expected Float or Double"),
                       "rescale or normalize the images first");
    }
    const at::Tensor soft = soften(batch.columns[label], classes);
    const double w = draw_weight(alpha, random);
    batch.columns[image] = blend(images, w);
    batch.columns[label] = blend(soft, w);
    return batch;
  };
  return {"mixup", mix};
}

BatchTransform cutmix(std::int64_t classes, double alpha, MixColumns columns) {
  check_settings("cutmix", classes, alpha);
  const auto mix = [classes, alpha, columns = std::move(columns)](Batch batch, Random& random) {
    const auto [image, label] = find(batch, columns);
    const at::Tensor images = batch.columns[image];
    if (images.dim() < 3 || images.numel() == 0) {
      throw UsageError(join_message("the images are ", images.scalar_type(), " ", images.sizes(),
                                    ", expected [rows, ..., height, width] with pixels"),
                       "bring the images to that shape by map");
    }
    const at::Tensor soft = soften(batch.columns[label], classes);
    const std::int64_t height = images.size(-2);
    const std::int64_t width = images.size(-1);
    const Rectangle rectangle = draw_rectangle(height, width, draw_weight(alpha, random), random);
    const std::int64_t area =
        (rectangle.bottom - rectangle.top) * (rectangle.right - rectangle.left);
    batch.columns[image] = paste(images, rectangle);
    batch.columns[label] =
        blend(soft, 1 - static_cast<double>(area) / static_cast<double>(height * width));
    return batch;
  };
  return {"cutmix", mix};
}

}  // namespace trireme::data
