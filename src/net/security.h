// Who may take part in a cluster, and how the wire is protected.
//
// Where certificates are given both sides of every connection show one (mutual
// TLS); a shared token can be asked for besides or instead. Without TLS the token
// crosses the wire as it is: that is for networks that are trusted otherwise.
// Internal to net/.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/support/string_ref.h>

#include <map>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/cluster_security.h"

namespace grpc {
class ClientContext;
}

namespace sluice {

[[nodiscard]] std::shared_ptr<grpc::ServerCredentials> server_credentials(
    const ClusterSecurity& security);
[[nodiscard]] std::shared_ptr<grpc::ChannelCredentials> channel_credentials(
    const ClusterSecurity& security);
// Adds the token to a call.
void authorize(const ClusterSecurity& security, grpc::ClientContext& context);
[[nodiscard]] bool authorized(const ClusterSecurity& security,
                              const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

}  // namespace sluice
