// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/base/input_file.h>
#include <trireme/base/text.h>
#include <trireme/graph/module_path.h>
#include <trireme/graph/show/detail/json_reader.h>
#include <trireme/graph/show/graph_text.h>
#include <trireme/graph/show/text_format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <unordered_set>
#include <utility>

namespace trireme::graph {
namespace {

using detail::shown;
using Json = nlohmann::json;

// Reads the parts of a document. Each object is read under its place, for errors.
class Reader : private detail::JsonReader {
 public:
  Reader(const Json& document, std::string_view source)
      : JsonReader(source), document_(document), source_(source) {}

  Graph graph() {
    read_modules();
    read_values();
    read_nodes();
    inputs_and_results();
    read_marks();
    detail::check_graph(graph_, source_);
    graph_.can_run = false;
    return std::move(graph_);
  }

 private:
  // Reads each element of a list of the document under its place.
  template <typename Read>
  void for_each(const char* key, const Read& read) {
    set_place("");
    const Json& all = list(document_, key);
    for (std::size_t i = 0; i < all.size(); ++i) {
      set_place(join_message(key, "[", i, "]"));
      read(all[i]);
    }
    set_place("");
  }

  // -- references ------------------------------------------------------------------------------

  // Returns `number` if it is at least `least` and below `end`; throws otherwise.
  int within(int number, int least, std::size_t end, std::string_view what) const {
    if (number >= least && number < static_cast<std::int64_t>(end)) return number;
    fail(join_message(what, " is ", number, ", expected ", least, " to ",
                      static_cast<std::int64_t>(end) - 1));
  }

  // Returns the id of a value that has been read already.
  ValueId value_id(const Json& json, int least, std::string_view what) const {
    return within(as<int>(json, what), least, graph_.values.size(), what);
  }

  std::vector<ValueId> value_ids(const Json& json, int least, const char* what) const {
    if (!json.is_array()) fail(join_message(what, " is ", shown(json), ", expected a list"));
    std::vector<ValueId> ids;
    for (const Json& item : json) ids.push_back(value_id(item, least, what));
    return ids;
  }

  std::string module(const Json& json, const char* key) const {
    auto path = get<std::string>(json, key);
    if (!paths_.contains(path)) fail(join_message("there is no module '", path, "'"));
    return path;
  }

  at::ScalarType dtype(const Json& json) const {
    const auto name = get<std::string>(json, "dtype");
    for (int i = 0; i < static_cast<int>(at::ScalarType::Undefined); ++i) {
      const auto type = static_cast<at::ScalarType>(i);
      if (name == c10::toString(type)) return type;
    }
    fail(join_message("there is no dtype '", name, "'"));
  }

  // -- parts -----------------------------------------------------------------------------------

  void read_modules() {
    for_each("modules", [this](const Json& json) {
      auto path = get<std::string>(json, "path");
      const bool is_placed = graph_.modules.empty()
                                 ? path.empty()
                                 : !path.ends_with('.') && paths_.contains(detail::module_of(path));
      if (!is_placed || !paths_.insert(path).second) {
        fail(join_message("module '", path, "' is out of place"));
      }
      graph_.modules.push_back({.path = std::move(path),
                                .type = get<std::string>(json, "type"),
                                .is_training = get<bool>(json, "is_training")});
    });
    if (graph_.modules.empty()) fail("there are no modules");
  }

  void read_values() {
    num_nodes_ = list(document_, "nodes").size();
    for_each("values", [this](const Json& json) { read_value(json); });
  }

  void read_value(const Json& json) {
    const auto id = static_cast<ValueId>(graph_.values.size());
    const std::size_t here = graph_.values.size() + 1;  // a value only refers to earlier ones
    Value value;
    const auto kind = get<std::string>(json, "kind");
    const auto known = std::ranges::find(detail::kKindNames, kind);
    if (known == detail::kKindNames.end()) fail(join_message("there is no kind '", kind, "'"));
    value.kind = static_cast<ValueKind>(known - detail::kKindNames.begin());
    value.name = get<std::string>(json, "name");
    if (json.contains("names")) value.names = all_of<std::string>(json, "names");
    value.dtype = dtype(json);
    value.sizes = all_of<std::int64_t>(json, "sizes");
    value.strides = all_of<std::int64_t>(json, "strides");
    value.requires_grad = get(json, "requires_grad", false);
    value.node = within(get(json, "node", -1), -1, num_nodes_, "node");
    value.object = within(get(json, "object", id), 0, here, "object");
    value.memory = within(get(json, "memory", id), 0, here, "memory");
    value.view_of = within(get(json, "view_of", kNoValue), kNoValue, here - 1, "view_of");
    value.is_saved = get(json, "is_saved", false);
    check(value);
    graph_.values.push_back(std::move(value));
  }

  // Checks sizes, strides and names of a value, and that its bytes do not overflow.
  void check(const Value& value) const {
    auto bytes = static_cast<std::int64_t>(c10::elementSize(value.dtype));
    bool fits = value.strides.size() == value.sizes.size() &&
                std::ranges::none_of(value.strides, [](std::int64_t stride) { return stride < 0; });
    for (const std::int64_t size : value.sizes) {
      fits = fits && size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes);
    }
    if (!fits) fail("sizes and strides are none of a tensor");
    const bool is_of_module =
        value.kind == ValueKind::kParameter || value.kind == ValueKind::kBuffer;
    if (value.names.empty() == is_of_module) {
      fail("parameters and buffers have names, and others have none");
    }
    for (const std::string& name : value.names) {
      if (!paths_.contains(detail::module_of(name))) {
        fail(join_message("there is no module that ", name, " could be in"));
      }
    }
  }

  void read_nodes() {
    std::vector<AutocastState> states;
    for_each("autocast", [&](const Json& json) { states.push_back(autocast(json)); });
    for_each("nodes", [&](const Json& json) {
      Node node(operator_named(get<std::string>(json, "op")));
      node.module = module(json, "module");
      for (const Json& ids : list(json, "inputs")) {
        node.inputs.push_back(value_ids(ids, kNoValue, "inputs"));
      }
      node.outputs = value_ids(list(json, "outputs"), kNoValue, "outputs");
      for (const Json& value : list(json, "arguments"))
        node.arguments.push_back(detail::read_argument(*this, value));
      const std::size_t num_arguments = node.op.schema().arguments().size();
      if (node.arguments.size() != num_arguments || node.inputs.size() != num_arguments) {
        fail(join_message("it has ", node.arguments.size(), " arguments and ", node.inputs.size(),
                          " of inputs, and ", node.name(), " takes ", num_arguments),
             "read it with the version of LibTorch, or of the operator's library, with which it "
             "was written");
      }
      if (json.contains("writes")) read_writes(json, node);
      node.grad_mode = get(json, "grad_mode", true);
      node.autocast = states.at(
          static_cast<std::size_t>(within(get(json, "autocast", 0), 0, states.size(), "autocast")));
      node.is_random = get(json, "is_random", false);
      node.flops = cost(json, "flops", 0.0);
      node.backward_flops = cost(json, "backward_flops", 0.0);
      node.bytes = cost(json, "bytes", std::int64_t{0});
      if (json.contains("saved")) node.saved = value_ids(json["saved"], 0, "saved");
      node.saved_bytes = cost(json, "saved_bytes", std::int64_t{0});
      graph_.nodes.push_back(std::move(node));
    });
  }

  // Looks up an operator with its overload in this program.
  c10::OperatorHandle operator_named(const std::string& name) const {
    const std::size_t dot = std::min(name.find('.'), name.size());
    const std::string overload = dot < name.size() ? name.substr(dot + 1) : "";
    const auto op = c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload});
    if (op) return *op;
    fail(join_message("this program has no operator ", name),
         "load the library that registers it first, or read the graph with the version of LibTorch "
         "with which it was written");
  }

  template <typename Number>
  Number cost(const Json& json, const char* key, Number otherwise) const {
    const auto number = get(json, key, otherwise);
    if (number < 0) fail(join_message(key, " is ", number, ", expected 0 or more"));
    return number;
  }

  void read_writes(const Json& json, Node& node) const {
    for (const Json& write : list(json, "writes")) {
      const std::vector<ValueId> ids = value_ids(write, 0, "writes");
      if (ids.size() != 2) fail("a write has two values, before and after");
      node.writes.push_back({.before = ids[0], .after = ids[1]});
    }
  }

  AutocastState autocast(const Json& json) const {
    AutocastState state;
    const Json& devices = list(json, "devices");
    if (devices.size() != state.is_enabled.size()) fail("expected two devices");
    for (std::size_t i = 0; i < devices.size(); ++i) {
      state.is_enabled.at(i) = get<bool>(devices[i], "is_enabled");
      state.dtype.at(i) = dtype(devices[i]);
    }
    state.keeps_casts = get<bool>(json, "keeps_casts");
    return state;
  }

  // -- the rest --------------------------------------------------------------------------------

  void inputs_and_results() {
    graph_.inputs = value_ids(part(document_, "inputs"), 0, "inputs");
    graph_.results = value_ids(part(document_, "results"), 0, "results");
    graph_.parameters = value_ids(part(document_, "parameters"), 0, "parameters");
    graph_.buffers = value_ids(part(document_, "buffers"), 0, "buffers");
  }

  void read_marks() {
    for_each("marks", [this](const Json& json) {
      graph_.marks.push_back(
          {.name = get<std::string>(json, "name"),
           .node = within(get<int>(json, "node"), 0, num_nodes_ + 1, "node"),
           .value = within(get(json, "value", kNoValue), kNoValue, graph_.values.size(), "value"),
           .module = module(json, "module")});
    });
  }

  const Json& document_;
  std::string_view source_;
  Graph graph_;
  std::unordered_set<std::string> paths_;
  std::size_t num_nodes_ = 0;
};

}  // namespace

Graph parse_graph(std::string_view text, std::string_view source) {
  const Json document = detail::parse_json<Json>(text, source);
  const auto format = document.is_object() ? document.find(detail::kFormatKey) : document.end();
  if (format == document.end()) {
    throw DataError(
        join_message(source, ": this is no graph: '", detail::kFormatKey, "' is missing"),
        "name a file that write_graph made");
  }
  if (*format != detail::kFormat) {
    throw DataError(join_message(source, ": found a graph of format ", shown(*format),
                                 ", expected ", detail::kFormat),
                    "read it with the version of Trireme that wrote it");
  }
  return Reader(document, source).graph();
}

Graph read_graph(const std::filesystem::path& file) {
  const auto text = read_any_file(file);
  if (!text) {
    throw DataError(join_message(file.string(), " cannot be read: ", describe_errno(errno)),
                    "name a file that write_graph made");
  }
  return parse_graph(*text, file.string());
}

}  // namespace trireme::graph
