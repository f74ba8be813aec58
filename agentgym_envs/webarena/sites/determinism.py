"""Gives Django, its applications and Trac the current tenant's time and random values.

Both are asked for through a handful of functions. They are replaced before the modules that import them by name
are loaded, so this must run before `django.setup()` and before any module of Trac's that is named here is used.
"""

from __future__ import annotations

import hmac
import sys
import types
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from agentgym_envs.webarena.sites.tenants import now, random_bytes, visit


def datetime_now(tz: tzinfo | None = None) -> datetime:
    """`datetime.now`, in the tenant's time."""
    return datetime.fromtimestamp(now(), tz)


class _Secrets:
    """The functions of the standard module `secrets` that Django uses."""

    compare_digest = staticmethod(hmac.compare_digest)

    @staticmethod
    def choice(sequence: Sequence[Any]) -> Any:
        return sequence[int(visit().random.random() * len(sequence))]


class _Datetime(datetime):
    """`datetime` with the tenant's time as now."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        return datetime_now(tz)


def _uuid4() -> uuid.UUID:
    return uuid.UUID(bytes=random_bytes(16), version=4)


def patch_django() -> None:
    """Replace what Django, oscar and machina ask; before `django.setup()`."""
    from django.contrib.auth.tokens import PasswordResetTokenGenerator
    from django.core import signing
    from django.template import defaulttags
    from django.utils import crypto, timesince
    from django.utils import timezone as django_timezone

    original = django_timezone.now
    _replace_everywhere("now", original, lambda: datetime_now(UTC), "django")
    crypto.secrets = _Secrets
    signing.time = types.SimpleNamespace(time=now)
    defaulttags.datetime = _Datetime
    timesince.datetime = types.SimpleNamespace(datetime=_Datetime)
    PasswordResetTokenGenerator._now = lambda _: datetime_now()
    uuid.uuid4 = _uuid4


def patch_oscar() -> None:
    """Replace what names the folders of uploaded images; after `django.setup()`."""
    from oscar.utils import models

    models.datetime = types.SimpleNamespace(datetime=_Datetime)


def patch_trac() -> None:
    """Replace what Trac asks; before its components are imported."""
    from trac import util
    from trac.util import datefmt

    _replace_everywhere("datetime_now", datefmt.datetime_now, datetime_now, "trac")
    _replace_everywhere("time_now", datefmt.time_now, now, "trac")
    util.urandom = random_bytes


def _replace_everywhere(name: str, old: Any, new: Any, package: str) -> None:
    """Replace a function in its own module and in those that have already imported it by name."""
    for module in [module for key, module in sys.modules.items() if key.split(".")[0] == package]:
        if getattr(module, name, None) == old:
            setattr(module, name, new)
