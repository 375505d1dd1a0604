// SPDX-License-Identifier: Apache-2.0
// The runner of a model whose plan is automatic, until the plan is found. It keeps a checkpoint
// that is resumed before that, and refuses everything that needs a plan.
#include <trireme/base/error.h>
#include <trireme/checkpoint/consensus.h>
#include <trireme/checkpoint/load_plan.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/train/loop/model_impl.h>

namespace trireme {

void detail::refuse_unplanned() {
  throw UsageError(
      "the plan of this model is automatic, and it has not been found yet",
      "call Model::find_plan with the data of the training before evaluate, predict or save; the "
      "first training does so itself");
}

class Model::UnplannedRunner final : public Model::Runner {
 public:
  explicit UnplannedRunner(Impl& model) : model_(model) {}

  bool is_unplanned() const override { return true; }

  Parallelized& parallelized() override { detail::refuse_unplanned(); }
  Parallelized* carrier() override { return nullptr; }
  Sharing sharing() const override { detail::refuse_unplanned(); }
  const comm::Group& data_group() const override { detail::refuse_unplanned(); }
  std::vector<comm::Group> peers() const override { detail::refuse_unplanned(); }

  void shard(torch::optim::Optimizer& /*optimizer*/) override {}
  void unshard(torch::optim::Optimizer& /*optimizer*/) override {}
  void gather_parameters() override {}
  void complete() override {}

  void prepare(const data::DataLoader& /*training*/) override { detail::refuse_unplanned(); }
  void open(Run& /*run*/, const std::function<void()>& /*open*/) override {
    detail::refuse_unplanned();
  }
  void step(Run& /*run*/, data::BatchStream* /*batches*/, StepEndContext& /*step*/) override {
    detail::refuse_unplanned();
  }
  void abandon_step() override {}

  Evaluation evaluate(const data::DataLoader& /*data*/, std::int64_t /*num_batches*/) override {
    detail::refuse_unplanned();
  }
  at::Tensor predict(const at::Tensor& /*input*/) override { detail::refuse_unplanned(); }
  at::Tensor predict(const data::DataLoader& /*data*/) override { detail::refuse_unplanned(); }

  void add_to(checkpoint::State& /*state*/) const override { detail::refuse_unplanned(); }
  checkpoint::State load(const std::filesystem::path& path) override {
    checkpoint::State state;
    const auto found = checkpoint::agree(model_.options.group, "cannot load", [&] {
      const checkpoint::Reader reader(path);
      state = checkpoint::state_for_rank(reader, model_.options.group.rank());
      return checkpoint::identify(reader);
    });
    checkpoint::check_same(found, path);
    model_.pending_checkpoint = path;
    return state;
  }

 private:
  Impl& model_;
};

std::unique_ptr<Model::Runner> Model::Runner::make_unplanned(Impl& model) {
  return std::make_unique<UnplannedRunner>(model);
}

}  // namespace trireme
