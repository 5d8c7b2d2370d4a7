// As much of HTTP/1.1 as a scrape needs: one request without a body, one answer. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ravenstore::client::exporter {

struct HttpRequest {
  std::string method;
  std::string path;  // without a query
  std::optional<std::string> authorization;
};

// Ends the head of a request.
inline constexpr std::string_view kHeadEnd = "\r\n\r\n";

// `head` includes kHeadEnd. Nothing if it is not the head of a request, or if it has
// Authorization twice.
std::optional<HttpRequest> ParseHttpHead(std::string_view head);

// A whole answer, after which the connection ends. Status 200, 400, 401, 404, 405 or 431.
// `with_body` is false for HEAD, whose answer has the length of the body that it leaves out.
// `type`: of the body; by default text, with 200 in the form of the metrics.
std::string HttpAnswer(int status, std::string_view body, bool with_body = true,
                       std::string_view type = {});

}  // namespace ravenstore::client::exporter
