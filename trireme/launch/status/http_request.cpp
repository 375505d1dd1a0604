// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/status/http_request.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>

namespace trireme::launch {
namespace {

constexpr int kBadRequest = 400;
constexpr int kWrongMethod = 405;
constexpr int kTooLong = 431;
constexpr int kOtherVersion = 505;

bool is_name(std::string_view text) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](char letter) {
    return is_ascii_alphanumeric(letter) || kOthers.find(letter) != std::string_view::npos;
  });
}

bool is_visible(std::string_view text) {
  return std::ranges::all_of(text, [](char letter) { return letter > ' ' && letter < '\x7f'; });
}

bool is_equal_ignoring_case(std::string_view one, std::string_view other) {
  return std::ranges::equal(one, other, {}, ascii_lower, ascii_lower);
}

HttpRequest refused(int status) { return {.refusal = status}; }

// Parses `GET /metrics?token=ab HTTP/1.1`.
HttpRequest parse_first_line(std::string_view line) {
  const std::size_t after_method = line.find(' ');
  const std::size_t after_target = line.rfind(' ');
  if (after_method == std::string_view::npos || after_target == after_method)
    return refused(kBadRequest);
  const std::string_view method = line.substr(0, after_method);
  const std::string_view target = line.substr(after_method + 1, after_target - after_method - 1);
  const std::string_view version = line.substr(after_target + 1);
  if (!is_name(method) || !target.starts_with('/') || !is_visible(target))
    return refused(kBadRequest);
  if (!version.starts_with("HTTP/") || !is_visible(version)) return refused(kBadRequest);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return refused(kOtherVersion);
  if (method != "GET" && method != "HEAD") return refused(kWrongMethod);
  const std::size_t mark = std::min(target.find('?'), target.size());
  HttpRequest request{.wants_body = method == "GET", .path = std::string(target.substr(0, mark))};
  if (mark < target.size()) request.query = target.substr(mark + 1);
  return request;
}

// Takes a header. Returns false if it is malformed or announces a body.
bool take_header(std::string_view line, HttpRequest& request) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_name(line.substr(0, colon))) return false;
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = without_spaces(line.substr(colon + 1));
  const bool is_text = std::ranges::all_of(value, [](char letter) {
    const auto byte = static_cast<unsigned char>(letter);
    return letter == '\t' || (byte >= ' ' && byte != 0x7f);
  });
  if (!is_text) return false;
  if (is_equal_ignoring_case(name, "transfer-encoding")) return false;
  if (is_equal_ignoring_case(name, "content-length") && value != "0") return false;
  constexpr std::string_view kBearer = "bearer ";
  const bool is_bearer = is_equal_ignoring_case(value.substr(0, kBearer.size()), kBearer);
  if (is_equal_ignoring_case(name, "authorization") && is_bearer)
    request.bearer = without_spaces(value.substr(kBearer.size()));
  return true;
}

}  // namespace

std::optional<HttpRequest> parse_request(std::string_view bytes) {
  constexpr std::string_view kLineEnd = "\r\n";
  const std::size_t first_end = bytes.find(kLineEnd);
  // A stranger that does not speak HTTP is known by its first line, or by a byte that is no text.
  const std::string_view begin = bytes.substr(0, first_end);
  const bool is_text =
      std::ranges::all_of(begin, [](char letter) { return letter >= ' ' || letter == '\r'; });
  if (!is_text) return refused(kBadRequest);
  if (first_end == std::string_view::npos) {
    if (bytes.size() > kLongestRequest) return refused(kTooLong);
    return std::nullopt;
  }
  HttpRequest request = parse_first_line(begin);
  if (request.refusal != 0) return request;
  for (std::size_t at = first_end + kLineEnd.size();;) {
    const std::size_t end = bytes.find(kLineEnd, at);
    if (end > kLongestRequest) {  // npos is, too
      if (bytes.size() > kLongestRequest) return refused(kTooLong);
      return std::nullopt;
    }
    if (end == at) return request;
    if (!take_header(bytes.substr(at, end - at), request)) return refused(kBadRequest);
    at = end + kLineEnd.size();
  }
}

std::string_view value_in_query(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view part = query.substr(0, end);
    if (part.size() > name.size() && part.starts_with(name) && part[name.size()] == '=')
      return part.substr(name.size() + 1);
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return {};
}

std::string_view status_words(int status) {
  switch (status) {
    case 200:
      return "OK";
    case kBadRequest:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case kWrongMethod:
      return "Method Not Allowed";
    case kTooLong:
      return "Request Header Fields Too Large";
    case kOtherVersion:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

std::string answer_head(int status, std::string_view type, std::size_t bytes) {
  std::string head = join_message(
      "HTTP/1.1 ", status, ' ', status_words(status), "\r\nContent-Type: ", type,
      "\r\nContent-Length: ", bytes,
      "\r\nConnection: close\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n");
  if (status == 401) head += "WWW-Authenticate: Bearer\r\n";
  if (status == kWrongMethod) head += "Allow: GET, HEAD\r\n";
  return head + "\r\n";
}

}  // namespace trireme::launch
