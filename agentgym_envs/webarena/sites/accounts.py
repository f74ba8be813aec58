"""The accounts that tasks log in with. Every person in the sites has one; these are the ones that do more."""

from __future__ import annotations

import hashlib

MERCHANT = "merchant"
"""The shop's superuser, who sees all of the dashboard."""

MODERATOR = "warden"
"""The forum's superuser, who moderates."""

MAINTAINER = "maintainer"
"""The tracker's administrator."""

PRIVILEGED = {"cms": MERCHANT, "reddit": MODERATOR, "gitlab": MAINTAINER}


def password(account: str) -> str:
    """The password of an account; the sites hold nothing worth protecting."""
    return f"{account}-2025"


def session_key(site: str, account: str) -> str:
    """The cookie of the session that the pristine state holds for an account."""
    return hashlib.sha256(f"{site} session of {account}".encode()).hexdigest()[:32]
