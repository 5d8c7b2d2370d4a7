#include "client/ctl/render_estimates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <string_view>
#include <utility>

#include "client/ctl/estimate_sums.h"
#include "client/ctl/json.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "core/text_table.h"

namespace ravenstore::client::ctl {
namespace {

using core::Printable;

constexpr uint64_t kNanoseconds = 1'000'000'000;

std::string Size(uint64_t bytes) {
  return bytes == 0 ? "-" : core::SizeText(core::Bytes(bytes));
}

std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string Format(const char* format, ...) {
  std::array<char, 512> text;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  return text.data();
}

// "+12%".
std::string ErrorText(const proto::JobEstimate& estimate) {
  return estimate.actual() == 0 ? "-" : Format("%+.0f%%", ErrorOf(estimate) * 100);
}

std::string Doing(const proto::LegacyJob& job) {
  if (job.waiting() == 0) return job.paused() ? "paused" : "runs";
  const std::string place = "waits as number " + std::to_string(job.waiting());
  return job.waits_for().empty() ? place : place + ": " + Printable(job.waits_for());
}

void AddEstimate(JsonWriter& json, std::string_view name, const proto::JobEstimate& estimate) {
  json.BeginObject(name)
      .Field("source", estimate.source())
      .Field("bytes", estimate.bytes())
      .Field("reserved", estimate.reserved())
      .Field("actual", estimate.actual())
      .Field("error", ErrorOf(estimate))
      .EndObject();
}

std::string SumsText(const std::vector<proto::JobRecord>& records, size_t columns) {
  const auto sums = SumEstimates(records);
  if (sums.empty()) return "";
  core::TextTable table("<>>>>");
  table.Row({"SOURCE", "ESTIMATES", "MEAN ERROR", "RESERVED/USED", "UNDERESTIMATES"});
  for (const auto& [source, sum] : sums) {
    table.Row({Printable(source), std::to_string(sum.count), Format("%.1f%%", sum.mean_error * 100),
               Format("%.2f", sum.reserved_over_used), PercentText(sum.under, sum.count)});
  }
  return "\n" + table.Text(columns);
}

std::string Escaped(const std::string& text) {
  std::string safe;
  for (const char c : Printable(text)) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += c;
    }
  }
  return safe;
}

// Estimates over what jobs took, both on a logarithmic scale, from `least` to `most` bytes.
class Plot {
 public:
  static constexpr double kSide = 520;
  static constexpr double kEdge = 60;

  Plot(double least, double most)
      : low_(std::floor(std::log2(least))), high_(std::max(std::ceil(std::log2(most)), low_ + 1)) {}

  std::string Begin() const {
    std::string svg = Format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n",
        kSide + 2 * kEdge, kSide + 2 * kEdge, kSide + 2 * kEdge);
    const double step = std::max(1.0, std::ceil((high_ - low_) / 10));
    for (double power = low_; power <= high_; power += step) {
      const double x = X(std::exp2(power));
      const double y = Y(std::exp2(power));
      const std::string label = core::SizeText(core::Bytes(uint64_t{1} << static_cast<int>(power)));
      svg += Format("<path d=\"M%g %gV%gM%g %gH%g\" stroke=\"#ddd\"/>\n", x, kEdge, kEdge + kSide,
                    kEdge, y, kEdge + kSide);
      svg += Format("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>\n", x,
                    kEdge + kSide + 16, label.c_str());
      svg += Format("<text x=\"%g\" y=\"%g\" text-anchor=\"end\">%s</text>\n", kEdge - 6, y + 4,
                    label.c_str());
    }
    svg += Format("<path d=\"M%g %gL%g %g\" stroke=\"#888\" stroke-dasharray=\"4\"/>\n", kEdge,
                  kEdge + kSide, kEdge + kSide, kEdge);
    svg += Format("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">what the job took</text>\n",
                  kEdge + kSide / 2, kEdge + kSide + 40);
    return svg + Format("<text x=\"%g\" y=\"%g\">what was expected</text>\n", kEdge, kEdge - 16);
  }
  std::string Point(const proto::JobEstimate& estimate, const char* colour,
                    const std::string& name) const {
    return Format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\" fill-opacity=\"0.7\">",
                  X(static_cast<double>(estimate.actual())),
                  Y(static_cast<double>(estimate.bytes())), colour) +
           "<title>" + Escaped(name) + ": expected " + Size(estimate.bytes()) + ", took " +
           Size(estimate.actual()) + "</title></circle>\n";
  }

 private:
  double Part(double bytes) const { return (std::log2(bytes) - low_) / (high_ - low_); }
  double X(double bytes) const { return kEdge + kSide * Part(bytes); }
  double Y(double bytes) const { return kEdge + kSide * (1 - Part(bytes)); }

  const double low_;
  const double high_;
};

const char* ColourOf(const std::string& source) {
  static constexpr std::pair<std::string_view, const char*> kColours[] = {
      {"formula", "#d95f02"}, {"capture", "#7570b3"}, {"history", "#1b9e77"}, {"given", "#666666"}};
  for (const auto& [name, colour] : kColours) {
    if (name == source) return colour;
  }
  return "#e7298a";
}

bool IsPoint(const proto::JobEstimate& estimate) {
  return estimate.actual() > 0 && estimate.bytes() > 0;
}

std::string PlotOf(const std::vector<proto::JobRecord>& records) {
  double least = 0x1p62;
  double most = 0;
  for (const proto::JobRecord& record : records) {
    for (const proto::JobEstimate& estimate : record.estimates()) {
      if (!IsPoint(estimate)) continue;
      const auto [low, high] = std::minmax({estimate.bytes(), estimate.actual()});
      least = std::min(least, static_cast<double>(low));
      most = std::max(most, static_cast<double>(high));
    }
  }
  if (most == 0) return "<p>No job was admitted by an estimate yet.</p>\n";
  const Plot plot(least, std::min(most, 0x1p62));
  std::string svg = plot.Begin();
  for (const proto::JobRecord& record : records) {
    for (const proto::JobEstimate& estimate : record.estimates()) {
      if (IsPoint(estimate))
        svg += plot.Point(estimate, ColourOf(estimate.source()), record.name());
    }
  }
  return svg + "</svg>\n";
}

}  // namespace

std::string JobsText(const std::vector<proto::LegacyJob>& jobs, size_t columns) {
  if (jobs.empty()) return "no job runs under ravenrun\n";
  core::TextTable table(">>~<>>>>|");
  table.Row({"JOB", "PID", "NAME", "SOURCE", "EXPECTED", "RESERVED", "TOOK", "ERROR", "STATE"});
  for (const proto::LegacyJob& job : jobs) {
    const proto::JobEstimate& estimate = job.estimate();
    table.Row({job.client() == 0 ? "-" : std::to_string(job.client()), std::to_string(job.pid()),
               Printable(job.name()), job.has_estimate() ? Printable(estimate.source()) : "-",
               Size(estimate.bytes()), Size(estimate.reserved()), Size(job.peak()),
               ErrorText(estimate), Doing(job)});
  }
  return table.Text(columns);
}

std::string JobsJson(const std::vector<proto::LegacyJob>& jobs) {
  JsonWriter json;
  json.BeginObject().BeginArray("jobs");
  for (const proto::LegacyJob& job : jobs) {
    json.BeginObject()
        .Field("job", job.client())
        .Field("pid", job.pid())
        .Field("uid", job.uid())
        .Field("name", job.name())
        .Field("peak", job.peak())
        .Field("waiting", job.waiting())
        .Field("waiting_bytes", job.waiting_bytes())
        .Field("waits_for", job.waits_for());
    if (job.has_estimate()) AddEstimate(json, "estimate", job.estimate());
    json.EndObject();
  }
  return json.EndArray().EndObject().Take();
}

std::string EstimatesText(const std::vector<proto::JobRecord>& records, uint64_t now_s,
                          size_t columns) {
  if (records.empty()) return "no command ran under ravenrun yet\n";
  core::TextTable table("~>>>>|");
  table.Row({"NAME", "RUNS", "LARGEST", "LAST", "AGO", "EXPECTED"});
  for (const proto::JobRecord& record : records) {
    std::string estimates;
    for (const proto::JobEstimate& estimate : record.estimates()) {
      estimates += (estimates.empty() ? "" : ", ") + Printable(estimate.source()) + " " +
                   Size(estimate.bytes()) + " (" + ErrorText(estimate) + ")";
    }
    const uint64_t ago = now_s > record.seen_s() ? now_s - record.seen_s() : 0;
    table.Row({Printable(record.name()), std::to_string(record.runs()), Size(record.peak()),
               Size(record.last()), DurationText(ago * kNanoseconds),
               estimates.empty() ? "-" : estimates});
  }
  return table.Text(columns) + SumsText(records, columns);
}

std::string EstimatesJson(const std::vector<proto::JobRecord>& records) {
  JsonWriter json;
  json.BeginObject().BeginArray("commands");
  for (const proto::JobRecord& record : records) {
    json.BeginObject()
        .Field("uid", record.uid())
        .Field("job", record.job())
        .Field("model", record.model())
        .Field("name", record.name())
        .Field("runs", record.runs())
        .Field("peak", record.peak())
        .Field("last", record.last())
        .Field("seen_s", record.seen_s())
        .BeginArray("estimates");
    for (const proto::JobEstimate& estimate : record.estimates()) AddEstimate(json, "", estimate);
    json.EndArray().EndObject();
  }
  json.EndArray().BeginArray("sources");
  for (const auto& [source, sum] : SumEstimates(records)) {
    json.BeginObject()
        .Field("source", source)
        .Field("estimates", sum.count)
        .Field("underestimates", sum.under)
        .Field("mean_error", sum.mean_error)
        .Field("reserved_over_used", sum.reserved_over_used)
        .EndObject();
  }
  return json.EndArray().EndObject().Take();
}

std::string EstimatesHtml(const std::vector<proto::JobRecord>& records) {
  std::string page =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Ravenstore: "
      "estimates</title>\n<style>body{font-family:sans-serif;max-width:720px;margin:2em auto}"
      "td,th{padding:2px 12px;text-align:right}td:first-child,th:first-child{text-align:left}"
      "</style></head><body>\n<h1>What jobs were expected to take, and took</h1>\n"
      "<p>The last estimate of each source of each command. Below the line a job took more than "
      "was "
      "expected.</p>\n";
  page += PlotOf(records);
  page +=
      "<table><tr><th>source</th><th>estimates</th><th>mean error</th><th>reserved over used</th>"
      "<th>underestimates beyond the margin</th></tr>\n";
  for (const auto& [source, sum] : SumEstimates(records)) {
    page += Format("<tr><td style=\"color:%s\">", ColourOf(source)) + Escaped(source) +
            Format("</td><td>%llu</td><td>%.1f%%</td><td>%.2f</td><td>",
                   static_cast<unsigned long long>(sum.count), sum.mean_error * 100,
                   sum.reserved_over_used) +
            PercentText(sum.under, sum.count) + "</td></tr>\n";
  }
  return page + "</table></body></html>\n";
}

}  // namespace ravenstore::client::ctl
