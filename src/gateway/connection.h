// One client connection: reads requests one after the other (keep-alive and
// pipelined), hands each to the handler, writes its answer. Lives on one I/O
// thread; the coroutine that runs it owns it.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>

#include "gateway/http_server.h"

namespace sluice {

// On the thread `thread`, whose connections it joins. Takes over the count in
// `context.num_connections`.
void start_connection(ConnectionContext& context, std::size_t thread,
                      boost::asio::ip::tcp::socket socket);

// On the thread `thread`: closes all of its connections.
void abort_connections(ConnectionContext& context, std::size_t thread);

}  // namespace sluice
