// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/module/agreement.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/text.h>
#include <trireme/comm/check_values.h>
#include <trireme/comm/collectives.h>
#include <trireme/parallel/init/deferred_scope.h>

#include <c10/util/hash.h>

#include <algorithm>
#include <exception>

namespace trireme::detail {
namespace {

// Returns one line for each tensor: `weight [10, 4] strides [4, 1] Float on cpu, trained`.
std::string describe(const std::vector<NamedTensor>& tensors) {
  TextWriter text;
  for (const auto& [name, tensor, has_sparse_gradient] : tensors) {
    text << name << " " << tensor.sizes() << " strides " << tensor.strides() << " "
         << tensor.scalar_type() << " on "
         << c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true)
         << (tensor.requires_grad() ? ", trained" : "")
         << (has_sparse_gradient ? ", sparse gradient" : "")
         << (is_deferred(tensor) ? ", without memory" : "") << "\n";
  }
  return text.str();
}

// Returns the first line in which two descriptions differ, from each.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  TextReader lines_a(a);
  TextReader lines_b(b);
  std::string line_a;
  std::string line_b;
  while (true) {
    const bool has_a = static_cast<bool>(std::getline(lines_a, line_a));
    const bool has_b = static_cast<bool>(std::getline(lines_b, line_b));
    if (!has_a) line_a = "nothing more";
    if (!has_b) line_b = "nothing more";
    if (line_a != line_b || (!has_a && !has_b)) return {line_a, line_b};
  }
}

}  // namespace

std::int64_t digest_of(const at::Tensor& tensor) {
  return comm::digest_of_values(tensor.detach().as_strided({tensor.numel()}, {1}));
}

void check_same_text(const std::string& what, const std::string& text, const comm::Group& group,
                     const std::string& hint) {
  const std::vector<std::string> all = comm::all_gather_text(text, group);
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const auto& digest) { return digest != all.front(); });
  if (other == all.end()) return;
  const auto [first, differing] = first_difference(all.front(), *other);
  throw UsageError(join_message("ranks differ in the ", what, ": rank 0 has '", first, "', rank ",
                                other - all.begin(), " has '", differing, "'"),
                   hint.empty() ? join_message("give every rank the same ", what) : hint);
}

void succeed_together(const comm::Group& group, const std::string& doing,
                      const std::function<void()>& call) {
  std::exception_ptr own;
  std::string failure;
  try {
    call();
    // The group is broken: an exchange of messages below would fail, or wait, too.
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    own = std::current_exception();
    failure = join_message("failed: ", message_of(error));
  }
  const std::vector<std::string> all = comm::all_gather_text(failure, group);
  if (own) std::rethrow_exception(own);
  const auto first =
      std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
  if (first == all.end()) return;
  throw UsageError(
      join_message("rank ", first - all.begin(), " could not ", doing, " and ", *first),
      "do on that rank what its message says; this one only follows it");
}

void abort(const comm::Group& group, const std::string& reason) { group.abort(reason); }

void check_same_on_all_ranks(const std::vector<NamedTensor>& tensors, const std::string& kind,
                             const comm::Group& group) {
  const std::string own = describe(tensors);
  // A digest is enough in the usual case. The long descriptions are sent only to explain an error.
  const std::vector<std::string> digests = comm::all_gather_text(c10::sha1(own).str(), group);
  const auto other = std::find_if(digests.begin(), digests.end(),
                                  [&](const auto& digest) { return digest != digests.front(); });
  if (other == digests.end()) return;
  const std::vector<std::string> all = comm::all_gather_text(own, group);
  const auto rank = other - digests.begin();
  const auto [first, differing] =
      first_difference(all.front(), all[static_cast<std::size_t>(rank)]);
  throw UsageError(
      join_message("the module differs between ranks, first in a ", kind, ":\n    rank 0 has ",
                   first, "\n    rank ", rank, " has ", differing),
      "build the same module on every rank before parallelize");
}

}  // namespace trireme::detail
