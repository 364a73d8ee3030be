// One client connection: reads requests one after the other (keep-alive and
// pipelined), hands each to the handler, writes its answer. Lives on one I/O
// thread; the coroutine that runs it owns it.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstddef>
#include <memory>

#include "gateway/http_server.h"

namespace sluice {

// On the thread `thread`, whose connections it joins. Takes over the count in
// `context.num_connections`. `tls`: null, or what the client's handshake is made with.
void start_connection(ConnectionContext& context, std::size_t thread,
                      boost::asio::ip::tcp::socket socket,
                      std::shared_ptr<boost::asio::ssl::context> tls);

// On the thread `thread`: closes all of its connections.
void abort_connections(ConnectionContext& context, std::size_t thread);

}  // namespace sluice
