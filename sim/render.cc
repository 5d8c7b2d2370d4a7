#include "sim/render.h"

#include <cstdarg>
#include <cstdio>

#include "core/size_text.h"

namespace ravenstore::sim {

using core::Milliseconds;
using core::Seconds;

namespace {

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

// Quoted for JSON, and harmless inside a page's script as well.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (code < 0x20 || letter == '"' || letter == '\\' || letter == '<') {
      out += Format("\\u%04x", code);
    } else {
      out += letter;
    }
  }
  return out + '"';
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char letter : text) {
    if (letter == '<') {
      out += "&lt;";
    } else if (letter == '&') {
      out += "&amp;";
    } else {
      out += letter;
    }
  }
  return out;
}

// The page's script: three lanes or more of coloured spans; the wheel zooms, dragging moves.
constexpr const char* kScript = R"script(
const canvas = document.getElementById("timeline"), say = document.getElementById("say");
const lanes = [];
for (let c = 0; c < clients; c++) lanes.push("client " + c);
lanes.push("up", "down");
const kinds = ["computes", "stalls", "comes", "leaves"];
const colours = ["#4a7ab5", "#c8442f", "#3f9a5f", "#b08a2e"];
const laneOf = s => s[0] < 2 ? s[1] : clients + s[0] - 2;
let from = 0, to = end, held = null;
const height = 44, left = 70;
function draw() {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, tall = lanes.length * height + 24;
  canvas.style.height = tall + "px";
  canvas.width = width * scale; canvas.height = tall * scale;
  const g = canvas.getContext("2d");
  g.scale(scale, scale); g.font = "12px sans-serif";
  const x = t => left + (t - from) / (to - from) * (width - left);
  for (const s of spans) {
    if (s[3] < from || s[2] > to) continue;
    const a = Math.max(left, x(s[2]));
    g.fillStyle = colours[s[0]];
    g.fillRect(a, laneOf(s) * height + 6, Math.max(0.4, x(s[3]) - a), height - 12);
  }
  g.fillStyle = "#222";
  lanes.forEach((name, i) => g.fillText(name, 4, i * height + height / 2 + 4));
  for (let i = 0; i <= 8; i++) {
    const t = from + (to - from) * i / 8;
    g.fillText((t / 1e3).toFixed(2) + " ms", x(t) - (i == 8 ? 60 : 0), tall - 6);
  }
}
const timeAt = e => from + (e.offsetX - left) / (canvas.clientWidth - left) * (to - from);
canvas.onwheel = e => {
  e.preventDefault();
  const t = timeAt(e), factor = e.deltaY > 0 ? 1.25 : 0.8;
  from = Math.max(0, t - (t - from) * factor); to = Math.min(end, t + (to - t) * factor);
  draw();
};
canvas.onmousedown = e => { held = timeAt(e); };
window.onmouseup = () => { held = null; };
canvas.onmousemove = e => {
  const t = timeAt(e);
  if (held !== null) {
    const by = Math.min(Math.max(held - t, -from), end - to);
    from += by; to += by; draw();
    return;
  }
  const lane = Math.floor(e.offsetY / height);
  const s = spans.find(s => laneOf(s) === lane && s[2] <= t && t <= s[3]);
  say.textContent = s === undefined ? "\u00a0" : lanes[lane] + " " + kinds[s[0]] + " " +
    ((s[3] - s[2]) / 1e3).toFixed(3) + " ms from " + (s[2] / 1e3).toFixed(3) + " ms" +
    (s[4] < 0 ? "" : ", tensor " + s[4] + " " + (names[s[4]] || "") + " (" +
     (sizes[s[4]] / 1048576).toFixed(1) + " MiB)");
};
window.onresize = draw;
draw();
)script";

std::string Data(const RunReport& report, const Trace& trace) {
  const auto microseconds = [](core::Tick at, core::Tick begin) {
    return std::chrono::duration<double, std::micro>(at - begin).count();
  };
  core::Tick begin = core::Tick::max();
  for (const Span& span : report.outcome.spans) begin = std::min(begin, span.begin);
  std::string spans;
  double end = 1;
  for (const Span& span : report.outcome.spans) {
    end = std::max(end, microseconds(span.end, begin));
    spans += Format("[%d,%u,%.3f,%.3f,%lld],", static_cast<int>(span.kind), span.client,
                    microseconds(span.begin, begin), microseconds(span.end, begin),
                    span.tensor < trace.tensors.size() ? static_cast<long long>(span.tensor) : -1);
  }
  std::string sizes;
  std::string names;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    sizes += std::to_string(trace.tensors[i].bytes.count()) + ",";
    if (!trace.tensors[i].name.empty())
      names += std::to_string(i) + ":" + Quoted(trace.tensors[i].name) + ",";
  }
  return Format("const clients=%u,end=%.3f;\n", trace.clients, end) + "const spans=[" + spans +
         "];\nconst sizes=[" + sizes + "];\nconst names={" + names + "};\n";
}

}  // namespace

std::string Table(const std::vector<RunReport>& reports) {
  std::string text = Format("%-16s %6s %-12s %10s %10s %10s %10s %7s %9s %9s %7s %7s %7s\n",
                            "trace", "budget", "policy", "time ms", "compute", "stall", "bound",
                            "effic.", "up GB", "down GB", "hits", "late", "misses");
  for (const RunReport& r : reports) {
    text += Format("%-16s %5d%% %-12s ", r.trace.c_str(), r.percent, r.policy.c_str());
    if (!r.outcome.failure.empty()) {
      text += "failed: " + r.outcome.failure + "\n";
      continue;
    }
    text += Format("%10.2f %10.2f %10.2f %10.2f %7.3f %9.3f %9.3f %7llu %7llu %7llu\n",
                   Milliseconds(r.outcome.time), Milliseconds(r.outcome.compute),
                   Milliseconds(r.outcome.stall), Milliseconds(r.bound.stall),
                   Efficiency(r.outcome, r.bound), static_cast<double>(r.outcome.up.count()) / 1e9,
                   static_cast<double>(r.outcome.down.count()) / 1e9,
                   static_cast<unsigned long long>(r.outcome.stats.hits),
                   static_cast<unsigned long long>(r.outcome.stats.late_hits),
                   static_cast<unsigned long long>(r.outcome.stats.misses));
  }
  return text;
}

std::string Json(const RunReport& r) {
  std::string text = "{\"trace\":" + Quoted(r.trace) + ",\"hardware\":" + Quoted(r.hardware) +
                     ",\"policy\":" + Quoted(r.policy);
  const auto number = [&](const char* name, double value) {
    text += Format(",\"%s\":%.9g", name, value);
  };
  const auto count = [&](const char* name, uint64_t value) {
    text += Format(",\"%s\":%llu", name, static_cast<unsigned long long>(value));
  };
  count("budget_bytes", r.budget.count());
  count("budget_percent", static_cast<uint64_t>(r.percent));
  if (!r.outcome.failure.empty()) return text + ",\"failure\":" + Quoted(r.outcome.failure) + "}\n";
  number("time_s", Seconds(r.outcome.time));
  number("compute_s", Seconds(r.outcome.compute));
  number("stall_s", Seconds(r.outcome.stall));
  number("bound_s", Seconds(r.bound.stall));
  number("efficiency", Efficiency(r.outcome, r.bound));
  count("up_bytes", r.outcome.up.count());
  count("down_bytes", r.outcome.down.count());
  count("hits", r.outcome.stats.hits);
  count("late_hits", r.outcome.stats.late_hits);
  count("misses", r.outcome.stats.misses);
  count("prefetches", r.outcome.stats.prefetches);
  count("prefetches_unused", r.outcome.stats.prefetches_unused);
  count("rescues", r.outcome.stats.rescues);
  count("drops_clean", r.outcome.stats.drops_clean);
  count("events", r.outcome.events);
  text += ",\"iteration_stall_s\":[";
  for (size_t i = 0; i < r.outcome.iteration_stall.size(); ++i)
    text += Format("%s%.9g", i == 0 ? "" : ",", Seconds(r.outcome.iteration_stall[i]));
  return text + "]}\n";
}

std::string JsonOfBound(const Trace& trace, core::Bytes budget, const LowerBound& bound) {
  return "{\"trace\":" + Quoted(trace.name) +
         Format(
             ",\"budget_bytes\":%llu,\"footprint_bytes\":%llu,\"largest_step_bytes\":%llu,"
             "\"compute_s\":%.9g,\"bound_s\":%.9g}\n",
             static_cast<unsigned long long>(budget.count()),
             static_cast<unsigned long long>(trace.Footprint().count()),
             static_cast<unsigned long long>(trace.LargestStep().count()), Seconds(bound.compute),
             Seconds(bound.stall));
}

std::string Page(const RunReport& report, const Trace& trace) {
  const std::string title =
      Escaped(report.trace + ", " + report.policy + ", " + core::SizeText(report.budget) + " of " +
              core::SizeText(trace.Footprint()) + ", " + report.hardware);
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" + title +
         "</title>\n<style>body{font:14px sans-serif;margin:1.5em;color:#222}canvas{width:100%;"
         "border:1px solid #ccc}pre{overflow:auto}i{display:inline-block;width:.8em;height:.8em;"
         "margin:0 .3em 0 1em}</style></head><body>\n<h1>" +
         title + "</h1>\n<pre>" + Escaped(Table({report})) +
         "</pre>\n<p><i style=\"background:#4a7ab5\"></i>computes"
         "<i style=\"background:#c8442f\"></i>stalls"
         "<i style=\"background:#3f9a5f\"></i>host to device"
         "<i style=\"background:#b08a2e\"></i>device to host"
         " &mdash; the wheel zooms, dragging moves</p>\n"
         "<canvas id=\"timeline\"></canvas>\n<p id=\"say\">&nbsp;</p>\n<script>\n" +
         Data(report, trace) + kScript + "</script></body></html>\n";
}

}  // namespace ravenstore::sim
