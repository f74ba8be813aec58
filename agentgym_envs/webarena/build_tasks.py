"""Makes `data/tasks.json` from the templates and the content of the sites.

python -m agentgym_envs.webarena.build_tasks          # writes the file
python -m agentgym_envs.webarena.build_tasks --check  # fails if the file is not what would be written
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any

from agentgym_envs.webarena.sites.interface import Tenant, start_sites
from agentgym_envs.webarena.templates import TEMPLATES
from agentgym_envs.webarena.templates.common import PER_TEMPLATE, Data, Template, spread

Fields = dict[str, Any]
FILE = Path(__file__).with_name("data") / "tasks.json"
_TEST_EVERY = 4


def build(sites: Tenant) -> list[Fields]:
    """Return all tasks' fields, template by template.

    Raises:
        ValueError: If two tasks ask for the same.
    """
    data = Data(sites)
    tasks = [fields for template in TEMPLATES for fields in instances(template, data)]
    asked: set[tuple[str, str]] = set()
    for fields in tasks:
        key = (fields["intent"], json.dumps(fields["logins"]))
        if key in asked:
            raise ValueError(f"{fields['template']}: two tasks ask for the same: {fields['intent']}")
        asked.add(key)
    return tasks


def instances(template: Template, data: Data) -> list[Fields]:
    """Return a template's tasks: of rows at even distances, as many as there may be.

    Where they begin, and which of them are for testing, differs from template to template.
    """
    first = zlib.crc32(template.name.encode())
    tasks = [template.task(row) for row in spread(list(template.rows(data)), PER_TEMPLATE, first)]
    for number, fields in enumerate(tasks):
        fields["split"] = "train" if (first + number) % _TEST_EVERY else "test"
    return tasks


def text_of(tasks: list[Fields]) -> str:
    """Return the file's text, a line for each task."""
    lines = ",\n".join(json.dumps(fields, ensure_ascii=False) for fields in tasks)
    return f"[\n{lines}\n]\n"


def main() -> None:
    """Write the file, or check it."""
    server = start_sites()
    try:
        sites = server.open_tenant()
        sites.reset({})
        text = text_of(build(sites))
    finally:
        server.close()
    if "--check" in sys.argv[1:]:
        if FILE.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{FILE} is not what the sites give; run python -m agentgym_envs.webarena.build_tasks")
    else:
        FILE.parent.mkdir(exist_ok=True)
        new = FILE.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        os.replace(new, FILE)


if __name__ == "__main__":
    main()
