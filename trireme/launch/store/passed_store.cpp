// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/store/passed_store.h>

#include <trireme/base/broken_pipe_guard.h>
#include <trireme/base/environment.h>
#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/machine.h>
#include <trireme/base/text.h>
#include <trireme/base/unique_fd.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/network_interfaces.h>
#include <trireme/launch/secret.h>
#include <trireme/launch/store/launcher_exchange.h>
#include <trireme/launch/store/sealed_store.h>
#include <trireme/launch/store/torch_log_silencer.h>

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <thread>

namespace trireme::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A key that rank 0 sets before anybody knows of the store.
constexpr const char* kMark = "trireme/served";
constexpr milliseconds kForOneAddress{3'000};

// Returns why no connection to the address can be made, or an empty text.
std::string why_not_reachable(const std::string& address, int port, milliseconds patience) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (failure != 0) return ::gai_strerror(failure);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  std::string reason = "it has no address";
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const UniqueFd socket(::socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), one->ai_addr, one->ai_addrlen) == 0) return {};
    if (errno != EINPROGRESS) {
      reason = describe_errno(errno);
      continue;
    }
    pollfd ready{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&ready, 1, static_cast<int>(patience.count())) <= 0) {
      reason = "no answer";
      continue;
    }
    int result = 0;
    socklen_t size = sizeof(result);
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &result, &size);
    if (result == 0) return {};
    reason = describe_errno(result);
  }
  return reason;
}

// Returns the store at one address, or null and why not.
c10::intrusive_ptr<c10d::TCPStore> try_address(const std::string& address, int port,
                                               milliseconds patience, std::string& why_not) {
  why_not = why_not_reachable(address, port, patience);
  if (!why_not.empty()) return {};
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = patience;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(address, options);
    // Another host may have the same private address.
    if (store->check({kMark})) return store;
    why_not = "another store listens there";
  } catch (const std::exception& failure) {
    why_not = message_of(failure);
  }
  return {};
}

c10::intrusive_ptr<c10d::TCPStore> connect(const StorePlaces& places, int rank,
                                           milliseconds timeout) {
  constexpr milliseconds kPause{200};
  const auto deadline = Clock::now() + timeout;
  while (true) {
    std::string tried;
    for (const std::string& address : places.addresses) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      if (left <= milliseconds::zero()) break;
      std::string why_not;
      auto store = try_address(address, places.port, std::min(left, kForOneAddress), why_not);
      if (store) {
        store->setTimeout(timeout);
        return store;
      }
      tried += join_message(tried.empty() ? "" : "; ", address, ": ", why_not);
    }
    if (Clock::now() + kPause >= deadline) {
      throw CommError(
          join_message("rank ", rank, " could not reach the store of rank 0 at port ", places.port,
                       " within ", static_cast<double>(timeout.count()) / 1000,
                       " s. Tried the addresses that rank 0 gave: ", tried),
          "allow connections between the hosts, name the network that joins them "
          "(TRIREME_INTERFACE), or set MASTER_ADDR and MASTER_PORT on all ranks");
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

std::string encode(const StorePlaces& places) {
  std::string text = join_message(places.port, ";", places.secret, ";");
  for (const std::string& address : places.addresses) {
    if (text.size() + address.size() > 900) break;
    text += (text.ends_with(';') ? "" : ",") + address;
  }
  return text;
}

StorePlaces decode_places(const std::string& text) {
  const auto first = text.find(';');
  const auto second = first == std::string::npos ? first : text.find(';', first + 1);
  const auto port =
      parse_number<int>(std::string_view(text).substr(0, std::min(first, text.size())));
  if (second == std::string::npos || !port || *port < 1 || *port > 65535) {
    throw CommError(join_message("the launcher passed on '", text, "' as the place of rank 0"),
                    "start all ranks with one version of Trireme");
  }
  StorePlaces places{.port = *port, .secret = text.substr(first + 1, second - first - 1)};
  for (std::size_t at = second + 1; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    if (end > at) places.addresses.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return places;
}

std::vector<std::string> own_addresses(const std::string& interface) {
  std::vector<std::string> addresses;
  for (const InterfaceAddress& one : interface_addresses()) {
    if (interface.empty() || interface == one.interface) addresses.push_back(one.address);
  }
  addresses.push_back(host_name());
  return addresses;
}

c10::intrusive_ptr<c10d::Store> make_passed_store(const Identity& identity, milliseconds timeout) {
  const Environment environment = Environment::of_process();
  const TorchLogSilencer quiet;
  // The thread that serves the store writes to connections whose ranks may have been killed.
  const BrokenPipeGuard guard;
  c10::intrusive_ptr<c10d::TCPStore> store;
  const auto serve = [&] {
    ListeningSocket socket = listen_on(Reach::kAllInterfaces, std::nullopt);
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(socket.port);
    options.isServer = true;
    options.waitWorkers = false;
    options.timeout = timeout;
    options.masterListenFd = socket.fd.get();
    store = c10::make_intrusive<c10d::TCPStore>("localhost", options);
    static_cast<void>(socket.fd.release());  // the store closes it
    static_cast<c10d::Store&>(*store).set(kMark, std::string("1"));
    return encode({.port = socket.port,
                   .secret = make_secret(),
                   .addresses = own_addresses(environment.find("TRIREME_INTERFACE").value_or(""))});
  };
  const StorePlaces places = decode_places(pass_from_rank_0(environment, identity, serve, timeout));
  if (identity.rank != 0) store = connect(places, identity.rank, timeout);
  check_secret(identity.secret);
  return seal(store, identity.secret.empty() ? places.secret : identity.secret);
}

}  // namespace trireme::launch
