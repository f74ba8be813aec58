"""The projects that the tracker is about: components, files, and what goes wrong with them."""

from __future__ import annotations

from typing import NamedTuple


class Project(NamedTuple):
    """A repository.

    Attributes:
        name: Its name.
        purpose: What the program does.
        modules: Its source files, without `.py`, each with what it is about.
        milestones: Name and days from now until it is due, the past ones completed.
    """

    name: str
    purpose: str
    modules: dict[str, str]
    milestones: tuple[tuple[str, int], ...]


PROJECTS = (
    Project(
        "tidebook",
        "Computes tide tables for small harbours from measured water levels.",
        {
            "harmonics": "the harmonic constants",
            "gauge": "reading of gauge files",
            "tables": "printing of tide tables",
            "calendar": "dates and time zones",
            "plot": "drawing of curves",
            "cli": "the command line",
        },
        (("tidebook 1.0", -420), ("tidebook 1.1", -200), ("tidebook 1.2", 25), ("tidebook 2.0", 160)),
    ),
    Project(
        "seedvault",
        "Keeps the catalogue of a seed library: varieties, lots, loans and germination tests.",
        {
            "catalogue": "the list of varieties",
            "lots": "lots and their weights",
            "loans": "lending and returning",
            "germination": "germination tests",
            "labels": "printing of labels",
            "importer": "reading of spreadsheets",
        },
        (("seedvault 0.8", -310), ("seedvault 0.9", -90), ("seedvault 1.0", 45)),
    ),
    Project(
        "nightline",
        "Plans journeys by night train from open timetable feeds.",
        {
            "feeds": "reading of timetable feeds",
            "router": "the search for connections",
            "fares": "fares and supplements",
            "stations": "names of stations",
            "cache": "storing of results",
            "web": "the web pages",
        },
        (("nightline 3.1", -260), ("nightline 3.2", -60), ("nightline 3.3", 30), ("nightline 4.0", 210)),
    ),
    Project(
        "kilnlog",
        "Records the temperatures of pottery kilns and warns when a firing leaves its curve.",
        {
            "sensor": "reading of thermocouples",
            "curve": "firing curves",
            "alarm": "warnings",
            "store": "the history of firings",
            "report": "reports after a firing",
            "settings": "settings of a kiln",
        },
        (("kilnlog 0.4", -150), ("kilnlog 0.5", 12), ("kilnlog 0.6", 95)),
    ),
)

DEFECTS = (
    "{What} fails on an empty file", "Crash in {what} after a restart", "{What}: wrong result in leap years",
    "{What} is slow with more than {count} entries", "Typo in the message of {what}", "{What} ignores the time zone",
    "Off by one in {what}", "{What} loses its settings after an update", "{What} does not close its files",
)  # fmt: skip
ENHANCEMENTS = (
    "Let {what} write CSV", "{What}: show progress", "Make {what} configurable", "{What}: support several languages",
    "Add a dry run to {what}", "{What}: remember the last choice", "Undo for {what}",
)  # fmt: skip
TASKS = ("Write tests for {what}", "Document {what}", "Tidy up {what}", "Review {what} before the release")

DESCRIPTIONS = (
    "Seen with {count} entries on a fresh installation. It happens every time.",
    "A user wrote about this in the help desk; {count} others have the same.",
    "Noticed while working on #{other}.",
    "It used to work before the last release. I attach the steps:\n\n 1. start the program\n 1. open {what}\n 1. wait",
    "Not urgent, but it has come up {count} times this year.",
)
COMMENTS = (
    "I can reproduce this.", "Is this the same as #{other}?", "I have a patch, tests are missing.",
    "It takes {count} minutes on my machine.", "Let us do this after the release.", "Works for me. Which version?",
    "Agreed, this is a good idea.", "The cause is in `{module}.py`.", "Please add the output of the program.",
)  # fmt: skip
MESSAGES = (
    "Speed up {what}", "Handle empty input in {what}", "Simplify {what}", "Add tests for {what}", "Document {what}",
    "Correct a rounding error in {what}", "Rename a confusing variable in {what}", "Check arguments in {what}",
)  # fmt: skip

FUNCTION = '''
def {name}(value, limit={limit}):
    """Part of {what}."""
    if value > limit:
        raise ValueError("more than {limit}")
    return value * {factor}
'''

UNWRITTEN = ("Glossary", "ReviewGuide", "SummerMeeting", "SecurityContact", "NewcomerTasks", "BenchmarkPlan")
"""Pages that the wiki's start page names and that nobody has written yet."""
