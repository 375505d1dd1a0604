// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/cifar100.h>

#include <trireme/data/dataset_views.h>
#include <trireme/data/detail/cifar.h>

namespace trireme::data {

std::shared_ptr<const Dataset> cifar100(const std::filesystem::path& folder, Split split) {
  constexpr std::string_view kCifar100Remedy =
      "get the binary version of CIFAR-100, whose folder is cifar-100-binary";
  const std::string wanted = split == Split::kTrain ? "train.bin" : "test.bin";
  detail::check_folder(folder, wanted, kCifar100Remedy);
  if (!std::filesystem::exists(folder / wanted))
    detail::fail_without_files(folder, wanted, kCifar100Remedy);
  const detail::CifarFormat format{"CIFAR-100", {{"coarse_label", 20}, {"label", 100}}};
  // As in CIFAR-10, the label to be learnt comes second.
  return select_columns(detail::read_cifar(format, {folder / wanted}),
                        {"image", "label", "coarse_label"});
}

}  // namespace trireme::data
