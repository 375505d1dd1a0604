// SPDX-License-Identifier: Apache-2.0
// The two halves of save_parts: which parts this rank writes, and the writing of them. Internal to
// this component.
#pragma once

#include <trireme/checkpoint/checkpoint.h>

#include <filesystem>
#include <functional>
#include <vector>

namespace trireme::checkpoint {

// Of the parts that the same ranks hold, those that fall to this one: the largest first, each to
// the rank that has least, alike on all of them. The rest are this rank's own. Not collective.
std::vector<TensorPart> choose_own(const std::vector<TensorPart>& parts, const comm::Group& group);

// The same for what a rank gives, without what SaveOptions leaves out, which is noted.
void choose_own(const SaveOptions& options, const comm::Group& group, Content& content);

// Collective, see save_parts. `own` gives what this rank writes, which choose_own has chosen.
// `of_ranks` are kept in place of each rank's `state.own`: those of the ranks that wrote a
// checkpoint which is now written anew.
std::filesystem::path save_own(const SaveOptions& options, const std::function<Content()>& own,
                               const comm::Group& group,
                               const std::vector<Entries>* of_ranks = nullptr);

}  // namespace trireme::checkpoint
