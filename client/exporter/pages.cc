#include "client/exporter/pages.h"

#include <prometheus/text_serializer.h>

namespace ravenstore::client::exporter {
namespace {

constexpr const char* kFrontPage =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<title>ravenstore-exporter</title>\n"
    "<h1>ravenstore-exporter</h1>\n"
    "<p>Figures of ravenstored for Prometheus: <a href=\"/metrics\">/metrics</a></p>\n</html>\n";

}  // namespace

std::vector<std::string> Pages::Answer(const std::vector<HttpRequest>& requests, core::Tick now) {
  std::vector<std::string> answers;
  for (const HttpRequest& request : requests) answers.push_back(AnswerOne(request, now));
  return answers;
}

std::string Pages::AnswerOne(const HttpRequest& request, core::Tick now) {
  const bool with_body = request.method != "HEAD";
  if (with_body && request.method != "GET")
    return HttpAnswer(405, "There is only something to get.\n");
  if (request.path == "/") return HttpAnswer(200, kFrontPage, with_body, "text/html");
  if (request.path != "/metrics")
    return HttpAnswer(404, "The metrics are at /metrics.\n", with_body);
  const bool authorized = request.authorization.has_value();
  if (authorized && !(options_.token && options_.token->Matches(*request.authorization))) {
    return HttpAnswer(401,
                      options_.token
                          ? "This is not the token of --token-file.\n"
                          : "The exporter has no token: it was started without --token-file.\n",
                      with_body);
  }
  return HttpAnswer(200, Page(authorized, now), with_body);
}

const std::string& Pages::Page(bool with_users, core::Tick now) {
  if (!looked_ || now - *looked_ >= kLookAge) {
    seen_ = options_.look();
    looked_ = now;
    for (std::optional<std::string>& page : page_of_) page.reset();
  }
  std::optional<std::string>& page = page_of_[with_users ? 1 : 0];
  if (!page) {
    page = prometheus::TextSerializer().Serialize(
        MetricsOf(seen_, with_users ? options_.name_of : NameOfUser()));
  }
  return *page;
}

}  // namespace ravenstore::client::exporter
