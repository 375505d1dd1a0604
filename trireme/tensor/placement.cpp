// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/placement.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <c10/util/hash.h>

#include <mutex>
#include <unordered_set>

namespace trireme {
namespace {

static_assert(sizeof(Placement) == 2 * sizeof(void*));

struct HashRanges {
  std::size_t operator()(const std::vector<FlatRange>& ranges) const {
    std::size_t hash = ranges.size();
    for (const FlatRange& range : ranges) {
      hash = c10::hash_combine(hash, std::hash<std::int64_t>()(range.offset));
      hash = c10::hash_combine(hash, std::hash<std::int64_t>()(range.length));
    }
    return hash;
  }
};

// Returns the one stored copy of these ranges. Elements of a node container do not move, so the
// pointer stays valid.
const std::vector<FlatRange>* intern(const std::vector<FlatRange>& ranges) {
  static std::mutex mutex;
  static std::unordered_set<std::vector<FlatRange>, HashRanges> known;
  const std::lock_guard lock(mutex);
  return &*known.insert(ranges).first;
}

}  // namespace

Placement::Placement(const FlatShard& flat)
    : kind_(Kind::kFlatShard), ranges_(intern(flat.ranges)) {}

void Placement::refuse(Shard shard) {
  throw UsageError(
      join_message("Shard(", shard.dim, ", level ", shard.level, "): dims and levels go up to 127"),
      "give a dim of the tensor, and leave the level out unless axes share the dim");
}

const std::vector<FlatRange>& Placement::ranges() const noexcept {
  static const std::vector<FlatRange> none;
  return ranges_ != nullptr ? *ranges_ : none;
}

std::string Placement::to_string() const {
  TextWriter text;
  switch (kind_) {
    case Kind::kReplicate:
      text << "Replicate";
      break;
    case Kind::kShard:
      text << "Shard(" << dim();
      if (level_ >= 0) text << ", level " << level();
      text << ")";
      break;
    case Kind::kPartial:
      text << "Partial(" << trireme::to_string(op_) << ")";
      break;
    case Kind::kFlatShard:
      text << "FlatShard(";
      for (std::size_t at = 0; at < ranges().size(); ++at) {
        const FlatRange& range = ranges()[at];
        text << (at == 0 ? "" : ", ") << range.offset << "+" << range.length;
      }
      text << ")";
      break;
  }
  return text.str();
}

std::size_t Placement::hash() const noexcept {
  const auto word = static_cast<std::size_t>(kind_) | static_cast<std::size_t>(op_) << 8U |
                    static_cast<std::size_t>(static_cast<std::uint8_t>(dim_)) << 16U |
                    static_cast<std::size_t>(static_cast<std::uint8_t>(level_)) << 24U;
  return c10::hash_combine(word, std::hash<const void*>()(ranges_));
}

const char* to_string(PartialOp op) {
  switch (op) {
    case PartialOp::kSum:
      return "sum";
    case PartialOp::kAverage:
      return "average";
    case PartialOp::kMaximum:
      return "maximum";
    case PartialOp::kMinimum:
      return "minimum";
    case PartialOp::kProduct:
      return "product";
  }
  return "unknown";
}

}  // namespace trireme
