"""Soak and leak tests: does anything grow while an environment plays thousands of episodes?

`python -m leak_tests --help` is the command, `leak_tests/registry.py` the list of environments, and
`docs/leak-tests.md` says what is measured and how it is decided.
"""

from leak_tests.runner import Record, SubjectError, measure
from leak_tests.verdict import Finding, Verdict, judge, overall

__all__ = ["Finding", "Record", "SubjectError", "Verdict", "judge", "measure", "overall"]
