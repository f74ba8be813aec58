"""From a record to a verdict: what grew, by how much, and what the run could not have seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from leak_tests.probes import QUANTITIES, Quantity
from leak_tests.runner import Record
from leak_tests.slope import Slope, theil_sen

Verdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class Finding:
    """How one quantity grew.

    Attributes:
        quantity: What was measured.
        slope: Growth per 1,000 episodes with its 95 % interval.
        smallest: The smallest steady growth per 1,000 episodes that the run could have told from none.
        verdict: Whether that is within the limit.
    """

    quantity: Quantity
    slope: Slope
    smallest: float
    verdict: Verdict


def judge(record: Record) -> list[Finding]:
    """Decide on each quantity of a record that can be decided on, by its samples after the warm-up."""
    start = record.warm_up
    thousands = [played / 1_000 for played in record.played[start:]]
    findings = []
    for name, values in record.samples.items():
        quantity = QUANTITIES[name]
        slope = theil_sen(thousands, values[start:])
        one_unit = 1 / (thousands[-1] - thousands[0])  # less than one KB or one thing in all leaves no trace
        smallest = max(slope.high - slope.value, slope.value - slope.low, one_unit)
        findings.append(Finding(quantity, slope, smallest, decide(slope, quantity.limit)))
    return findings


def decide(slope: Slope, limit: float) -> Verdict:
    """Decide whether a growth is within its limit.

    Args:
        slope: The growth with its confidence interval.
        limit: The largest growth that is accepted.

    Returns:
        "fail" if the growth is above the limit, or if a narrow interval reaches beyond it; "inconclusive" if
        the interval is wider than the limit, so that the run cannot tell; "pass" if all of a narrow interval
        is within the limit.
    """
    if slope.low > limit:
        return "fail"
    if slope.high - slope.low > limit:
        return "inconclusive"
    return "pass" if slope.high <= limit else "fail"


def overall(findings: list[Finding]) -> Verdict:
    """Return the verdict on a run: its worst one."""
    verdicts = {finding.verdict for finding in findings}
    return "fail" if "fail" in verdicts else "inconclusive" if "inconclusive" in verdicts else "pass"
