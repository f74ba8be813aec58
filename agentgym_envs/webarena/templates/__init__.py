"""The templates of the embedded tasks, a module for each domain."""

from __future__ import annotations

from agentgym_envs.webarena.templates import across, cms, gitlab, reddit, shopping
from agentgym_envs.webarena.templates.common import Template

TEMPLATES: tuple[Template, ...] = (
    *shopping.TEMPLATES,
    *cms.TEMPLATES,
    *reddit.TEMPLATES,
    *gitlab.TEMPLATES,
    *across.TEMPLATES,
)
