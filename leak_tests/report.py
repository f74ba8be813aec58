"""What a run found, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from leak_tests.runner import Record
from leak_tests.verdict import Finding, Verdict, judge, overall

STYLES: dict[Verdict, str] = {"pass": "green", "fail": "bold red", "inconclusive": "bold yellow"}
_SHOWN_GROWERS = 5


def text(record: Record) -> RenderableType:
    """Return a run's report for the terminal."""
    findings = judge(record)
    verdict = overall(findings)
    title = (
        f"{record.env}, mode {record.mode}: {record.played[-1]:,} {record.unit} in {record.seconds:.0f} s, "
        f"of which the last {record.span:,} count. Growth per 1,000 {record.unit}:"
    )
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for heading in ("growth", "95 % interval", "limit", "smallest visible"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for finding in findings:
        table.add_row(*cells(finding), Text(finding.verdict, STYLES[finding.verdict]))
    parts: list[RenderableType] = [table]
    grown = {finding.quantity.unit for finding in findings if finding.verdict != "pass"}
    if "KB" in grown and record.growers:
        parts.append(Text("Lines whose objects took more memory at the end than after the warm-up:"))
        parts += [Text(f"  {kb:10,.1f} KB  {line}") for line, kb in record.growers[:_SHOWN_GROWERS]]
        parts.append(Text("A cache that is still filling looks like a leak: if so, play more episodes."))
    if verdict == "inconclusive":
        parts.append(Text("The interval is wider than the limit: play more episodes."))
    parts.append(Text.assemble("verdict: ", (verdict, STYLES[verdict])))
    return Group(*parts)


def cells(finding: Finding) -> tuple[str, str, str, str, str]:
    """Return a finding's name, growth, interval, limit and smallest visible leak as text."""
    unit = f" {finding.quantity.unit}" if finding.quantity.unit else ""
    slope = finding.slope
    return (
        finding.quantity.name,
        f"{number(slope.value)}{unit}",
        f"{number(slope.low)} to {number(slope.high)}",
        f"{number(finding.quantity.limit)}{unit}",
        f"{number(finding.smallest)}{unit}",
    )


def number(value: float) -> str:
    """Write a number with about three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def write_json(record: Record, path: Path, **more: Any) -> None:
    """Write a record and what was found, all at once or not at all.

    Args:
        record: The record.
        path: The file.
        more: Entries beside these.
    """
    findings = judge(record)
    content = {
        **more,
        "verdict": overall(findings),
        "findings": [
            {
                "quantity": finding.quantity.name,
                "unit": finding.quantity.unit,
                "limit": finding.quantity.limit,
                "growth": finding.slope.value,
                "interval": [finding.slope.low, finding.slope.high],
                "smallest_visible": finding.smallest,
                "verdict": finding.verdict,
            }
            for finding in findings
        ],
        "record": dataclasses.asdict(record),
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_json(path: Path) -> tuple[Record, dict[str, Any]]:
    """Read what `write_json` wrote: the record, and everything."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Record(
        **{**content["record"], "growers": [(line, kb) for line, kb in content["record"]["growers"]]}
    ), content


def slug(env: str, mode: str) -> str:
    """Return a file name for a run."""
    return "".join(char if char.isalnum() else "-" for char in f"{env}-{mode}")
