"""Uploaded files of the shop and the forum: the pristine ones, and above them what the tenant has changed."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from django.core.files.base import ContentFile, File
from django.core.files.storage import Storage
from django.utils.encoding import filepath_to_uri
from oscar.core.thumbnails import AbstractThumbnailer

from agentgym_envs.webarena.sites.tenants import START, visit

MEDIA_URL = "/media/"


class TenantStorage(Storage):
    """Django's file storage on the current tenant's uploads."""

    def _open(self, name: str, mode: str = "rb") -> File:  # noqa: ARG002
        data = visit().tenant.upload(name)
        if data is None:
            raise FileNotFoundError(name)
        return ContentFile(data, name=name)

    def _save(self, name: str, content: File) -> str:
        visit().tenant.uploads[name] = b"".join(content.chunks())
        return name

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        tenant = visit().tenant
        if name in tenant.pristine.uploads:
            tenant.uploads[name] = None
        else:
            tenant.uploads.pop(name, None)

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return visit().tenant.upload(name) is not None

    def size(self, name: str) -> int:
        """Its size in bytes."""
        return len(visit().tenant.upload(name) or b"")

    def url(self, name: str) -> str:
        """Where the browser finds it."""
        return f"{MEDIA_URL}{filepath_to_uri(name)}"

    def get_modified_time(self, name: str) -> datetime:  # noqa: ARG002
        """Files have no times of their own."""
        return datetime.fromtimestamp(START, UTC)


class WholeImage(AbstractThumbnailer):
    """Thumbnails are the images themselves, scaled by the browser: nothing to compute, nothing to reset."""

    def generate_thumbnail(self, source: Any, **options: Any) -> SimpleNamespace:
        """The image, under the attributes that the templates ask for."""
        width, _, height = options.get("size", "x").partition("x")
        return SimpleNamespace(url=source.url, width=width or height, height=height or width)

    def delete_thumbnails(self, source: Any) -> None:
        """There are none."""
