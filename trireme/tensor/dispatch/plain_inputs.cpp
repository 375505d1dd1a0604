// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/plain_inputs.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/check_values.h>
#include <trireme/comm/collectives.h>
#include <trireme/tensor/dry_run/dry_run.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace trireme::tensor {
namespace {

constexpr std::size_t kMostSeen = 256;  // between two checks

constexpr auto kSameRows =
    "give the ranks that work together the same rows: those of the part of the data that "
    "trireme::data_part(plan, group) names, with the same seed of shuffling; draw other tensors "
    "from the default generator, or broadcast them";

struct Recorders {
  std::mutex mutex;
  std::unordered_map<const DeviceMesh::State*, std::vector<PlainInputs*>> of_mesh;
};

Recorders& recorders() {
  static Recorders& all = *new Recorders;  // never destroyed: modules may live as long as statics
  return all;
}

std::atomic<int> num_recorders = 0;

// Single numbers are not compared: they are often a rank's own, and are not rows.
bool is_compared(const InputSlot& slot) {
  if (slot.meta != nullptr) return false;
  const at::Tensor& tensor = *slot.tensor;
  return tensor.numel() > 1 && tensor.layout() == at::kStrided && !tensor.is_meta() &&
         !tensor.is_quantized() && tensor.has_storage() && tensor.storage().nbytes() > 0;
}

std::string describe(const OperatorFacts& facts, const at::Tensor& tensor) {
  return join_message("operator ", facts.name, ", tensor ", tensor.sizes(), " of ",
                      tensor.scalar_type());
}

// The line of one recorded tensor: its digest and the call.
struct Line {
  std::string digest;
  std::string call;
};

std::vector<Line> lines_of(const std::string& text) {
  std::vector<Line> all;
  TextReader lines(text);
  for (Line line; lines >> line.digest && std::getline(lines, line.call);) all.push_back(line);
  return all;
}

// Returns the first call that received different values on two ranks, or nothing if the ranks made
// different calls.
std::optional<std::string> find_different(const std::vector<Line>& a, const std::vector<Line>& b) {
  if (!std::ranges::equal(a, b, {}, &Line::call, &Line::call)) return std::nullopt;
  const auto different = std::ranges::mismatch(a, b, {}, &Line::digest, &Line::digest).in1;
  return different == a.end() ? std::nullopt : std::optional(different->call);
}

}  // namespace

PlainInputs::PlainInputs(const DeviceMesh& mesh) : mesh_(mesh) {
  const std::lock_guard lock(recorders().mutex);
  recorders().of_mesh[mesh_.state().get()].push_back(this);
  ++num_recorders;
}

PlainInputs::~PlainInputs() {
  const std::lock_guard lock(recorders().mutex);
  const auto found = recorders().of_mesh.find(mesh_.state().get());
  std::erase(found->second, this);
  if (found->second.empty()) recorders().of_mesh.erase(found);
  --num_recorders;
}

void PlainInputs::check() {
  TextWriter own;
  {
    const std::lock_guard lock(recorders().mutex);
    for (const Seen& seen : std::exchange(seen_, {})) own << seen.digest << seen.call << "\n";
  }
  const comm::Group& group = mesh_.group();
  const std::vector<std::string> all = comm::all_gather_text(own.str(), group);
  const std::vector<Line> first = lines_of(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto different = find_different(first, lines_of(all[rank]));
    if (!different) continue;
    throw UsageError(join_message("ranks 0 and ", rank, " of [", mesh_.to_string(),
                                  "], which work on one part of the data together, have given "
                                  "different values to",
                                  *different, ", beside distributed tensors"),
                     kSameRows);
  }
}

bool notes_plain_inputs() {
  return num_recorders.load(std::memory_order_relaxed) > 0 || comm::checks_values();
}

void note_plain_inputs(const OperatorFacts& facts, const Scan& scan) {
  if (std::ranges::none_of(scan.inputs, is_compared)) return;
  if (DryRun::of_thread() != nullptr) return;
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveLocal);
  const DeviceMesh mesh = scan.first->layout.mesh();
  for (const InputSlot& slot : scan.inputs) {
    if (!is_compared(slot)) continue;
    if (comm::checks_values() && mesh.contains_this_rank()) {
      const comm::NamedValue named = {.name = describe(facts, *slot.tensor), .value = *slot.tensor};
      comm::check_equal_values({&named, 1}, mesh.group(),
                               "plain tensors given to operators on distributed ones");
    }
    const std::lock_guard lock(recorders().mutex);
    const auto found = recorders().of_mesh.find(mesh.state().get());
    if (found == recorders().of_mesh.end()) continue;
    for (PlainInputs* const recorder : found->second) {
      if (recorder->seen_.size() == kMostSeen) continue;
      recorder->seen_.push_back({.call = " " + describe(facts, *slot.tensor),
                                 .digest = comm::digest_of_values(*slot.tensor)});
    }
  }
}

}  // namespace trireme::tensor
