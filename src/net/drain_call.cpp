#include "net/drain_call.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include "net/proto/cluster.grpc.pb.h"
#include "net/security.h"

namespace sluice {

Status drain_instance(const std::string& gateway, const std::string& instance,
                      const ClusterSecurity& security) {
  const auto stub =
      proto::Cluster::NewStub(grpc::CreateChannel(gateway, channel_credentials(security)));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  authorize(security, context);
  proto::DrainRequest request;
  request.set_instance(instance);
  proto::DrainReply reply;
  const grpc::Status status = stub->Drain(&context, request, &reply);
  switch (status.error_code()) {
    case grpc::StatusCode::OK: return {};
    case grpc::StatusCode::NOT_FOUND: return fail(ErrorCode::kNotFound, status.error_message());
    case grpc::StatusCode::UNAUTHENTICATED:
      return fail(ErrorCode::kUnauthenticated, status.error_message());
    default:
      return fail(ErrorCode::kUnavailable,
                  fmt::format("the gateway at {}: {}", gateway, status.error_message()));
  }
}

}  // namespace sluice
