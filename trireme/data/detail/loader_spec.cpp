// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/loader_spec.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/data/detail/dataset_checks.h>

#include <ios>

namespace trireme::data::detail {
namespace {

std::string_view name_of(LastBatch last) {
  switch (last) {
    case LastBatch::kKeep:
      return "kept";
    case LastBatch::kDrop:
      return "dropped";
    case LastBatch::kPad:
      return "padded";
  }
  return "";
}

std::string_view name_of(Remainder remainder) {
  switch (remainder) {
    case Remainder::kWrap:
      return "wrapped";
    case Remainder::kDrop:
      return "dropped";
    case Remainder::kUneven:
      return "uneven";
  }
  return "";
}

std::string shuffle_text(const LoaderSpec& spec) {
  if (spec.whole_shuffle) return join_message("whole, seed ", spec.whole_shuffle->seed);
  if (!spec.buffer_shuffle) return "none";
  return join_message("buffer of ", spec.buffer_shuffle->samples, ", seed ",
                      spec.buffer_shuffle->seed);
}

std::string shards_text(const Shard& shard) {
  return join_message(shard.count, ", ",
                      shard.partition == Partition::kStrided ? "strided" : "contiguous", ", rest ",
                      name_of(shard.remainder));
}

std::string batch_text(const LoaderSpec& spec) {
  if (!spec.buckets) {
    return join_message(spec.rows, " rows, the last one ", name_of(spec.last));
  }
  return join_message("buckets at ", list_text(spec.buckets->buckets.boundaries), " with ",
                      list_text(spec.buckets->buckets.rows), " rows, the last ones ",
                      name_of(spec.last), ", lengths ", std::hex, spec.buckets->digest);
}

// Lists transforms by number and name. Parameters and functions of the program cannot be compared.
std::string operations_text(const LoaderSpec& spec) {
  std::string text;
  const auto add = [&](std::uint64_t number, const std::string& what, const std::string& name) {
    text += join_message(text.empty() ? "" : "; ", number, " ", what, ": ", name);
  };
  for (const TransformBlock& block : spec.blocks) {
    for (std::size_t column = 0; column < block.columns.size(); ++column) {
      for (const Step& step : block.steps[column]) {
        add(step.number, block.columns[column], step.transform.name());
      }
    }
    if (block.join)
      add(block.join->number, quoted(block.join->results), block.join->transform.name());
  }
  for (const BatchStep& step : spec.batch_steps) {
    add(step.number, "batch", step.transform.name());
  }
  return text.empty() ? "none" : text;
}

std::string padding_text(const LoaderSpec& spec) {
  std::string text;
  for (const auto& [column, padding] : spec.padded) {
    text += join_message(text.empty() ? "" : "; ", column, ": dimensions ",
                         list_text(padding.dimensions), ", value ", padding.value, ", ");
    text += padding.length ? join_message("length ", *padding.length)
                           : join_message("multiple of ", padding.multiple);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::int64_t largest_shard(std::int64_t samples, Shard shard) {
  shard.index = 0;
  return shard_size(samples, shard);
}

std::int64_t LoaderSpec::size() const {
  if (dataset) return dataset->size();
  if (const auto size = iterable->size()) return *size;
  throw UsageError("the number of samples is not known: the data set can only be read to its end",
                   "let IterableDataset::size() return it, or count what a stream gives");
}

const std::vector<std::string>& LoaderSpec::source_columns() const {
  return dataset ? dataset->columns() : iterable->columns();
}

// With kPad all shards have a full batch if at least one of them has a sample; with kDrop only a
// batch that is full on all shards counts.
LoaderSpec::Part LoaderSpec::part_of(std::int64_t samples, std::int64_t batch_rows) const {
  const std::int64_t own = shard_size(samples, shard);
  if (last == LastBatch::kPad) return {own, largest_shard(samples, shard) > 0 ? batch_rows : 0};
  if (last == LastBatch::kDrop && samples < batch_rows * shard.count) return {0, 0};
  return {own, own};
}

std::int64_t LoaderSpec::samples_per_pass() const {
  std::int64_t kept = 0;
  if (buckets) {
    for (std::size_t i = 0; i < buckets->counts.size(); ++i) {
      const std::int64_t rows_here = buckets->buckets.rows[i];
      // Each bucket fills batches of all shards; the rest is divided among the shards.
      const std::int64_t whole = buckets->counts[i] / (rows_here * shard.count);
      const std::int64_t rest = buckets->counts[i] % (rows_here * shard.count);
      kept += whole * rows_here + part_of(rest, rows_here).valid;
    }
  } else {
    const std::int64_t own = shard_size(size(), shard);
    kept = last == LastBatch::kDrop ? own / rows * rows : own;
  }
  // An uneven shard without samples has no batches, which is not an error.
  const bool may_be_empty = shard.remainder == Remainder::kUneven && shard_size(size(), shard) == 0;
  if (kept > 0 || may_be_empty ||
      (buckets && shard.remainder == Remainder::kUneven && last != LastBatch::kDrop)) {
    return kept;
  }
  const std::string rows_text =
      buckets ? join_message("of the buckets have ", list_text(buckets->buckets.rows))
              : join_message("has ", rows);
  throw UsageError(join_message("not one batch: the batch", buckets ? "es " : " ", rows_text,
                                " rows, but shard ", shard.index, " of ", shard.count, " has ",
                                shard_size(size(), shard), " of the ", size(),
                                " samples, and what does not fill a batch or a shard is dropped"),
                   "use smaller batches, fewer shards, LastBatch::kKeep, or Remainder::kWrap");
}

std::int64_t LoaderSpec::batches_per_pass() const {
  const std::int64_t samples = samples_per_pass();
  if (buckets) {
    std::int64_t batches = 0;
    for (std::size_t i = 0; i < buckets->counts.size(); ++i) {
      const std::int64_t rows_here = buckets->buckets.rows[i];
      batches += buckets->counts[i] / (rows_here * shard.count);
      batches +=
          part_of(buckets->counts[i] % (rows_here * shard.count), rows_here).rows > 0 ? 1 : 0;
    }
    return batches;
  }
  // With padding, all shards have as many batches as the largest one.
  const std::int64_t covered = last == LastBatch::kPad ? largest_shard(size(), shard) : samples;
  return (covered + rows - 1) / rows;
}

std::vector<std::pair<std::string, std::string>> LoaderSpec::settings() const {
  const bool is_known = dataset || iterable->size();
  return {{"data set", join_message(is_known ? std::to_string(size()) : "an unknown number of",
                                    " samples of ", quoted(source_columns()))},
          {"shuffle", shuffle_text(*this)},
          {"shards", shards_text(shard)},
          {"batch", batch_text(*this)},
          {"repetitions", std::to_string(times)},
          {"seed", std::to_string(seed)},
          {"operations", operations_text(*this)},
          {"padding", padding_text(*this)}};
}

}  // namespace trireme::data::detail
