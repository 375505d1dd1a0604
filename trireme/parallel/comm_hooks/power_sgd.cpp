// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/comm_hooks/power_sgd.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/comm_hooks/plain_sum.h>
#include <trireme/parallel/module/agreement.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <iomanip>

namespace trireme {
namespace {

void check(const PowerSgdOptions& options) {
  if (options.rank >= 1 && options.start_iteration >= 0 && options.min_compression_rate > 0 &&
      std::isfinite(options.min_compression_rate) && options.orthogonalization_epsilon >= 0 &&
      options.orthogonalization_epsilon < 1) {
    return;
  }
  throw UsageError(
      join_message("PowerSGD: rank ", options.rank, ", start_iteration ", options.start_iteration,
                   ", min_compression_rate ", options.min_compression_rate,
                   ", orthogonalization_epsilon ", options.orthogonalization_epsilon),
      "rank is 1 or more, start_iteration 0 or more, min_compression_rate above 0 and finite, "
      "orthogonalization_epsilon 0 or more and below 1");
}

// Makes the columns of `matrix` [elements, rank] orthonormal by Gram-Schmidt, in double: in fp32,
// the remainders of nearly dependent columns would not be orthogonal. A column that depends on
// those before it becomes zero, as all columns of a zero gradient do. Values that are not finite
// stay so.
at::Tensor orthonormal(const at::Tensor& matrix, double epsilon) {
  const at::Tensor rows =
      matrix.t().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
  const at::Tensor lengths = rows.norm(2, {1});
  const std::int64_t rank = rows.size(0);
  for (std::int64_t i = 0; i < rank; ++i) {
    const at::Tensor row = rows.select(0, i);
    const at::Tensor left = row.norm();
    const at::Tensor factor = left.reciprocal();
    row.mul_(at::where(left <= lengths[i] * epsilon, at::zeros_like(factor), factor));
    const at::Tensor rest = rows.narrow(0, i + 1, rank - i - 1);
    rest.addr_(rest.mv(row), row, 1, -1);
  }
  return rows.t().to(matrix.scalar_type()).contiguous();
}

}  // namespace

struct PowerSgdCommHook::Matrix {
  Parameter* parameter;
  at::Tensor gradient;  // including what was left over before
  at::Tensor whole;     // M [rows, cols]: an alias of `gradient`, or a copy if it has other strides
  std::int64_t rank;
  at::Tensor right;  // Q [cols, rank], with orthonormal columns
  at::Tensor left;   // P [rows, rank]
};

// The exchange of one bucket, between start() and finish().
struct PowerSgdCommHook::Round {
  std::vector<Matrix> matrices;
  std::vector<at::Tensor> others;  // gradients that are not compressed, in memory order
  at::Tensor others_message;       // all of `others`, one after the other
  std::function<void()> others_sum;
  at::Tensor left_message;  // all M Q, one after the other
  std::function<void()> left_sum;
  std::string label;
};

PowerSgdCommHook::PowerSgdCommHook(const PowerSgdOptions& options)
    : options_(options), generator_(at::detail::createCPUGenerator(options.seed)) {
  check(options);
}

void PowerSgdCommHook::check_agreement(const comm::Group& group) {
  if (is_agreed_) return;
  detail::check_same_text(
      "options of PowerSgdCommHook",
      join_message("gradients travel by PowerSGD, rank ", options_.rank, ", start_iteration ",
                   options_.start_iteration, ", min_compression_rate ", std::setprecision(17),
                   options_.min_compression_rate, ", error feedback ", options_.error_feedback,
                   ", warm start ", options_.warm_start, ", seed ", options_.seed,
                   ", orthogonalization_epsilon ", options_.orthogonalization_epsilon),
      group);
  is_agreed_ = true;
}

bool PowerSgdCommHook::pays(const at::Tensor& gradient) const {
  if (gradient.dim() < 2 || gradient.numel() == 0) return false;
  const std::int64_t rows = gradient.size(0);
  const std::int64_t cols = gradient.numel() / rows;
  const std::int64_t compressed = std::min({options_.rank, rows, cols}) * (rows + cols);
  return static_cast<double>(compressed) * options_.min_compression_rate <=
         static_cast<double>(gradient.numel());
}

PowerSgdCommHook::Matrix PowerSgdCommHook::as_matrix(const at::Tensor& gradient,
                                                     const std::string& name) {
  Parameter& parameter = parameters_.at(name);
  const std::int64_t rows = gradient.size(0);
  const std::int64_t cols = gradient.numel() / rows;
  if (parameter.left_over.defined()) {
    if (parameter.left_over.size(0) != rows || parameter.left_over.size(1) != cols) {
      throw UsageError(
          join_message("PowerSGD: the gradient of parameter ", name, " is a matrix [", rows, ", ",
                       cols, "], and was ", parameter.left_over.sizes(), " in the step before"),
          "give each module a hook of its own");
    }
    gradient.add_(parameter.left_over.view(gradient.sizes()));
  }
  return {.parameter = &parameter,
          .gradient = gradient,
          .whole = gradient.reshape({rows, cols}),
          .rank = std::min({options_.rank, rows, cols}),
          .right = {},
          .left = {}};
}

at::Tensor PowerSgdCommHook::next_right(const Matrix& matrix) {
  at::Tensor right = matrix.parameter->right;
  if (!right.defined()) {
    right = at::randn({matrix.whole.size(1), matrix.rank}, generator_, at::kFloat)
                .to(matrix.whole.options());
    if (options_.warm_start) matrix.parameter->right = right;
  }
  return orthonormal(right, options_.orthogonalization_epsilon);
}

std::function<void()> PowerSgdCommHook::start(GradientBucket& bucket, const comm::Group& group) {
  const at::NoGradGuard no_grad;
  if (group.size() == 1) return [] {};
  check_agreement(group);
  auto round = std::make_shared<Round>();
  round->label = "gradients from " + bucket.names.front() + " on";
  const at::ScalarType dtype = bucket.memory.scalar_type();
  const bool is_supported = dtype == at::kFloat || dtype == at::kDouble;
  std::int64_t left_elements = 0;
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    const at::Tensor& gradient = bucket.gradients[i];
    const bool is_early = parameters_[bucket.names[i]].iterations++ < options_.start_iteration;
    if (is_supported && !is_early && pays(gradient)) {
      const Matrix& matrix = round->matrices.emplace_back(as_matrix(gradient, bucket.names[i]));
      left_elements += matrix.whole.size(0) * matrix.rank;
    } else {
      round->others.push_back(gradient.as_strided({gradient.numel()}, {1}));
    }
  }
  if (round->matrices.empty()) return detail::start_plain_sum(bucket.memory, group, round->label);
  if (!round->others.empty()) {
    round->others_message = at::cat(round->others);
    round->others_sum = detail::start_plain_sum(round->others_message, group, round->label);
  }
  round->left_message = at::empty({left_elements}, bucket.memory.options());
  std::int64_t offset = 0;
  for (Matrix& matrix : round->matrices) {
    matrix.right = next_right(matrix);
    const std::int64_t rows = matrix.whole.size(0);
    matrix.left =
        round->left_message.narrow(0, offset, rows * matrix.rank).view({rows, matrix.rank});
    at::mm_out(matrix.left, matrix.whole, matrix.right);
    offset += rows * matrix.rank;
  }
  round->left_sum = detail::start_plain_sum(round->left_message, group, round->label);
  return [this, round, group] { finish(*round, group); };
}

void PowerSgdCommHook::finish(Round& round, const comm::Group& group) {
  const at::NoGradGuard no_grad;
  round.left_sum();
  std::vector<at::Tensor> own_rights;
  for (Matrix& matrix : round.matrices) {
    matrix.left = orthonormal(matrix.left, options_.orthogonalization_epsilon);
    own_rights.push_back(matrix.whole.t().mm(matrix.left).flatten());
  }
  const at::Tensor message = at::cat(own_rights);
  comm::all_reduce(message, group, comm::ReduceOp::kSum, round.label);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < round.matrices.size(); ++i) {
    const at::Tensor right = message.narrow(0, offset, own_rights[i].numel());
    offset += right.numel();
    const at::IntArrayRef sizes = round.matrices[i].right.sizes();
    decompress(round.matrices[i], own_rights[i].view(sizes), right.view(sizes));
  }
  if (!round.others_sum) return;
  round.others_sum();
  offset = 0;
  for (const at::Tensor& other : round.others) {
    other.copy_(round.others_message.narrow(0, offset, other.numel()));
    offset += other.numel();
  }
}

// Computes the result and what is left over. `own_right` is this rank's summand of `right`.
void PowerSgdCommHook::decompress(Matrix& matrix, const at::Tensor& own_right,
                                  const at::Tensor& right) {
  Parameter& parameter = *matrix.parameter;
  // `right` has the same bits on all ranks, so all ranks decide alike.
  if (at::isfinite(right).all().item<bool>()) {
    if (options_.error_feedback) {
      if (!parameter.left_over.defined()) {
        parameter.left_over = at::empty(matrix.whole.sizes(), matrix.whole.options());
      }
      at::addmm_out(parameter.left_over, matrix.whole, matrix.left, own_right.t(), 1, -1);
    }
    if (options_.warm_start) {
      // A zero column would stay zero in every power iteration. Keep the old column instead.
      parameter.right =
          at::where(right.ne(0).any(/*dim=*/0, /*keepdim=*/true), right, matrix.right);
    }
  }
  at::mm_out(matrix.whole, matrix.left, right.t());
  if (!matrix.whole.is_alias_of(matrix.gradient)) {
    matrix.gradient.copy_(matrix.whole.view(matrix.gradient.sizes()));
  }
}

}  // namespace trireme
