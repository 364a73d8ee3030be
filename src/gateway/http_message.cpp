#include "gateway/http_message.h"

#include <algorithm>

namespace sluice {

std::string_view http_reason(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Payload Too Large";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 499: return "Client Closed Request";
    case 500: return "Internal Server Error";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Unknown";
  }
}

namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool decode_path(std::string_view target, std::string& path, std::string& query) {
  path.clear();
  query.clear();
  if (const auto mark = target.find('?'); mark != std::string_view::npos) {
    query = target.substr(mark + 1);
    target = target.substr(0, mark);
  }
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path.push_back(target[i]);
      continue;
    }
    if (i + 2 >= target.size()) return false;
    const int high = hex_value(target[i + 1]);
    const int low = hex_value(target[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return false;
    path.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return true;
}

bool good_traceparent(std::string_view text) {
  constexpr std::string_view kForm = "vv-tttttttttttttttttttttttttttttttt-pppppppppppppppp-ff";
  if (text.size() < kForm.size() || text.starts_with("ff")) return false;
  // A later version may have more after another dash.
  if (text.size() > kForm.size() && (text.starts_with("00") || text[kForm.size()] != '-'))
    return false;
  if (text.size() > 128) return false;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const bool hex = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
    if (kForm[i] == '-' ? text[i] != '-' : !hex) return false;
  }
  const auto rest = text.substr(kForm.size());
  const auto plain = [](char c) { return c > ' ' && c < 0x7f; };
  return text.substr(3, 32).find_first_not_of('0') != std::string_view::npos &&
         text.substr(36, 16).find_first_not_of('0') != std::string_view::npos &&
         std::all_of(rest.begin(), rest.end(), plain);
}

}  // namespace sluice
