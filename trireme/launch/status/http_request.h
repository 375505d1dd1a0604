// SPDX-License-Identifier: Apache-2.0
// Reads a request of HTTP/1.1 (RFC 9112) without a body, and writes the head of an answer. This is
// all that a read-only status needs; connections are not reused.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::launch {

/// The largest number of bytes of a request, with its headers.
inline constexpr std::size_t kLongestRequest = std::size_t{8} << 10;

/// A request.
struct HttpRequest {
  int refusal = 0;         ///< the status with which it must be refused; 0 if it is well-formed
  bool wants_body = true;  ///< false for HEAD
  std::string path{};      ///< the path, such as `/metrics`
  std::string query{};     ///< what follows the question mark
  std::string bearer{};    ///< the token in the header `Authorization: Bearer`; may be empty
};

/// Parses the bytes that have come. Returns std::nullopt if the end of the headers has not come yet
/// and may still come.
std::optional<HttpRequest> parse_request(std::string_view bytes);

/// Returns the value of a name in a query such as `token=ab&x=1`; empty if it is not there.
/// Percent-encoding is not decoded, because tokens need none.
std::string_view value_in_query(std::string_view query, std::string_view name);

/// Returns the head of an answer.
/// @param status the number, such as 200.
/// @param type the media type of the body.
/// @param bytes the size of the body.
std::string answer_head(int status, std::string_view type, std::size_t bytes);

/// Returns a status in words, such as `Not Found`.
std::string_view status_words(int status);

}  // namespace trireme::launch
