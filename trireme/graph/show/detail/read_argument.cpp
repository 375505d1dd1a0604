// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/show/detail/json_reader.h>

#include <c10/core/Device.h>
#include <c10/util/complex.h>
#include <nlohmann/json.hpp>

namespace trireme::graph::detail {
namespace {

using Json = nlohmann::json;

double number(const JsonReader& reader, const Json& json) {
  if (!json.is_object()) return reader.as<double>(json, "argument");
  const auto name = reader.get<std::string>(json, "double");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (name == "inf") return kInfinity;
  if (name == "-inf") return -kInfinity;
  if (name == "nan" || name == "-nan") return std::numeric_limits<double>::quiet_NaN();
  reader.fail(join_message("'", name, "' is no number"));
}

std::vector<double> numbers(const JsonReader& reader, const Json& json, const char* key) {
  std::vector<double> all;
  for (const Json& item : reader.list(json, key)) all.push_back(number(reader, item));
  return all;
}

// LibTorch accepts a device index that is too large and wraps it, so the text is compared.
c10::Device device(const JsonReader& reader, const Json& json) {
  const auto name = reader.get<std::string>(json, "device");
  std::optional<c10::Device> device;
  try {
    device = c10::Device(name);
  } catch (const c10::Error&) {
    device.reset();
  }
  if (!device || device->str() != name)
    reader.fail(join_message("there is no device '", name, "'"));
  return *device;
}

c10::IValue argument(const JsonReader& reader, const Json& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return reader.as<std::int64_t>(json, "argument");
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (!json.is_object() || json.size() != 1) {
    reader.fail(join_message("argument is ", shown(json),
                             ", expected a number, a text or an object with one key"));
  }
  const std::string& key = json.begin().key();
  if (key == "double") return number(reader, json);
  if (key == "device") return device(reader, json);
  if (key == "ints") return reader.all_of<std::int64_t>(json, "ints");
  if (key == "doubles") return numbers(reader, json, "doubles");
  if (key == "bools") {
    c10::List<bool> all;
    for (const Json& item : reader.list(json, "bools")) {
      all.push_back(reader.as<bool>(item, "bools"));
    }
    return all;
  }
  if (key == "complex") {
    const std::vector<double> parts = numbers(reader, json, "complex");
    if (parts.size() != 2) reader.fail("a complex number has two parts");
    return c10::complex<double>(parts[0], parts[1]);
  }
  if (key == "tensor") return at::Tensor();
  if (key == "tensors") return c10::List<at::Tensor>();
  if (key == "optional_tensors") return c10::List<std::optional<at::Tensor>>();
  if (key == "text") return reader.get<std::string>(json, "text");
  reader.fail(join_message("there is no kind of argument '", key, "'"));
}

}  // namespace

template <typename Type>
c10::IValue read_argument(const JsonReader& reader, const Type& json) {
  return argument(reader, json);
}

template c10::IValue read_argument(const JsonReader& reader, const Json& json);

}  // namespace trireme::graph::detail
