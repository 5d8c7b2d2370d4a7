"""Part of bench/pytorch_bench.py: step over peak, ours against PyTorch's own means.

Every point is a step's time as a multiple of a plain eager step in the same process, and the peak
that pytorch_meter.Meter saw: live bytes, and physical ones with caches and magazines.
"""

import dataclasses
import pathlib
import sys

import pytorch_plot
import pytorch_record

GIB = 1 << 30
SLOWEST = 1.05  # of plain's step, for peak_at_plain_speed
ENVELOPE_MOST = 1.02
PEAK_MOST = {"eager": 0.80, "compiled": 0.82}


@dataclasses.dataclass(frozen=True)
class Point:
    name: str
    kind: str  # "eager" or "compiled"
    family: str  # the name up to its first dot
    times: float  # of a plain eager step, or a plain one compiled by block
    step: float  # seconds
    live: int
    physical: int


class Curve:
    def __init__(self, bench):
        self.bench, self.points = bench, []

    def add(self, name, kind, found, plain):
        if "failed" in found:
            self.bench.say(f"curve.{kind}.{name}", None, "ms", None, None, skipped=found["failed"])
            return
        times = found["step"] / plain
        family = name.split(".", maxsplit=1)[0]
        self.points.append(
            Point(name, kind, family, times, found["step"], found["live"], found["physical"])
        )
        self.bench.say(
            f"curve.{kind}.{name}",
            round(found["step"] * 1e3, 2),
            "ms",
            None,
            None,
            times_plain=round(times, 4),
            live_gib=round(found["live"] / GIB, 3),
            physical_gib=round(found["physical"] / GIB, 3),
        )

    def rivals(self, kind):
        plain = None
        for found in self.bench.stream("curve", alone=False, of=kind):
            if found["name"] == "plain":
                plain = found.get("step")
                # Of compiled ones the plain form is that of our process, compiled by block.
                if kind == "eager":
                    self.add("plain", kind, found, plain or 1)
            elif plain:
                self.add(found["name"], kind, found, plain)

    def one_of_ours(self, kind, states, percent, budget):
        """The point at one budget; the process's last result, or None."""
        name = f"{'ours_with_states' if states else 'ours'}.{percent}"
        plain = None
        for found in self.bench.stream(
            "curve", of="ours", kind=kind, states=states, budget=int(budget)
        ):
            if found["name"] == "plain" and "step" in found:
                plain = found["step"]
                if not any(p.name == "plain" and p.kind == kind for p in self.points):
                    self.add("plain", kind, found, plain)
            elif found["name"] == "ours" and plain:
                self.add(name, kind, found, plain)
                return found
        self.bench.miss(f"curve.{kind}.{name}")
        return None

    def ours(self, kind, states):
        ample = self.one_of_ours(kind, states, 100, self.bench.ample)
        for percent in self.bench.arguments.budgets if ample else ():
            budget = pytorch_record.budget_for(ample, percent)
            if budget < ample["used_peak"] * SLOWEST:
                self.bench.skip(
                    "what is in use at once is more",
                    f"curve.{kind}.{'ours_with_states' if states else 'ours'}.{percent}",
                )
                continue
            self.one_of_ours(kind, states, percent, budget)


def step_at(points, live):
    """The least step, in plain ones, that `points` allow at a peak of `live`; None below them all.
    Between two budgets of ours a line: a budget may be any number."""
    reached = [point for point in points if point.live <= live]
    if not reached:
        return None
    best = min(point.times for point in reached)
    low = max(reached, key=lambda point: point.live)
    above = [point for point in points if point.live > live and point.family == low.family]
    if not low.family.startswith("ours"):
        above = []
    for high in above:
        share = (live - low.live) / (high.live - low.live)
        best = min(best, low.times + share * (high.times - low.times))
    return best


def envelope_figure(bench, points, kind):
    """ours over the lower envelope of {plain, checkpoint, ours}, at the rivals' peaks."""
    name = f"curve_vs_envelope.{kind}"
    of_kind = [point for point in points if point.kind == kind]
    own = [point for point in of_kind if point.family.startswith("ours")]
    rest = [point for point in of_kind if not point.family.startswith("ours")]
    if not own or not rest:
        return bench.miss(name)
    known = [p for p in of_kind if p.family in ("plain", "checkpoint")] + own
    worst, where, below = 0.0, "", []
    for rival in rest:
        mine, best = step_at(own, rival.live), step_at(known, rival.live)
        if mine is None:
            below.append(rival.name)
        elif mine / best > worst:
            worst, where = mine / best, rival.name
    floor = min(point.live for point in rest)
    lowest = min(own, key=lambda point: point.live)
    more = {"at": where, "below_ours": below, "rivals_floor_gib": round(floor / GIB, 3)}
    more |= {"ours_floor_gib": round(lowest.live / GIB, 3), "ours_floor_at": lowest.name}
    if not worst:
        return bench.say(name, None, "ratio", ENVELOPE_MOST, False, **more)
    ok = worst <= ENVELOPE_MOST and not below
    return bench.say(name, round(worst, 4), "ratio", ENVELOPE_MOST, ok, **more)


def peak_figure(bench, points, kind):
    """The lowest peak, over plain's, at which a step with states away is as fast as plain's."""
    name = f"peak_at_plain_speed.{kind}"
    of_kind = [point for point in points if point.kind == kind]
    plain = [point for point in of_kind if point.name == "plain"]
    own = [p for p in of_kind if p.family == "ours_with_states" and p.times <= SLOWEST]
    if not plain or not any(p.family == "ours_with_states" for p in of_kind):
        return bench.miss(name)
    most = PEAK_MOST[kind]
    budgets = [p for p in of_kind if p.family == "memory_budget" and p.step / plain[0].step <= 1.05]
    lowest_budget = min((p.live / plain[0].live for p in budgets), default=None)
    more = {"pytorch_memory_budget": None if lowest_budget is None else round(lowest_budget, 4)}
    if not own:
        fastest = min(p.times for p in of_kind if p.family == "ours_with_states")
        more["fastest_step_over_plain"] = round(fastest, 4)
        return bench.say(name, None, "ratio", most, False, **more)
    lowest = min(own, key=lambda point: point.live)
    more |= {"at": lowest.name, "physical": round(lowest.physical / plain[0].physical, 4)}
    return bench.ratio(name, lowest.live / plain[0].live, most, **more)


def table(points):
    rows = [
        "| kind | way | step, ms | x plain | live GiB | physical GiB |",
        "|---|---|---|---|---|---|",
    ]
    for p in sorted(points, key=lambda point: (point.kind, -point.live)):
        rows.append(
            f"| {p.kind} | {p.name} | {p.step * 1e3:.1f} | {p.times:.3f} "
            f"| {p.live / GIB:.2f} | {p.physical / GIB:.2f} |"
        )
    return "\n".join(rows)


def curve(bench):
    found = Curve(bench)
    for kind in bench.arguments.kinds:
        if kind == "eager":
            found.rivals(kind)
        for states in (False, True):
            found.ours(kind, states)
        if kind == "compiled":
            found.rivals(kind)
        envelope_figure(bench, found.points, kind)
        peak_figure(bench, found.points, kind)
    print(table(found.points), file=sys.stderr)
    if found.points:
        picture = pytorch_plot.draw(found.points, f"step over peak, {bench.machine}")
        pathlib.Path(bench.arguments.plot).write_text(picture)
