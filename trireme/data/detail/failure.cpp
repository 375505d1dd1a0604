// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/detail/failure.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>

#include <exception>
#include <string_view>

namespace trireme::data::detail {
namespace {

constexpr std::string_view kFailedHint =
    "the cause is in the data set or in the program's own function";

}  // namespace

void rethrow_from(const std::string& place) {
  try {
    throw;
  } catch (const UsageError& error) {
    std::throw_with_nested(UsageError(join_message(place, ": ", error.what()), ""));
  } catch (const Error& error) {
    std::throw_with_nested(DataError(join_message(place, ": ", error.what()), ""));
  } catch (const std::exception& error) {
    std::throw_with_nested(DataError(join_message(place, ": ", message_of(error)), kFailedHint));
  } catch (...) {
    std::throw_with_nested(DataError(
        join_message(place, ": threw something that is not a std::exception"), kFailedHint));
  }
}

}  // namespace trireme::data::detail
