#include "client/exporter/http.h"

#include <strings.h>

#include "core/check.h"

namespace ravenstore::client::exporter {
namespace {

constexpr std::string_view kLineEnd = "\r\n";

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// "GET /metrics?x=1 HTTP/1.1"
std::optional<HttpRequest> ParseRequestLine(std::string_view line) {
  const size_t first = line.find(' ');
  const size_t second = line.rfind(' ');
  if (first == std::string_view::npos || first == 0 || second <= first + 1) return std::nullopt;
  if (!line.substr(second + 1).starts_with("HTTP/1.")) return std::nullopt;
  const std::string_view target = line.substr(first + 1, second - first - 1);
  return HttpRequest{std::string(line.substr(0, first)),
                     std::string(target.substr(0, target.find('?'))), std::nullopt};
}

const char* ReasonOf(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 431: return "Request Header Fields Too Large";
  }
  RAVEN_CHECK(false);
}

}  // namespace

std::optional<HttpRequest> ParseHttpHead(std::string_view head) {
  size_t end = head.find(kLineEnd);
  if (!head.ends_with(kHeadEnd)) return std::nullopt;
  std::optional<HttpRequest> request = ParseRequestLine(head.substr(0, end));
  if (!request) return std::nullopt;
  while (head.remove_prefix(end + kLineEnd.size()), end = head.find(kLineEnd), end > 0) {
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = head.substr(0, end);
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    if (!EqualsIgnoringCase(line.substr(0, colon), "Authorization")) continue;
    if (request->authorization) return std::nullopt;
    request->authorization = std::string(Trimmed(line.substr(colon + 1)));
  }
  return request;
}

std::string HttpAnswer(int status, std::string_view body, bool with_body, std::string_view type) {
  if (type.empty()) type = status == 200 ? "text/plain; version=0.0.4" : "text/plain";
  std::string answer = "HTTP/1.1 " + std::to_string(status) + " " + ReasonOf(status);
  ((answer += "\r\nContent-Type: ") += type) += "; charset=utf-8";
  if (status == 401) answer += "\r\nWWW-Authenticate: Bearer";
  if (status == 405) answer += "\r\nAllow: GET, HEAD";
  answer += "\r\nContent-Length: " + std::to_string(body.size());
  answer += "\r\nCache-Control: no-store\r\nConnection: close";
  answer += kHeadEnd;
  if (with_body) answer += body;
  return answer;
}

}  // namespace ravenstore::client::exporter
