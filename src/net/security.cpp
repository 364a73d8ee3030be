#include "net/security.h"

#include <fmt/format.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string_view>

namespace sluice {
namespace {

constexpr const char* kTokenKey = "sluice-token";

Result<std::string> read_file(const std::string& path, const char* what) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || text.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the {} in {} cannot be read, or is empty", what, path));
  }
  return text;
}

// In a time that says nothing about where two texts differ.
bool equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace

Result<ClusterSecurity> load_security(const SecurityFiles& files) {
  ClusterSecurity security;
  if (!files.token.empty()) {
    TRY(security.token, read_file(files.token, "cluster token"));
    const auto end = security.token.find_last_not_of(" \t\r\n");
    security.token.erase(end == std::string::npos ? 0 : end + 1);
    const bool printable = std::all_of(security.token.begin(), security.token.end(),
                                       [](char c) { return c > ' ' && c < 127; });
    if (security.token.size() < 8 || !printable) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the cluster token in {} must be one word of at least 8 characters",
                              files.token));
    }
  }
  const int given = !files.ca.empty() + !files.certificate.empty() + !files.key.empty();
  if (given == 0) return security;
  if (given != 3) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("TLS needs a CA, a certificate and a key; {} of the 3 are given", given));
  }
  TRY(security.ca, read_file(files.ca, "CA"));
  TRY(security.certificate, read_file(files.certificate, "certificate"));
  TRY(security.key, read_file(files.key, "key"));
  return security;
}

std::shared_ptr<grpc::ServerCredentials> server_credentials(const ClusterSecurity& security) {
  if (!security.tls()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = security.ca;
  options.pem_key_cert_pairs.push_back({security.key, security.certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const ClusterSecurity& security) {
  if (!security.tls()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({security.ca, security.key, security.certificate});
}

void authorize(const ClusterSecurity& security, grpc::ClientContext& context) {
  if (!security.token.empty()) context.AddMetadata(kTokenKey, security.token);
}

bool authorized(const ClusterSecurity& security,
                const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  if (security.token.empty()) return true;
  const auto found = metadata.find(kTokenKey);
  return found != metadata.end() &&
         equal(security.token, {found->second.data(), found->second.size()});
}

}  // namespace sluice
