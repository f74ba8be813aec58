"""Addresses that the shop front and the dashboard share."""

from django.apps import apps
from django.urls import URLPattern, URLResolver


def shop_urls(dashboard: bool) -> list[URLPattern | URLResolver]:
    """Oscar's addresses, with those of its dashboard or without."""
    urls = apps.get_app_config("oscar").urls[0]
    return [entry for entry in urls if dashboard or str(entry.pattern) != "dashboard/"]
