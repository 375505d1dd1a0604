// SPDX-License-Identifier: Apache-2.0
// What a pipeline refuses, and how a step that fails on one rank ends on the others.
#include <trireme/base/error.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/pipeline/chain.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <algorithm>

namespace trireme::pipeline::test {
namespace {

using comm::Group;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::run_ranks_catching;

// What a rank gives to the executor; a test changes it on some ranks.
struct Given {
  Program program;
  std::vector<StageCode> codes;
  ExecutorOptions options{};
  std::vector<std::vector<at::Tensor>> inputs;
};

using Change = std::function<void(Given&, int rank)>;

Given make_given(int ranks, int rank, const char* kind = "1f1b") {
  const schedule::Schedule plan = schedule::generate(kind, ranks, 4);
  return {.program = program_of_chain(plan),
          .codes = codes_of(modules_of(stages_of(plan, rank)), plan.num_stages()),
          .inputs = inputs_of_chain({4, 4, 4, 4})};
}

// What each of two ranks says when the pipeline is made of what `change` leaves.
std::vector<std::string> refusals(const Change& change) {
  std::vector<std::string> messages;
  for (const std::exception_ptr& error : run_ranks_catching(2, [&](const Group& group) {
         Given given = make_given(2, group.rank());
         change(given, group.rank());
         const Executor executor(given.program, given.codes, group, given.options);
       })) {
    messages.push_back(message_of<UsageError>(error));
  }
  return messages;
}

void expect_refused(const Change& change, const std::vector<std::string>& parts) {
  for (const std::string& message : refusals(change)) {
    for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
  }
}

TEST(PipelineRefusals, RanksThatDifferSayWhereAndWhich) {
  expect_refused(
      [](Given& given, int rank) {
        if (rank == 1) given.program.boundary_tensors[0].shapes[0].sizes = {5, kWidth};
      },
      {"ranks differ in the program of the pipeline", "[4, 6]", "rank 1 has", "[5, 6]"});
  expect_refused(
      [](Given& given, int rank) {
        if (rank == 1) given.program.schedule.name = "mine";
      },
      {"name 1f1b", "rank 1 has 'name mine'"});
  expect_refused([](Given& given, int rank) { given.options.messages.receives_ahead = rank; },
                 {"receives ahead 0", "receives ahead 1"});
  expect_refused(
      [](Given& given, int rank) {
        auto& parameters = given.codes[0].parameters;
        parameters.emplace_back("both", torch::zeros({2 + rank}).set_requires_grad(true));
      },
      {"parameter 'both' is [2] Float in stage 0 (rank 0) and [3] Float in stage 1 (rank 1)"});
}

TEST(PipelineRefusals, AScheduleThatDeadlocks) {
  expect_refused(
      [](Given& given, int) {
        schedule::Schedule& plan = given.program.schedule;
        plan = schedule::with_messages(plan);
        // Rank 0 waits for the first gradients before it has sent what they come from.
        auto& actions = plan.ranks[0];
        const auto send =
            std::ranges::find(actions, schedule::ActionKind::kSend, &schedule::Action::kind);
        const auto receive =
            std::ranges::find(actions, schedule::ActionKind::kReceive, &schedule::Action::kind);
        std::rotate(send, receive, receive + 1);
      },
      {"rank 0: ", "wait"});
}

TEST(PipelineRefusals, AProgramThatContradictsItself) {
  const auto refused = [](const Change& change, const char* part) {
    expect_refused(change, {"rank 0: ", part});
  };
  refused([](Given& given, int) { given.program.schedule.ranks.pop_back(); }, "has 1 ranks");
  refused([](Given& given, int) { given.program.boundary_tensors[0].to = {1, 1}; }, "ascending");
  refused([](Given& given, int) { given.program.boundary_tensors[0].to = {}; }, "at least one");
  refused([](Given& given, int) { given.program.boundary_tensors[0].from = 9; }, "names stage 9");
  refused([](Given& given, int) { given.program.loss_stage = 9; }, "the loss names stage 9");
  refused([](Given& given, int) { given.program.boundary_tensors[0].from = 1; }, "no edge 1>1");
  refused([](Given& given, int) { given.program.boundary_tensors[0].shapes.clear(); },
          "has 0 shapes");
  refused([](Given& given, int) { given.program.boundary_tensors[0].shapes[0].strides = {1, 1}; },
          "without gaps");
  refused([](Given& given, int) { given.program.boundary_tensors[1].has_gradient = true; },
          "cannot have a gradient");
  refused([](Given& given, int) { given.program.boundary_tensors[1].value = kFirstHidden; },
          "value 10 is there twice");
  refused([](Given& given, int) { given.program.inputs = {kInput, kInput}; },
          "value 0 is there twice");
  refused([](Given& given, int) { given.program.variants = {0, 0}; }, "variants for 2");
  refused([](Given& given, int) { given.program.variants = {0, 0, -1, 0}; }, "variant -1");
  refused([](Given& given, int) { given.program.weights = {1, 1, 0, 1}; }, "weight 0");
  refused([](Given& given, int) { given.options.messages.receives_ahead = -1; }, "-1 receives");
}

TEST(PipelineRefusals, CodeThatDoesNotFit) {
  const auto refused = [](const Change& change, const char* part) {
    expect_refused(
        [&](Given& given, int rank) {
          if (rank == 1) change(given, rank);
        },
        {"rank 1: ", part});
  };
  refused([](Given& given, int) { given.codes.clear(); }, "no code for stage 1");
  refused([](Given& given, int) { given.codes[0].stage = 0; }, "which is on rank 0");
  refused([](Given& given, int) { given.codes.push_back(given.codes[0]); }, "stage 1 twice");
  refused([](Given& given, int) { given.codes[0].forward = nullptr; }, "has no forward");
  refused([](Given& given, int) { given.codes[0].inputs[0] = 77; }, "takes value 77");
  refused([](Given& given, int) { given.codes[0].inputs.erase(given.codes[0].inputs.begin()); },
          "does not take it exactly once");
  refused([](Given& given, int) { given.codes[0].outputs = {}; }, "gives values []");
  refused([](Given& given, int) { given.codes[0].parameters.emplace_back("new", at::Tensor()); },
          "is undefined");
  refused(
      [](Given& given, int) {
        given.codes[0].parameters.emplace_back("again", given.codes[0].parameters[0].second);
      },
      "parameter 'again' of stage 1");
}

TEST(PipelineRefusals, ActionsThatNobodyDoes) {
  const auto refused = [](const std::function<void(schedule::Schedule&)>& change,
                          const char* part) {
    expect_refused([&](Given& given, int) { change(given.program.schedule); }, {part});
  };
  refused([](auto& plan) { plan = schedule::with_steps(plan); },
          "has step0, and nothing is given that does optimizer step");
  refused([](auto& plan) { plan = with_reduction(plan, schedule::ReduceAfter::kMicroBatch); },
          "has reduce0.0, and nothing is given that does reduction of gradients");
  refused([](auto& plan) { plan = with_gathering(plan, schedule::GatherFor::kStep); },
          "nothing is given that does gather");
  refused(
      [](auto& plan) {
        auto& actions = plan.ranks[1];
        actions.insert(actions.begin() + 1, {schedule::ActionKind::kOffload, 1, 0});
      },
      "load1.0 is missing");
  expect_refused(
      [](Given& given, int) {
        given.options.callbacks.step = [](int) {};
        schedule::Schedule plan = schedule::generate("zb-v", 2, 4);
        plan = schedule::with_steps(plan);
        // The first step goes before the weight gradients of the other stage.
        auto& actions = plan.ranks[0];
        const schedule::Action step = actions.back();
        actions.pop_back();
        const auto last = std::ranges::find_if(actions.rbegin(), actions.rend(), [&](auto& other) {
          return other.stage == step.stage && gives_weight_gradient(other.kind);
        });
        actions.insert(last.base(), step);
        given = make_given(2, 0, "zb-v");
        given.program.schedule.ranks = plan.ranks;
        given.options.callbacks.step = [](int) {};
      },
      {"after a step of the same rank"});
}

// What each rank throws in a step.
std::vector<std::exception_ptr> failures(
    int ranks, const Change& change, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  return run_ranks_catching(
      ranks,
      [&](const Group& group) {
        Given given = make_given(ranks, group.rank());
        change(given, group.rank());
        Executor executor(given.program, given.codes, group, given.options);
        if (given.inputs.empty()) return;  // a rank that does not come
        try {
          executor.step(given.inputs, 7);
        } catch (...) {
          EXPECT_THAT(trireme::test::usage_error([&] { executor.step(given.inputs, 8); }),
                      HasSubstr("a step of this pipeline has failed"));
          throw;
        }
      },
      timeout);
}

void expect_failure(const Change& change, const char* part, const char* action) {
  const auto thrown = failures(3, [&](Given& given, int rank) {
    if (rank == 1) change(given, rank);
  });
  EXPECT_THAT(message_of<UsageError>(thrown[1]), HasSubstr(part));
  for (const std::size_t other : {0U, 2U}) {
    EXPECT_THAT(message_of<CommError>(thrown[other]),
                AllOf(HasSubstr("rank 1 failed in step 7 of the pipeline"), HasSubstr(action)));
  }
}

TEST(PipelineFaults, ARankThatThrowsEndsTheStepForAllByName) {
  for (const char* engine : {"threads", "shm"}) {
    testing::engine_of_ranks = engine;
    expect_failure(
        [](Given& given, int) {
          given.codes[0].forward = [forward = given.codes[0].forward](
                                       c10::ArrayRef<at::Tensor> inputs,
                                       const MicroBatch& micro_batch) {
            if (micro_batch.number == 2) throw UsageError("the third is bad", "fix it");
            return forward(inputs, micro_batch);
          };
        },
        "the third is bad", "at F1.2 (forward of micro-batch 2 in stage 1): the third is bad");
  }
}

TEST(PipelineFaults, AStageThatGivesSomethingElse) {
  const auto instead =
      [](const std::function<std::vector<at::Tensor>(c10::ArrayRef<at::Tensor>)>& forward) {
        return [forward](Given& given, int) {
          given.codes[0].forward = [forward](c10::ArrayRef<at::Tensor> inputs, const MicroBatch&) {
            return forward(inputs);
          };
        };
      };
  using Tensors = std::vector<at::Tensor>;
  expect_failure(instead([](auto) { return Tensors{}; }), "gave 0 tensors, expected 1", "F1.0");
  expect_failure(instead([](auto) { return Tensors(1); }), "an undefined tensor", "F1.0");
  expect_failure(instead([](auto inputs) { return Tensors{inputs[0].sum()}; }),
                 "gave for value 11 [] of Float, expected [4, 6] of Float", "F1.0");
  expect_failure(instead([](auto inputs) { return Tensors{inputs[0].to(torch::kDouble)}; }),
                 "of Double", "F1.0");
  expect_failure(instead([](auto inputs) { return Tensors{inputs[0].relu_()}; }),
                 "changed its input value 10 in place", "F1.0");
}

TEST(PipelineFaults, InputsThatAreMissing) {
  const auto thrown = failures(3, [](Given& given, int rank) {
    if (rank == 0) given.inputs[3].clear();
  });
  EXPECT_THAT(message_of<UsageError>(thrown[0]),
              HasSubstr("micro-batch 3 has no input value 0, which stage 0 takes"));
  EXPECT_THAT(message_of<CommError>(thrown[2]), HasSubstr("rank 0 failed in step 7"));
  const auto fewer = failures(2, [](Given& given, int rank) {
    if (rank == 1) given.inputs.pop_back();
  });
  EXPECT_THAT(message_of<UsageError>(fewer[1]), HasSubstr("was given 3 micro-batches"));
  EXPECT_THAT(message_of<CommError>(fewer[0]), HasSubstr("rank 1 failed in step 7"));
}

TEST(PipelineFaults, ARankThatDoesNotComeIsMissedAtTheDeadline) {
  const auto thrown = failures(
      3,
      [](Given& given, int rank) {
        if (rank == 2) given.inputs.clear();
      },
      std::chrono::milliseconds(300));
  EXPECT_FALSE(thrown[2]);
  EXPECT_THAT(message_of<CommError>(thrown[0]), Not(HasSubstr("another type")));
  EXPECT_THAT(message_of<CommError>(thrown[1]), HasSubstr("rank 2"));
}

}  // namespace
}  // namespace trireme::pipeline::test
