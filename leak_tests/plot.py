"""A run as a picture: memory with its trend and the limit, and the counts below.

Needs matplotlib, which the extra `train` brings.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from leak_tests.probes import MEMORY_LIMIT_KB
from leak_tests.registry import KnownLine, find
from leak_tests.report import number
from leak_tests.runner import Record
from leak_tests.verdict import Finding, judge, overall

_COLOURS = ("#2f6fe4", "#d9730d", "#12936b", "#8250df", "#cf3f4c")
_INK, _MUTED, _LINE, _BAND = "#1d2433", "#667085", "#e3e7ee", "#f3f5f9"
_HEADROOM = 1.3


def write_plot(record: Record, path: Path) -> None:
    """Draw a run as a PNG."""
    findings = judge(record)
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    _draw_memory(top, record, [finding for finding in findings if finding.quantity.unit == "KB"])
    _draw_counts(bottom, record, [finding for finding in findings if not finding.quantity.unit])
    top.set_title(
        f"{record.env}, mode {record.mode}: {overall(findings)}", loc="left", fontweight="bold", color=_INK, fontsize=11
    )
    bottom.set_xlabel(f"{record.unit} played", color=_MUTED)
    bottom.set_xlim(0, record.played[-1])
    figure.savefig(path, dpi=110)


def _draw_memory(axes: Axes, record: Record, findings: list[Finding]) -> None:
    """Growth since the end of the warm-up, in MB."""
    start = record.warm_up
    first = record.played[start]
    low, high = 0.0, 0.0
    for finding, colour in zip(findings, _COLOURS, strict=False):
        name, slope = finding.quantity.name, finding.slope
        values = record.samples[name]
        grown = [(value - values[start]) / 1024 for value in values]
        label = f"{name}: {number(slope.value)} KB per 1,000\n({number(slope.low)} to {number(slope.high)})"
        axes.plot(record.played, grown, "o", markersize=3.5, color=colour, label=label)
        # Through the middle of what counts, as the slope has no height of its own.
        middle = sorted(grown[start:])[len(grown[start:]) // 2]
        ends = [first, record.played[-1]]
        trend = [middle + slope.value / 1024 / 1_000 * (x - sum(ends) / 2) for x in ends]
        axes.plot(ends, trend, color=colour, linewidth=1.5)
        low, high = min(low, *grown, *trend), max(high, *grown[start:], *trend)
    limit = KnownLine(
        f"limit: {MEMORY_LIMIT_KB:g} KB per 1,000", ((0, 0), (record.span, MEMORY_LIMIT_KB * record.span / 1_000)), ()
    )
    known = [line for line in find(record.env).known if record.mode in line.modes]
    for line, style in zip((limit, *known), ("--", "-.", ":"), strict=False):
        xs, ys = [first + x for x, _ in line.points], [y / 1024 for _, y in line.points]
        axes.plot(xs, ys, style, color=_MUTED, linewidth=1.3, label=line.label)
    high = max(high, MEMORY_LIMIT_KB * record.span / 1_000 / 1024)
    axes.set_ylim(low - 0.05 * (high - low), low + _HEADROOM * (high - low))
    axes.set_ylabel("MB since the warm-up", color=_MUTED)
    where = axes.get_xaxis_transform()
    axes.text(first / 2, 0.97, "warm-up", transform=where, ha="center", va="top", color=_MUTED, fontsize=8)
    _finish(axes, record)


def _draw_counts(axes: Axes, record: Record, findings: list[Finding]) -> None:
    for finding, colour in zip(findings, _COLOURS, strict=False):
        values = record.samples[finding.quantity.name]
        label = f"{finding.quantity.name}: {values[-1]:g} at the end"
        axes.plot(record.played, values, "o-", markersize=3, linewidth=1, color=colour, label=label)
    axes.set_ylabel("number", color=_MUTED)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.15)
    _finish(axes, record)


def _finish(axes: Axes, record: Record) -> None:
    axes.axvspan(0, record.played[record.warm_up], color=_BAND, zorder=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(color=_LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_MUTED)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_LINE)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8, labelcolor=_INK)
