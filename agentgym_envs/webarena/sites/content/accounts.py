"""Makes the accounts of the Django sites, and a session for each that a reset can hand out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db import connection

from agentgym_envs.webarena.sites.accounts import password, session_key
from agentgym_envs.webarena.sites.content.people import Person
from agentgym_envs.webarena.sites.tenants import visit

SESSION_DAYS = 3650


def make_users(
    persons: Sequence[Person], privileged: Mapping[Person, str], joined: Callable[[int], datetime]
) -> list[User]:
    """Make an account for each person.

    Args:
        persons: Whom to make accounts for.
        privileged: Those who are superusers, and the names of their accounts.
        joined: The date on which person number i joined.

    Returns:
        The accounts in the order of `persons`.
    """
    users = []
    for number, person in enumerate(persons):
        account = privileged.get(person, person.account)
        user = User(
            username=account,
            email=person.email if person not in privileged else f"{account}@larkfield.example",
            first_name=person.first,
            last_name=person.last,
            password=make_password(password(account), salt="fixedsalt"),
            is_staff=person in privileged,
            is_superuser=person in privileged,
            date_joined=joined(number),
            last_login=joined(number),
        )
        users.append(user)
    User.objects.bulk_create(users)
    return list(User.objects.order_by("pk"))


def store_sessions(site: str, users: Iterable[User]) -> None:
    """Store a session for each account."""
    store = SessionStore()
    Session.objects.bulk_create(
        Session(
            session_key=session_key(site, user.username),
            session_data=store.encode(
                {
                    SESSION_KEY: str(user.pk),
                    BACKEND_SESSION_KEY: "django.contrib.auth.backends.ModelBackend",
                    HASH_SESSION_KEY: user.get_session_auth_hash(),
                }
            ),
            expire_date=datetime.fromtimestamp(visit().tenant.now).astimezone() + timedelta(days=SESSION_DAYS),
        )
        for user in users
    )


def set_dates(table: str, columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
    """Set dates that the models set to now by themselves.

    Args:
        table: Name of the table.
        columns: Names of the columns.
        rows: The values of the columns, then the row's id.
    """
    assignments = ", ".join(f"{column} = %s" for column in columns)
    with connection.cursor() as cursor:
        cursor.executemany(f"UPDATE {table} SET {assignments} WHERE id = %s", list(rows))
