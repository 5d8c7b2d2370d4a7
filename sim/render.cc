#include "sim/render.h"

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>

#include "core/printable.h"
#include "core/size_text.h"
#include "core/text_table.h"

namespace ravenstore::sim {

using core::JsonQuoted;
using core::Milliseconds;
using core::Seconds;

namespace {

// Of a trace's name; it is whole in JSON.
constexpr size_t kNameColumns = 24;

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
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

// The page's script: lanes of coloured spans, marks where iterations begin, and a curve of the
// device's memory; the wheel zooms, dragging moves.
constexpr const char* kScript = R"script(
const canvas = document.getElementById("timeline"), say = document.getElementById("say");
const lanes = [];
for (let c = 1; c <= clients; c++) lanes.push("client " + c);
lanes.push("to device", "to host");
const kinds = ["computes", "stalls", "comes", "leaves"];
const colours = ["#4a7ab5", "#c8442f", "#3f9a5f", "#b08a2e"];
const laneOf = s => s[0] < 2 ? s[1] : clients + s[0] - 2;
const height = 44, left = 90, top_ = 18, memoryTall = 110, axis = 24;
const memoryTop = top_ + lanes.length * height;
const most = memory.reduce((m, p) => Math.max(m, p[1]), budget);
const tall = memoryTop + memoryTall + axis;
let from = 0, to = end, held = null;
const size = bytes => bytes < 2 ** 30 ? (bytes / 2 ** 20).toFixed(1) + " MiB"
                                      : (bytes / 2 ** 30).toFixed(1) + " GiB";
// Of sorted points, the last at or before t; -1: none.
const lastAt = (points, t) => {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= t) low = middle + 1; else high = middle;
  }
  return low - 1;
};
function drawMemory(g, x) {
  const y = bytes => memoryTop + memoryTall - 6 - bytes / most * (memoryTall - 20);
  for (const [column, colour] of [[1, "#d5dbe3"], [2, "#8fa9c9"]]) {
    g.fillStyle = colour;
    for (let i = Math.max(0, lastAt(memory, from)); i < memory.length && memory[i][0] <= to; i++) {
      const a = Math.max(left, x(memory[i][0]));
      const b = x(i + 1 < memory.length ? Math.min(memory[i + 1][0], to) : Math.min(end, to));
      g.fillRect(a, y(memory[i][column]), Math.max(0.4, b - a), y(0) - y(memory[i][column]));
    }
  }
  g.strokeStyle = "#c8442f"; g.setLineDash([5, 4]);
  g.beginPath(); g.moveTo(left, y(budget)); g.lineTo(x(to), y(budget)); g.stroke();
  g.setLineDash([]);
  g.fillStyle = "#222";
  g.fillText("memory", 4, memoryTop + memoryTall / 2 + 4);
  g.fillText(size(budget), 4, y(budget) + 4);
}
function drawSteps(g, x) {
  g.strokeStyle = "#555"; g.fillStyle = "#222"; g.textAlign = "center";
  let labelled = -Infinity;
  for (const [t, client, number] of steps) {
    if (t < from || t > to) continue;
    const whole = clients == 1, a = x(t);
    g.beginPath();
    g.moveTo(a, whole ? top_ - 4 : top_ + client * height);
    g.lineTo(a, whole ? tall - axis : top_ + (client + 1) * height);
    g.stroke();
    if (client > 0 || a - labelled < 30) continue;
    g.fillText(number, a, top_ - 6);
    labelled = a;
  }
  g.textAlign = "left";
}
function draw() {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.style.height = tall + "px";
  canvas.width = width * scale; canvas.height = tall * scale;
  const g = canvas.getContext("2d");
  g.scale(scale, scale); g.font = "12px sans-serif";
  const right = width - 8;
  const x = t => left + (t - from) / (to - from) * (right - left);
  for (const s of spans) {
    if (s[3] < from || s[2] > to) continue;
    const a = Math.max(left, x(s[2]));
    g.fillStyle = colours[s[0]];
    const b = Math.min(right, x(s[3]));
    g.fillRect(a, top_ + laneOf(s) * height + 6, Math.max(0.4, b - a), height - 12);
  }
  g.fillStyle = "#222";
  lanes.forEach((name, i) => g.fillText(name, 4, top_ + i * height + height / 2 + 4));
  g.fillText("iteration", 4, top_ - 6);
  drawMemory(g, x);
  drawSteps(g, x);
  g.fillStyle = "#222";
  const ticks = Math.max(1, Math.min(8, Math.floor((right - left) / 110)));
  for (let i = 0; i <= ticks; i++) {
    const t = from + (to - from) * i / ticks;
    g.textAlign = i == 0 ? "left" : i == ticks ? "right" : "center";
    g.fillText((t / 1e3).toFixed(2) + " ms", x(t), tall - 6);
  }
  g.textAlign = "left";
}
const timeAt = e => from + (e.offsetX - left) / (canvas.clientWidth - 8 - left) * (to - from);
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
  if (e.offsetY >= memoryTop) {
    const i = lastAt(memory, t);
    say.textContent = i < 0 ? "\u00a0" : size(memory[i][1]) + " of device memory held, " +
      size(memory[i][2]) + " of pages with live tensors, at " + (t / 1e3).toFixed(3) + " ms";
    return;
  }
  const lane = Math.floor((e.offsetY - top_) / height);
  const s = spans.find(s => laneOf(s) === lane && s[2] <= t && t <= s[3]);
  say.textContent = s === undefined ? "\u00a0" : lanes[lane] + " " + kinds[s[0]] + " " +
    ((s[3] - s[2]) / 1e3).toFixed(3) + " ms from " + (s[2] / 1e3).toFixed(3) + " ms" +
    (s[4] < 0 ? "" : ", tensor " + s[4] + " " + (names[s[4]] || "") + " (" +
     size(sizes[s[4]]) + ")");
};
window.onresize = draw;
draw();
)script";

std::string Data(const RunReport& report, const Trace& trace) {
  const Outcome& outcome = report.outcome;
  const auto microseconds = [](core::Duration at) {
    return std::chrono::duration<double, std::micro>(at).count();
  };
  std::string spans;
  double end = 1;
  for (const Span& span : outcome.spans) {
    end = std::max(end, microseconds(span.end));
    spans += Format("[%d,%u,%.3f,%.3f,%lld],", static_cast<int>(span.kind), span.client,
                    microseconds(span.begin), microseconds(span.end),
                    span.tensor < trace.tensors.size() ? static_cast<long long>(span.tensor) : -1);
  }
  // Before the first mark is what comes before any iteration.
  std::string steps;
  std::vector<unsigned> iterations(trace.clients);
  for (const StepMark& mark : outcome.steps) {
    steps +=
        Format("[%.3f,%u,%u],", microseconds(mark.at), mark.client, ++iterations.at(mark.client));
  }
  std::string memory;
  for (const MemoryPoint& point : outcome.memory) {
    memory += Format("[%.3f,%llu,%llu],", microseconds(point.at),
                     static_cast<unsigned long long>(point.held.count()),
                     static_cast<unsigned long long>(point.used.count()));
  }
  std::string sizes;
  std::string names;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    sizes += std::to_string(trace.tensors[i].bytes.count()) + ",";
    if (!trace.tensors[i].name.empty())
      names += std::to_string(i) + ":" + JsonQuoted(trace.tensors[i].name) + ",";
  }
  return Format("const clients=%u,end=%.3f,budget=%llu;\n", trace.clients, end,
                static_cast<unsigned long long>(report.budget.count())) +
         "const spans=[" + spans + "];\nconst steps=[" + steps + "];\nconst memory=[" + memory +
         "];\nconst sizes=[" + sizes + "];\nconst names={" + names + "};\n";
}

std::string NameCell(const std::string& name) {
  return core::CutToWidth(core::Printable(name), kNameColumns);
}

// Of calls that may touch anything; empty where there are none.
std::string TextOfUnknown(const Trace& trace) {
  constexpr size_t kShown = 16;
  const auto unknown = trace.UnknownCalls();
  if (unknown.empty()) return {};
  std::string text = "these may use what they do not name, which no bound counts:\n";
  for (size_t i = 0; i < std::min(unknown.size(), kShown); ++i) {
    const std::string& name = unknown[i].first;
    text += "  " + std::to_string(unknown[i].second) + " x " +
            (name.empty() ? "calls without a name" : core::Printable(name)) + "\n";
  }
  if (unknown.size() > kShown)
    text += "  and " + std::to_string(unknown.size() - kShown) + " others\n";
  return text;
}

}  // namespace

std::string TableOfJobs(const std::vector<JobReport>& jobs) {
  core::TextTable table("<><");
  table.Row({"job", "footprint", "what it is"});
  for (const JobReport& job : jobs) table.Row({job.name, core::SizeText(job.footprint), job.what});
  return table.Text(SIZE_MAX);
}

std::string TableOfHardware() {
  core::TextTable table("<>>><");
  table.Row({"hardware", "memory", "to device GB/s", "from it GB/s", "link"});
  for (const Hardware& one : kHardware) {
    table.Row({std::string(one.name), core::SizeText(one.memory), Format("%.1f", one.up / 1e9),
               Format("%.1f", one.down / 1e9), one.measured ? "measured" : "nominal"});
  }
  return table.Text(SIZE_MAX) +
         "nominal: from public data sheets, at the share that large copies reach elsewhere; --up "
         "and "
         "--down say yours\n";
}

std::string Table(const std::vector<RunReport>& reports) {
  core::TextTable table("<><>>>>>>>>>");
  table.Row({"trace", "budget", "policy", "time ms", "compute ms", "stall ms", "bound ms",
             "efficiency", "up GB", "down GB", "pages mapped", "pages forced"});
  const auto number = [](double value) { return Format("%.2f", value); };
  const auto gigabytes = [](core::Bytes bytes) {
    return Format("%.3f", static_cast<double>(bytes.count()) / 1e9);
  };
  std::string failures;
  for (const RunReport& r : reports) {
    const std::string budget = std::to_string(r.percent) + "%";
    if (!r.outcome.failure.empty()) {
      table.Row({NameCell(r.trace), budget, r.policy, "failed"});
      failures += NameCell(r.trace) + " at " + budget + ", " + r.policy +
                  ", failed: " + core::Printable(r.outcome.failure) + "\n";
      continue;
    }
    table.Row({NameCell(r.trace), budget, r.policy, number(Milliseconds(r.outcome.time)),
               number(Milliseconds(r.outcome.compute)), number(Milliseconds(r.outcome.stall)),
               number(Milliseconds(r.bound.stall)), Format("%.3f", Efficiency(r.outcome, r.bound)),
               gigabytes(r.outcome.up), gigabytes(r.outcome.down),
               std::to_string(r.outcome.stats.moves.maps),
               std::to_string(r.outcome.stats.moves.emergencies)});
  }
  return table.Text(SIZE_MAX) + failures;
}

std::optional<double> BoundReport::Loose() const {
  const core::Duration least = bound.compute + bound.stall;
  if (!known || least == core::Duration{0}) return std::nullopt;
  return Seconds(bound.compute + *known) / Seconds(least);
}

std::string TableOfBounds(const Trace& trace, const std::vector<BoundReport>& reports) {
  core::TextTable table("<>>>>>>>>");
  table.Row({"trace", "budget", "of", "footprint", "largest step", "compute ms", "bound ms",
             "known ms", "times loose"});
  for (const BoundReport& r : reports) {
    table.Row({NameCell(trace.name), std::to_string(r.budget.percent) + "%",
               core::SizeText(r.budget.bytes), core::SizeText(trace.Footprint()),
               core::SizeText(trace.LargestStep()), Format("%.2f", Milliseconds(r.bound.compute)),
               Format("%.2f", Milliseconds(r.bound.stall)),
               r.known ? Format("%.2f", Milliseconds(*r.known)) : "-",
               r.Loose() ? Format("%.3f", *r.Loose()) : "-"});
  }
  return table.Text(SIZE_MAX) + TextOfUnknown(trace);
}

std::string Json(const RunReport& r) {
  std::string text = "{\"trace\":" + JsonQuoted(r.trace) +
                     ",\"hardware\":" + JsonQuoted(r.hardware) +
                     ",\"policy\":" + JsonQuoted(r.policy);
  const auto number = [&](const char* name, double value) {
    text += Format(",\"%s\":%.9g", name, value);
  };
  const auto count = [&](const char* name, uint64_t value) {
    text += Format(",\"%s\":%llu", name, static_cast<unsigned long long>(value));
  };
  count("budget_bytes", r.budget.count());
  count("budget_percent", static_cast<uint64_t>(r.percent));
  if (!r.outcome.failure.empty())
    return text + ",\"failure\":" + JsonQuoted(r.outcome.failure) + "}\n";
  number("time_s", Seconds(r.outcome.time));
  number("compute_s", Seconds(r.outcome.compute));
  number("stall_s", Seconds(r.outcome.stall));
  number("create_stall_s", Seconds(r.outcome.create_stall));
  number("bound_s", Seconds(r.bound.stall));
  number("efficiency", Efficiency(r.outcome, r.bound));
  count("up_bytes", r.outcome.up.count());
  count("down_bytes", r.outcome.down.count());
  const PagedStats& stats = r.outcome.stats;
  count("maps", stats.moves.maps);
  number("mapping_s", Seconds(stats.mapping));
  count("emergencies", stats.moves.emergencies);
  count("dropped_copies", stats.moves.dropped_copies);
  count("pages_handed_over", stats.handed_over);
  count("plans", stats.plans);
  count("calls_compared", stats.compared);
  count("calls_found", stats.found);
  text += ",\"iteration_stall_s\":[";
  for (size_t i = 0; i < r.outcome.iteration_stall.size(); ++i)
    text += Format("%s%.9g", i == 0 ? "" : ",", Seconds(r.outcome.iteration_stall[i]));
  text += "],\"recorded\":[";
  for (size_t i = 0; i < r.recorded.size(); ++i) {
    const StepTimes& step = r.recorded[i];
    text += Format("%s{\"compute_s\":%.9g", i == 0 ? "" : ",", Seconds(step.compute));
    number("waited_for_creates_s", Seconds(step.waited_for_creates));
    number("waited_for_gets_s", Seconds(step.waited_for_gets));
    number("program_s", Seconds(step.program));
    number("blocked_s", Seconds(step.blocked));
    text += "}";
  }
  return text + "]}\n";
}

std::string JsonOfBound(const Trace& trace, const BoundReport& report) {
  std::string unknown;
  for (const auto& [name, calls] : trace.UnknownCalls()) {
    unknown += std::string(unknown.empty() ? "" : ",") + "{\"name\":" + JsonQuoted(name) +
               ",\"calls\":" + std::to_string(calls) + "}";
  }
  return "{\"trace\":" + JsonQuoted(trace.name) +
         Format(
             ",\"budget_bytes\":%llu,\"footprint_bytes\":%llu,\"largest_step_bytes\":%llu,"
             "\"compute_s\":%.9g,\"unknown_calls\":[",
             static_cast<unsigned long long>(report.budget.bytes.count()),
             static_cast<unsigned long long>(trace.Footprint().count()),
             static_cast<unsigned long long>(trace.LargestStep().count()),
             Seconds(report.bound.compute)) +
         unknown + Format("],\"bound_s\":%.9g", Seconds(report.bound.stall)) +
         (report.known ? Format(",\"known_s\":%.9g", Seconds(*report.known)) : "") + "}\n";
}

std::string Page(const RunReport& report, const Trace& trace) {
  const std::string title = Escaped(core::Printable(report.trace) + ", " + report.policy + ", " +
                                    core::SizeText(report.budget) + " of " +
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
         "<i style=\"background:#d5dbe3\"></i>memory held"
         "<i style=\"background:#8fa9c9\"></i>pages of live tensors"
         " &mdash; the wheel zooms, dragging moves</p>\n"
         "<canvas id=\"timeline\"></canvas>\n<p id=\"say\">&nbsp;</p>\n<script>\n" +
         Data(report, trace) + kScript + "</script></body></html>\n";
}

}  // namespace ravenstore::sim
