// SPDX-License-Identifier: Apache-2.0
#include "files.h"
#include "format.h"
#include <trireme/base/config/toml.h>
#include <trireme/base/config/value.h>
#include <trireme/base/error.h>
#include <trireme/comm/monitor/dump.h>
#include <trireme/data/files/idx.h>
#include <trireme/data/files/npy_format.h>
#include <trireme/data/text/bpe_tokenizer.h>
#include <trireme/data/text/character_tokenizer.h>
#include <trireme/data/text/word_piece_tokenizer.h>
#include <trireme/launch/scheduler/messages.h>
#include <trireme/launch/slurm_lists.h>
#include <trireme/launch/status/http_request.h>
#include <trireme/launch/status/run_status.h>
#include <trireme/report/page/page.h>
#include <trireme/report/page/pipeline_pictures.h>
#include <trireme/schedule/schedule_text.h>
#include <trireme/schedule/verifier/verify.h>

namespace trireme::fuzz {
namespace {

constexpr std::string_view kText = "The quick brown fox, 1234 \xc3\xa9\xe6\x97\xa5";

void read_toml(std::string_view bytes) {
  config::toml_text(config::parse_toml(bytes, "fuzz.toml"));
}

// What is read is also compared and drawn: damage may show late.
void read_dump(std::string_view bytes) {
  file_of("dumps/trireme-dump-world-rank0.json", bytes);
  comm::compare_dumps(comm::read_dumps(folder() / "dumps"));
}

void read_run_log(std::string_view bytes) {
  file_of("run/events-rank0.jsonl", bytes);
  report::to_html(report::read_run(folder() / "run"));
}

void read_pipeline_trace(std::string_view bytes) {
  file_of("pipeline/pipeline-step1.svg", "<svg >\n</svg>\n");
  file_of("pipeline/pipeline-step1.json", bytes);
  std::vector<std::string> notes;
  report::pipeline_section(report::read_pipeline_pictures(folder() / "pipeline", notes));
}

void read_schedule(std::string_view bytes) {
  const schedule::Schedule read = schedule::parse_schedule(bytes);
  schedule::verify(read);
  schedule::to_text(read);
}

// The first file holds images, the second labels.
void read_idx(std::string_view bytes) {
  const std::size_t half = bytes.size() < 8 ? 0 : bytes.size() - 8 - bytes.size() / 100;
  file_of("idx/train-images-idx3-ubyte", bytes.substr(0, half));
  file_of("idx/train-labels-idx1-ubyte", bytes.substr(half));
  data::read_mnist(folder() / "idx", data::Split::kTrain);
}

void read_npy_header(std::string_view bytes) {
  data::read_npy_header(file_of("header.npy", bytes));
}

void read_tokenizer_json(std::string_view bytes) {
  data::BpeTokenizer::read_json(file_of("tokenizer.json", bytes)).encode(kText);
}

void read_word_piece_json(std::string_view bytes) {
  data::WordPieceTokenizer::read_json(file_of("word_piece.json", bytes)).encode(kText);
}

void read_gpt2_files(std::string_view bytes) {
  const auto [vocabulary, merges] = two_files(bytes);
  data::BpeTokenizer::read(file_of("vocab.json", vocabulary), file_of("merges.txt", merges))
      .encode(kText);
}

void read_vocab_txt(std::string_view bytes) {
  data::WordPieceTokenizer::read(file_of("vocab.txt", bytes)).encode(kText);
}

void read_characters(std::string_view bytes) {
  data::CharacterTokenizer::read(file_of("characters.json", bytes));
}

// What was accepted is written and read again.
void read_scheduler_message(std::string_view bytes) {
  launch::decode(launch::encode(launch::decode(bytes)));
}

void read_slurm_list(std::string_view bytes) {
  const auto [nodes, tasks] = two_files(bytes);
  launch::expand_node_list(nodes, "SLURM_NODELIST");
  launch::expand_tasks_per_node(tasks, "SLURM_STEP_TASKS_PER_NODE");
}

// A request that is not complete, or must be refused, is no file of the format.
void read_http_request(std::string_view bytes) {
  const auto request = launch::parse_request(bytes);
  if (!request || request->refusal != 0) throw CommError("no request", "");
  launch::value_in_query(request->query, "token");
}

// What was accepted is shown in all its forms.
void read_run_status(std::string_view bytes) {
  const launch::RunStatus status = launch::parse_status(std::string(bytes), "the fuzzer");
  launch::parse_status(launch::status_json(status), "the fuzzer");
  launch::status_page(status);
  launch::status_table(status);
  launch::status_metrics(status);
}

}  // namespace

std::vector<Format> plain_formats() {
  return {{"toml", read_toml},
          {"dump", read_dump},
          {"run_log", read_run_log},
          {"pipeline_trace", read_pipeline_trace},
          {"schedule", read_schedule},
          {"idx", read_idx},
          {"npy_header", read_npy_header},
          {"tokenizer_json", read_tokenizer_json},
          {"word_piece_json", read_word_piece_json},
          {"gpt2_files", read_gpt2_files},
          {"vocab_txt", read_vocab_txt},
          {"characters", read_characters},
          {"scheduler_message", read_scheduler_message},
          {"slurm_list", read_slurm_list},
          {"http_request", read_http_request},
          {"run_status", read_run_status}};
}

}  // namespace trireme::fuzz
