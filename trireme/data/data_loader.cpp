// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/data_loader.h>

#include <trireme/base/error.h>
#include <trireme/data/detail/dataset_checks.h>
#include <trireme/data/detail/loader_spec.h>
#include <trireme/data/detail/pass.h>
#include <trireme/data/detail/stream.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <string_view>
#include <utility>

namespace trireme::data {
namespace {

void check_at_least(std::string_view what, std::int64_t value, std::int64_t minimum) {
  if (value >= minimum) return;
  throw UsageError(join_message(what, " is ", value, ", expected at least ", minimum),
                   "give a larger number");
}

// Limits counts to 31 bits, so that the product of two of them cannot overflow.
void check_count(std::string_view what, std::int64_t value, std::int64_t minimum) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  check_at_least(what, value, minimum);
  if (value <= kMost) return;
  throw UsageError(join_message(what, " is ", value, ", expected at most ", kMost),
                   "give a smaller number");
}

// A Dataset of the program may return columns that the loader cannot read in place.
void check_stored(const Dataset& dataset) {
  const std::vector<at::Tensor>& stored = dataset.stored();
  if (stored.empty()) return;
  if (stored.size() != dataset.columns().size()) {
    throw UsageError(
        join_message("Dataset::stored() has ", stored.size(), " tensors, expected ",
                     dataset.columns().size(), ": ", detail::quoted(dataset.columns())),
        "return one tensor for each column, or none at all");
  }
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const at::Tensor& column = stored[i];
    const bool is_dense = column.defined() && column.layout() == at::kStrided && column.is_cpu();
    if (is_dense && column.is_contiguous() && !column.is_conj() && !column.is_neg() &&
        column.dim() > 0 && column.size(0) == dataset.size()) {
      continue;
    }
    throw UsageError(
        join_message("Dataset::stored() has for column '", dataset.columns()[i], "' ",
                     column.defined() ? join_message(column.scalar_type(), " ", column.sizes())
                                      : "no tensor",
                     ", expected a contiguous CPU tensor of ", dataset.size(), " rows"),
        "return contiguous columns, or none at all");
  }
}

const std::vector<std::string>& last_columns(const detail::LoaderSpec& spec) {
  return spec.blocks.back().columns;
}

// Returns the columns of the samples and those that pad() adds. Throws UsageError if a name
// repeats.
std::vector<std::string> names_of(const std::vector<std::string>& columns,
                                  const std::vector<detail::PaddedColumn>& padded) {
  std::vector<std::string> names = columns;
  for (const auto& [column, padding] : padded) {
    if (!padding.lengths.empty()) names.push_back(padding.lengths);
  }
  detail::check_names(names);
  return names;
}

// Returns name and origin of each column of the next block. The results take the position of the
// first input.
std::vector<std::pair<std::string, detail::Join::Source>> sources_of(
    const std::vector<std::string>& columns, const std::vector<std::size_t>& inputs,
    const std::vector<std::string>& results) {
  std::vector<std::pair<std::string, detail::Join::Source>> sources;
  for (std::size_t column = 0; column < columns.size(); ++column) {
    if (column == std::ranges::min(inputs)) {
      for (std::size_t result = 0; result < results.size(); ++result) {
        sources.push_back({results[result], {true, result}});
      }
    }
    const bool is_input = std::ranges::find(inputs, column) != inputs.end();
    if (!is_input) sources.push_back({columns[column], {false, column}});
  }
  return sources;
}

// Hashes numbers by 64-bit FNV-1a.
std::uint64_t digest_of(const std::vector<std::int64_t>& numbers) {
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const std::int64_t number : numbers) {
    for (int shift = 0; shift < 64; shift += 8) {
      digest ^= static_cast<std::uint64_t>(number) >> shift & 0xFF;
      digest *= 0x100000001b3;
    }
  }
  return digest;
}

// Throws UsageError if lengths and buckets do not fit the data set or each other.
void check_buckets(const std::vector<std::int64_t>& lengths, const Buckets& buckets,
                   std::int64_t samples) {
  if (static_cast<std::int64_t>(lengths.size()) != samples) {
    throw UsageError(
        join_message("buckets by ", lengths.size(), " lengths of ", samples, " samples"),
        "give the length of every sample of the data set");
  }
  if (std::ranges::adjacent_find(buckets.boundaries, std::ranges::greater_equal{}) !=
      buckets.boundaries.end()) {
    throw UsageError("the boundaries of buckets do not ascend", "sort them, each only once");
  }
  if (buckets.rows.size() != buckets.boundaries.size() + 1) {
    throw UsageError(join_message(buckets.rows.size(), " numbers of rows for ",
                                  buckets.boundaries.size() + 1, " buckets"),
                     "give one more than there are boundaries: the last bucket takes all that are "
                     "longer");
  }
  for (const std::int64_t rows : buckets.rows) {
    check_count("the number of rows of a bucket's batch", rows, 1);
  }
}

// Returns a spec with one block of columns and without transforms.
detail::LoaderSpec spec_of(const std::vector<std::string>& columns) {
  detail::check_names(columns);
  detail::LoaderSpec spec;
  spec.names = columns;
  spec.blocks.push_back({columns, {}, {}});
  spec.blocks.back().steps.resize(columns.size());
  return spec;
}

// Throws UsageError if LibTorch was built without the device type or the machine does not have the
// device.
void check_device(at::Device device) {
  const bool is_there =
      c10::impl::hasDeviceGuardImpl(device.type()) &&
      std::max<int>(device.index(), 0) < c10::impl::VirtualGuardImpl(device.type()).deviceCount();
  if (is_there) return;
  throw UsageError(join_message("batches cannot go to ", device, ", which is not there"),
                   "name a device of this machine that LibTorch was built for");
}

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset) {
  if (!dataset || dataset->size() < 1) {
    throw UsageError("a data loader over a data set without samples",
                     "check where the data set was made");
  }
  check_stored(*dataset);
  detail::LoaderSpec spec = spec_of(dataset->columns());
  spec.dataset = std::move(dataset);
  spec_ = std::make_shared<const detail::LoaderSpec>(std::move(spec));
}

DataLoader::DataLoader(std::shared_ptr<const IterableDataset> dataset) {
  if (!dataset || dataset->size() == 0) {
    throw UsageError("a data loader over a data set without samples",
                     "check where the data set was made");
  }
  detail::LoaderSpec spec = spec_of(dataset->columns());
  spec.iterable = std::move(dataset);
  spec_ = std::make_shared<const detail::LoaderSpec>(std::move(spec));
}

void DataLoader::check_numbered(const char* what) const {
  if (spec_->dataset) return;
  throw UsageError(join_message(what, " of a data set that can only be read to its end"),
                   "such samples have shuffle_buffer, strided shards and batch");
}

// Streams share the spec with the loader, so a change makes a copy of it.
template <typename Change>
DataLoader& DataLoader::edit(const Change& change) {
  auto spec = std::make_shared<detail::LoaderSpec>(*spec_);
  change(*spec);
  spec_ = std::move(spec);
  return *this;
}

DataLoader& DataLoader::shuffle(std::uint64_t seed) {
  check_numbered("shuffle");
  return edit([&](detail::LoaderSpec& spec) {
    spec.whole_shuffle = detail::WholeShuffle{seed};
    spec.buffer_shuffle.reset();
  });
}

DataLoader& DataLoader::shuffle_buffer(std::int64_t samples, std::uint64_t seed) {
  check_at_least("the number of samples in the shuffle buffer", samples, 1);
  return edit([&](detail::LoaderSpec& spec) {
    spec.buffer_shuffle = detail::BufferShuffle{samples, seed};
    spec.whole_shuffle.reset();
  });
}

DataLoader& DataLoader::shard(Shard shard) {
  check_count("the number of shards", shard.count, 1);
  if (shard.index < 0 || shard.index >= shard.count) {
    throw UsageError(join_message("shard ", shard.index, " of ", shard.count),
                     join_message("shards are numbered from 0 to ", shard.count - 1));
  }
  if (shard.partition == Partition::kContiguous) check_numbered("contiguous shards");
  return edit([&](detail::LoaderSpec& spec) {
    spec.shard = shard;
    spec.is_sharded = true;
  });
}

DataLoader& DataLoader::map(const std::string& column, Transform transform) {
  const std::size_t index = detail::column_index(last_columns(*spec_), column);
  return edit([&](detail::LoaderSpec& spec) {
    spec.blocks.back().steps[index].push_back({std::move(transform), ++spec.num_steps});
  });
}

DataLoader& DataLoader::map_columns(const std::vector<std::string>& from,
                                    const std::vector<std::string>& to, SampleTransform transform) {
  if (from.empty()) {
    throw UsageError("map_columns of no column", "name the columns that the function takes");
  }
  detail::check_names(from);
  const std::vector<std::string>& columns = last_columns(*spec_);
  std::vector<std::size_t> inputs;
  for (const std::string& name : from) inputs.push_back(detail::column_index(columns, name));
  detail::TransformBlock next;
  std::vector<detail::Join::Source> sources;
  for (auto& [name, source] : sources_of(columns, inputs, to)) {
    next.columns.push_back(std::move(name));
    sources.push_back(source);
  }
  if (next.columns.empty()) {
    throw UsageError("map_columns leaves no column", "name at least one that the function gives");
  }
  next.steps.resize(next.columns.size());
  // Everything that may throw comes before edit(), so that a failed call leaves the loader
  // unchanged.
  std::vector<std::string> names = names_of(next.columns, spec_->padded);
  for (const auto& [column, padding] : spec_->padded) {
    if (std::ranges::find(next.columns, column) != next.columns.end()) continue;
    throw UsageError(
        join_message("map_columns takes away column '", column, "', which pad() was called for"),
        "call map_columns first and pad() for what it gives");
  }
  return edit([&](detail::LoaderSpec& spec) {
    spec.blocks.back().join = detail::Join{std::move(transform), ++spec.num_steps,
                                           std::move(inputs), to, std::move(sources)};
    spec.blocks.push_back(std::move(next));
    spec.names = std::move(names);
  });
}

DataLoader& DataLoader::map_columns(const std::vector<std::string>& columns,
                                    SampleTransform transform) {
  return map_columns(columns, columns, std::move(transform));
}

DataLoader& DataLoader::map_batch(BatchTransform transform) {
  return edit([&](detail::LoaderSpec& spec) {
    spec.batch_steps.push_back({std::move(transform), ++spec.num_steps});
  });
}

DataLoader& DataLoader::batch(std::int64_t rows, LastBatch last) {
  check_count("the number of rows of a batch", rows, 1);
  return edit([&](detail::LoaderSpec& spec) {
    spec.rows = rows;
    spec.is_batched = true;
    spec.last = last;
    spec.buckets.reset();
  });
}

DataLoader& DataLoader::bucket(const std::vector<std::int64_t>& lengths, Buckets buckets,
                               LastBatch last) {
  check_numbered("bucket");
  check_buckets(lengths, buckets, spec_->dataset->size());
  auto plan = std::make_shared<detail::BucketPlan>();
  plan->counts.resize(buckets.rows.size());
  plan->bucket_of.reserve(lengths.size());
  for (const std::int64_t length : lengths) {
    // Bucket i holds lengths below boundaries[i], so the first greater boundary is that of the
    // bucket.
    const auto place = std::ranges::upper_bound(buckets.boundaries, length);
    plan->bucket_of.push_back(static_cast<std::uint32_t>(place - buckets.boundaries.begin()));
    ++plan->counts[plan->bucket_of.back()];
  }
  plan->digest = digest_of(lengths);
  plan->buckets = std::move(buckets);
  return edit([&](detail::LoaderSpec& spec) {
    spec.buckets = std::move(plan);
    spec.is_batched = true;
    spec.last = last;
  });
}

DataLoader& DataLoader::split_batches(std::int64_t parts) {
  check_at_least("the number of parts of a batch", parts, 1);
  const auto refuse = [&](const std::string& what) {
    throw UsageError(join_message(what, " cannot be divided into ", parts, " equal parts"),
                     join_message("call batch() with a multiple of ", parts, " rows"));
  };
  if (!spec_->is_batched) refuse("batches of a data loader without a batch size");
  if (spec_->buckets) refuse("batches of bucket(), whose last ones have fewer rows,");
  if (spec_->rows % parts != 0) refuse(join_message("batches of ", spec_->rows, " rows"));
  return edit([&](detail::LoaderSpec& spec) {
    spec.rows /= parts;
    spec.last = LastBatch::kDrop;
  });
}

DataLoader& DataLoader::pad(const std::string& column, Padding padding) {
  detail::column_index(last_columns(*spec_), column);
  for (const detail::PaddedColumn& other : spec_->padded) {
    if (other.column != column) continue;
    throw UsageError(join_message("column '", column, "' is padded twice"),
                     "name all dimensions in one call: Padding::dimensions");
  }
  check_count("the multiple of padding", padding.multiple, 1);
  if (padding.length) {
    check_at_least("the length of padding", *padding.length, 1);
    if (padding.multiple != 1) {
      throw UsageError(join_message("padding of column '", column, "' to the length ",
                                    *padding.length, " and to a multiple of ", padding.multiple),
                       "give one of the two");
    }
  }
  if (padding.dimensions.empty()) {
    throw UsageError(join_message("padding of no dimension of column '", column, "'"),
                     "name at least one in Padding::dimensions");
  }
  std::vector<detail::PaddedColumn> padded = spec_->padded;
  padded.push_back({column, std::move(padding)});
  std::vector<std::string> names = names_of(last_columns(*spec_), padded);
  return edit([&](detail::LoaderSpec& spec) {
    spec.padded = std::move(padded);
    spec.names = std::move(names);
  });
}

DataLoader& DataLoader::skip_failed(std::int64_t at_most) {
  check_at_least("the number of samples to skip", at_most, 0);
  return edit([&](detail::LoaderSpec& spec) {
    // Without a limit, the collator does not catch errors at all.
    spec.skip_limit = at_most == 0 ? std::nullopt : std::optional(at_most);
  });
}

DataLoader& DataLoader::repeat(std::int64_t times) {
  check_count("the number of repetitions", times, 1);
  return edit([&](detail::LoaderSpec& spec) { spec.times = times; });
}

DataLoader& DataLoader::prefetch(int batches, int workers) {
  check_at_least("the number of prefetched batches", batches, 0);
  check_at_least("the number of workers", workers, 1);
  return edit([&](detail::LoaderSpec& spec) {
    spec.prefetch = batches;
    spec.workers = workers;
  });
}

DataLoader& DataLoader::to(at::Device device) {
  check_device(device);
  return edit([&](detail::LoaderSpec& spec) {
    spec.device = device.is_cpu() ? std::nullopt : std::optional(device);
  });
}

DataLoader& DataLoader::seed(std::uint64_t seed) {
  return edit([&](detail::LoaderSpec& spec) { spec.seed = seed; });
}

std::int64_t DataLoader::batches() const { return spec_->batches_per_pass() * spec_->times; }

std::int64_t DataLoader::samples() const { return spec_->samples_per_pass() * spec_->times; }

std::vector<std::int64_t> DataLoader::samples_of(std::int64_t epoch, std::int64_t batch) const {
  check_count("the epoch", epoch, 0);
  check_at_least("the batch", batch, 0);
  if (!spec_->dataset || batch >= batches()) return {};
  auto request = detail::make_batch_sampler(spec_, epoch, batch)->next();
  if (!request) return {};
  std::vector<std::int64_t> samples = std::move(request->rows.samples);
  samples.resize(samples.size() - static_cast<std::size_t>(request->rows.padded));
  return samples;
}

bool DataLoader::is_sharded() const noexcept { return spec_->is_sharded; }

bool DataLoader::is_batched() const noexcept { return spec_->is_batched; }

const std::vector<std::string>& DataLoader::columns() const { return spec_->names; }

std::unique_ptr<BatchStream> DataLoader::open(std::int64_t epoch, std::int64_t first_batch) const {
  check_count("the epoch", epoch, 0);
  check_at_least("the first batch", first_batch, 0);
  // An iterable data set of unknown size has no total to check against.
  const bool is_known = spec_->dataset || spec_->iterable->size();
  if (const std::int64_t total = is_known ? batches() : first_batch; first_batch > total) {
    throw UsageError(
        join_message("the first batch is ", first_batch, ", but an epoch has ", total, " batches"),
        "pass how many batches of this epoch were seen already");
  }
  return detail::open_stream(spec_, epoch, first_batch);
}

std::unique_ptr<BatchStream> DataLoader::open(const StreamState& state) const {
  std::string differences;
  const auto add = [&](const std::string& name, std::string_view there, std::string_view here) {
    differences += join_message(differences.empty() ? "" : "; ", name, ": ", there,
                                " in the state, ", here, " here");
  };
  const auto settings = spec_->settings();
  // Collects all differences, so that the user can fix them at once.
  for (const auto& [name, here] : settings) {
    const auto there =
        std::ranges::find(state.settings, name, [](const auto& entry) { return entry.first; });
    if (there == state.settings.end()) {
      add(name, "nothing", here);
    } else if (there->second != here) {
      add(name, there->second, here);
    }
  }
  if (!differences.empty()) {
    throw UsageError(join_message("the state is of another data loader: ", differences),
                     "make the data loader as it was, or give open() the epoch and the batch");
  }
  return open(state.epoch, state.next_batch);
}

}  // namespace trireme::data
