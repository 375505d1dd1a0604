// SPDX-License-Identifier: Apache-2.0
// A training that somebody ran and published, as a row of a CSV file. Format:
// docs/formats/published-cases.md.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/predict/fused_elements.h>
#include <trireme/predict/prediction.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::apps {

/// How attention is computed.
enum class AttentionKernel {
  kUnfused,  ///< its weights go through memory
  kTriton,   ///< fused by FlashAttention's first kernels in Triton
  kFused,    ///< fused by kernels like FlashAttention-2
};

/// One row.
struct PublishedCase {
  std::string table;   ///< the published table
  std::string family;  ///< family of models
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t key_value_heads = 0;  ///< 0: as many as heads
  std::int64_t ffn = 0;              ///< size inside of the MLP
  std::int64_t vocabulary = 0;
  std::int64_t sequence = 0;
  std::string device;  ///< kind, such as `A100-80`
  std::int64_t devices = 0;
  std::string dtype;
  std::int64_t tensor = 1;
  std::int64_t pipe = 1;
  std::int64_t layers_per_stage = 0;  ///< of an interleaved schedule; 0: all layers of a rank
  std::int64_t data = 1;
  int zero_level = 0;
  bool shards_in_host = false;  ///< hybrid: shards lie inside of a host
  std::string recompute;        ///< `none`, `full`, `selective` or `some_blocks`
  AttentionKernel attention = AttentionKernel::kFused;
  double dropout = 0;
  bool gathers_ahead_in_backward = true;
  /// Recomputation repeats blocks to their end, and not only what backward reads.
  bool repeats_whole_blocks = true;
  predict::Elements elements = predict::Elements::kEager;
  std::int64_t micro_batch = 1;
  std::int64_t global_batch = 1;
  double host_gbit_per_s = 0;  ///< bandwidth between hosts; 0: as described for the device
  std::string metric;
  double value = 0;

  /// Returns the number of micro-batches of a step.
  std::int64_t micro_batches() const { return global_batch / (micro_batch * data); }
  /// Returns the settings of the model, as make_predicted_model takes them.
  std::vector<std::string> model_settings() const;
  /// Returns the cluster: hosts of eight devices.
  cluster::Cluster cluster() const;
  /// Returns the published figure as the prediction has it.
  double metric_of(const predict::Prediction& prediction) const;
  /// Returns true if the figure is a time or a rate.
  bool is_rate() const { return metric != "memory_gib" && metric != "out_of_memory"; }
  /// Returns true if the figure is memory.
  bool is_memory() const { return metric == "memory_gib"; }
  /// Returns false if the training ran out of memory.
  bool has_run() const { return metric != "out_of_memory"; }
  /// Returns a text that cases share which differ in their strategy only.
  std::string same_work() const;
  /// Returns a short description.
  std::string title() const;
};

/// Reads a CSV file. Throws DataError with file and line for what cannot be read.
std::vector<PublishedCase> read_published_cases(const std::string& file);

}  // namespace trireme::apps
