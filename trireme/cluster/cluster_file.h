// SPDX-License-Identifier: Apache-2.0
// Reads and writes descriptions of clusters as TOML. Format: docs/formats/cluster.md.
#pragma once

#include <trireme/base/config/fields.h>
#include <trireme/cluster/cluster.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::cluster {

config::EnumNames<LinkLevel> enum_names(LinkLevel level);

/// Describes the fields of a description.
void describe(config::Fields& fields, PeakTeraflops& peak);
void describe(config::Fields& fields, Efficiency& efficiency);
void describe(config::Fields& fields, DeviceKind& kind);
void describe(config::Fields& fields, Hosts& hosts);
void describe(config::Fields& fields, Links& links);
void describe(config::Fields& fields, Curve& curve);
void describe(config::Fields& fields, MeasuredOperator& measured);
void describe(config::Fields& fields, MeasuredCollective& measured);
void describe(config::Fields& fields, MeasuredOptimizer& measured);
void describe(config::Fields& fields, Cluster& cluster);

/// Returns the names of the descriptions that come with Trireme, such as `a100-80`.
std::vector<std::string> known_clusters();

/// Returns the description with the given name, or else the one in the given TOML file. Writes the
/// warnings of implausible_figures() to standard error. Throws ConfigError with file, line and what
/// was expected for text that is no description, with the file and all of problems_of() for a
/// description that is not complete, and if there is neither a known description nor a file of this
/// name.
Cluster read_cluster(const std::string& name_or_file);

/// Returns a text that names the same description in another working folder: the name itself if it
/// is that of a known description, otherwise the absolute path of the file.
std::string absolute_cluster_name(const std::string& name_or_file);

/// Returns the description in a TOML text. Throws as read_cluster.
/// @param origin names the text in messages.
Cluster parse_cluster(const std::string& text, const std::string& origin);

/// Returns the TOML text of a description, which reads back as the same value. Throws ConfigError
/// if a figure of a device, hosts or links is missing or outside its limits, and if a text is not
/// UTF-8.
std::string to_toml(const Cluster& cluster);

/// Writes to_toml() to a file atomically. Throws ConfigError as to_toml() does, and CheckpointError
/// if the file system refuses.
void write_cluster(const Cluster& cluster, const std::filesystem::path& file);

}  // namespace trireme::cluster
