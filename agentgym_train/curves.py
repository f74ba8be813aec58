"""Plots of a run: small functions from metric rows to a matplotlib figure.

Built on matplotlib's object API, so no window system and no global plotting state are involved.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

Row = Mapping[str, Any]
Series = npt.NDArray[np.float64]

# What a figure is drawn in. `to_svg` turns these into CSS variables of the same names, so that a page can
# give each of them another value in the dark.
COLOURS = {
    "ink": "#1d2433",
    "muted": "#667085",
    "line": "#e3e7ee",
    "band": "#f3f5f9",
    "card": "#ffffff",
    "blue": "#2f6fe4",
    "amber": "#d9730d",
    "green": "#12936b",
    "violet": "#8250df",
    "red": "#cf3f4c",
}
_SERIES = ("blue", "amber", "green", "violet", "red")

# Inches at 72 points, so a figure that is shown in its own width has text of _FONT points.
WIDE = (11.0, 3.7)
NARROW = (5.4, 3.7)
HALF = (5.4, 2.7)
_FONT = 9.0

# Fewer points than this have no trend that an average could show.
_SMOOTHED_FROM = 10

# A ratio of largest to smallest value that a linear axis would not show.
_WIDE_RANGE = 20

# More stages than this are not labelled one by one: a schedule that climbs every few steps has too many.
_LABELLED_STAGES = 8


def smooth(values: Series, window: int) -> Series:
    """Centred moving average whose window narrows towards both ends, so that it begins and ends at the data.

    Args:
        values: Shape [n].
        window: Points averaged, an odd number.

    Returns:
        Shape [n].
    """
    averages = np.empty(values.size)
    for i in range(values.size):
        half = min(window // 2, i, values.size - 1 - i)
        averages[i] = values[i - half : i + half + 1].mean()
    return averages


def has_data(rows: Iterable[Row], key: str) -> bool:
    """Whether a row holds a finite number under that key, without which a plot of it would be blank."""
    return bool(np.isfinite(_column(rows, key)).any())


def plot_success(rows: Sequence[Row], evals: Sequence[Row], size: tuple[float, float] = WIDE) -> Figure:
    """Success rate in training, with the evaluations and the horizon's stages."""
    figure, axes = _figure(size)
    _shade_stages(axes, rows)
    _draw_rate(axes, rows, "success/mean", "training", "blue")
    _draw_evaluations(axes, evals, "success/mean")
    _share_axis(axes)
    _finish(figure, axes, [*rows, *evals])
    _label_evaluations(axes, evals, "success/mean")
    return figure


def scenarios_of(rows: Sequence[Row]) -> list[str]:
    """Names of the scenarios that rows have numbers of; none where a run has a single one."""
    end = "/success/mean"
    return list(dict.fromkeys(key.removesuffix(end) for row in rows for key in row if key.endswith(end)))


def plot_scenarios(rows: Sequence[Row], size: tuple[float, float] = WIDE) -> Figure:
    """Success rate in training of each scenario of a mixed run."""
    figure, axes = _figure(size)
    for index, name in enumerate(scenarios_of(rows)):
        _draw_rate(axes, rows, f"{name}/success/mean", name, _SERIES[index % len(_SERIES)])
    _share_axis(axes)
    return _finish(figure, axes, rows)


def plot_reward(rows: Sequence[Row], evals: Sequence[Row]) -> Figure:
    """Mean reward of an episode in training; an evaluation's score is its reward summed over the episode."""
    figure, axes = _figure(HALF)
    _draw_rate(axes, rows, "reward/mean", "training", "blue")
    _draw_evaluations(axes, evals, "score/mean")
    _zero_axis(axes, np.concatenate([_column(rows, "reward/mean"), _column(evals, "score/mean")]))
    return _finish(figure, axes, [*rows, *evals])


def plot_turns(rows: Sequence[Row]) -> Figure:
    """Turns that an episode took, below the horizon that bounds them."""
    figure, axes = _figure(HALF)
    lefts, rights, horizons = zip(*_stages(rows), strict=True)
    axes.stairs(horizons, [*lefts, rights[-1]], baseline=None, color=COLOURS["muted"], linewidth=1.6, label="horizon")
    _draw_rate(axes, rows, "turns/mean", "turns", "blue")
    _zero_axis(axes, _column(rows, "horizon"))
    return _finish(figure, axes, rows)


def plot_replies(rows: Sequence[Row]) -> Figure:
    """Replies that gave a valid action, and replies that were cut off, out of all replies of the step."""
    figure, axes = _figure(HALF)
    _draw_rate(axes, rows, "valid_action_share", "valid action", "blue")
    _draw_rate(axes, rows, "cut_reply_share", "cut off", "red")
    _share_axis(axes)
    return _finish(figure, axes, rows)


def plot_grad_norm(rows: Sequence[Row]) -> Figure:
    """Norm of the gradient before clipping, on a logarithmic axis if its range is wide."""
    figure, axes = _figure(HALF)
    norms = _column(rows, "grad_norm")
    norms = norms[np.isfinite(norms)]
    _draw_rate(axes, rows, "grad_norm", "gradient norm", "blue")
    if norms.min() > 0 and norms.max() > _WIDE_RANGE * norms.min():
        axes.set_yscale("log")
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        _zero_axis(axes, norms)
    return _finish(figure, axes, rows, legend=False)


def plot_kl(rows: Sequence[Row]) -> Figure:
    """Divergence from the reference model, in nats a token."""
    return _plot_line(rows, "kl")


def plot_entropy(rows: Sequence[Row]) -> Figure:
    """Entropy of the policy, in nats a token."""
    return _plot_line(rows, "entropy")


def plot_zero_variance(rows: Sequence[Row]) -> Figure:
    """Groups of equal rewards, which give no gradient, out of all groups of the step."""
    figure, axes = _figure(HALF)
    steps = _column(rows, "step")
    for key, label, colour in (
        ("groups/total", "all groups", "line"),
        ("groups/zero_variance", "without variance", "amber"),
    ):
        axes.bar(steps, _column(rows, key), width=0.8, color=COLOURS[colour], label=label)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return _finish(figure, axes, rows)


def plot_warm_start(rows: Sequence[Row]) -> Figure:
    """Supervised loss of the warm start, in nats a token."""
    return _plot_line(rows, "loss")


def plot_seconds(seconds: Mapping[str, float]) -> Figure:
    """Seconds spent in each phase, as bars from the first phase down."""
    figure, axes = _figure(HALF)
    names = [name.replace("_", " ") for name in seconds]
    total = sum(seconds.values())
    bars = axes.barh(names, list(seconds.values()), height=0.62, color=COLOURS["blue"])
    labels = [f"{format_seconds(value)} · {value / total if total else 0:.0%}" for value in seconds.values()]
    axes.bar_label(bars, labels, padding=5, fontsize=_FONT, color=COLOURS["ink"])
    axes.invert_yaxis()
    axes.margins(x=0.35)  # room for the labels
    axes.tick_params(axis="y", labelcolor=COLOURS["ink"])
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.grid(visible=False)
    return figure


def plot_seeds(runs: Mapping[str, Sequence[Row]], title: str) -> Figure:
    """Success rate in training of several runs, each under its label."""
    figure, axes = _figure((8.0, 4.0))
    for index, (label, rows) in enumerate(runs.items()):
        _draw_rate(axes, rows, "success/mean", label, _SERIES[index % len(_SERIES)])
    axes.set_title(title, loc="left", fontsize=11, color=COLOURS["ink"], pad=12)
    _share_axis(axes)
    axes.legend(loc="lower right", frameon=False, fontsize=_FONT, labelcolor=COLOURS["ink"])
    return _finish(figure, axes, [row for rows in runs.values() for row in rows], legend=False)


def to_svg(figure: Figure, name: str) -> str:
    """An `<svg>` element to stand in an HTML page, the same bytes for the same figure.

    Args:
        figure: What to draw, in `COLOURS`.
        name: Unique in the page; it keeps the ids of several plots apart.

    Returns:
        The element. Its text is text, its colours are the CSS variables `--ink`, `--blue` and so on.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # HTML needs neither the namespaces nor the metadata, which names outside addresses and the time.
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for variable, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return svg


def format_seconds(seconds: float) -> str:
    """A length of time as people write it, such as "45 s", "12 min" or "1 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=COLOURS["line"], linewidth=0.8)
    axes.tick_params(labelsize=_FONT, labelcolor=COLOURS["muted"], length=0, pad=5)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(COLOURS["line"])
    return figure, axes


def _finish(figure: Figure, axes: Axes, rows: Sequence[Row], legend: bool = True) -> Figure:
    """The axis of steps, from the first row to the last, and the legend."""
    if rows:
        steps = _column(rows, "step")
        axes.set_xlim(steps.min() - 0.5, steps.max() + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_xlabel("step", fontsize=_FONT, color=COLOURS["muted"], loc="right")
    if legend and axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper left", ncols=5, frameon=False, fontsize=_FONT, labelcolor=COLOURS["ink"])
    return figure


def _share_axis(axes: Axes) -> None:
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))


def _zero_axis(axes: Axes, values: Series) -> None:
    """An axis that holds zero, so that little noise looks little, with room beyond the values."""
    values = values[np.isfinite(values)]
    low, high = values.min(initial=0.0), values.max(initial=0.0)
    if low == high:
        high = 1.0
    room = 0.06 * (high - low)
    axes.set_ylim(low - room, high + room)


def _column(rows: Iterable[Row], key: str) -> Series:
    """Values of one key, NaN where a row lacks it."""
    return np.array([np.nan if row.get(key) is None else row[key] for row in rows], dtype=np.float64)


def _plot_line(rows: Sequence[Row], key: str) -> Figure:
    figure, axes = _figure(HALF)
    _draw_rate(axes, rows, key, key, "blue")
    _zero_axis(axes, _column(rows, key))
    return _finish(figure, axes, rows, legend=False)


def _draw_rate(axes: Axes, rows: Sequence[Row], key: str, label: str, colour: str) -> None:
    """Points as measured, and a line through them or, if they are many, through their moving average."""
    steps, values = _column(rows, "step"), _column(rows, key)
    measured = np.isfinite(values)
    if not measured.any():
        return
    steps, values = steps[measured], values[measured]
    style: dict[str, Any] = {"color": COLOURS[colour], "markersize": 5, "markeredgewidth": 0}
    if values.size < _SMOOTHED_FROM:
        axes.plot(steps, values, "o-", linewidth=1, label=label, **style)
        return
    window = max(3, values.size // 10) | 1
    axes.plot(steps, values, "o", alpha=0.7, **style)
    axes.plot(steps, smooth(values, window), linewidth=2, solid_capstyle="round", label=label, **style)


def _draw_evaluations(axes: Axes, evals: Sequence[Row], key: str) -> None:
    if not evals:
        return
    steps, values = _column(evals, "step"), _column(evals, key)
    axes.plot(
        steps,
        values,
        "D",
        color=COLOURS["amber"],
        markersize=8,
        markeredgecolor=COLOURS["card"],
        markeredgewidth=1.5,
        zorder=5,
        label="evaluation",
        clip_on=False,
    )


def _label_evaluations(axes: Axes, evals: Sequence[Row], key: str) -> None:
    """Name and value over each evaluation, on a patch of the background that keeps points out of the text."""
    left, right = axes.get_xlim()
    for row in evals:
        place = (row["step"] - left) / (right - left)
        axes.annotate(
            f"{row['name']} {row[key]:.0%}",
            (row["step"], row[key]),
            xytext=(0, 11),
            textcoords="offset points",
            # Away from the edges, where it would cover the axis or be cut off.
            ha="left" if place < 0.1 else "right" if place > 0.9 else "center",
            fontsize=_FONT,
            fontweight="bold",
            color=COLOURS["amber"],
            bbox={"boxstyle": "round,pad=0.2", "color": COLOURS["card"], "alpha": 0.85, "linewidth": 0},
            zorder=6,
        )


def _stages(rows: Sequence[Row]) -> list[tuple[float, float, int]]:
    """Where each stage of the horizon begins and ends, half a step beyond its rows, and its horizon."""
    starts = [i for i, row in enumerate(rows) if i == 0 or row["horizon"] != rows[i - 1]["horizon"]]
    ends = [*starts[1:], len(rows)]
    return [
        (rows[start]["step"] - 0.5, rows[end - 1]["step"] + 0.5, rows[start]["horizon"])
        for start, end in zip(starts, ends, strict=False)
    ]


def _shade_stages(axes: Axes, rows: Sequence[Row]) -> None:
    """A band behind every second stage of the horizon, each stage labelled above the plot."""
    stages = _stages(rows)
    for number, (left, right, horizon) in enumerate(stages):
        if number % 2 == 0:
            axes.axvspan(left, right, color=COLOURS["band"], linewidth=0, zorder=0)
        if len(stages) <= _LABELLED_STAGES:
            axes.text(
                (left + right) / 2,
                1.02,
                f"horizon {horizon}",
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="bottom",
                fontsize=_FONT,
                color=COLOURS["muted"],
            )
