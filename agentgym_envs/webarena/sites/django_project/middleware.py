"""What a request passes on its way to one of the sites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from machina.apps.forum_permission.middleware import ForumPermissionMiddleware
from oscar.apps.basket.middleware import BasketMiddleware

from agentgym_envs.webarena.sites.tenants import visit

_URLS = {
    site: f"agentgym_envs.webarena.sites.django_project.{name}_urls"
    for site, name in {"shopping": "shopping", "cms": "cms", "reddit": "forum"}.items()
}

Handler = Callable[[HttpRequest], HttpResponse]


def choose_site(get_response: Handler) -> Handler:
    """Gives each host the addresses of its site."""

    def handle(request: HttpRequest) -> HttpResponse:
        request.urlconf = _URLS[visit().site]
        return get_response(request)

    return handle


class ShopOnly(BasketMiddleware):
    """Oscar's basket, where there is a shop."""

    def __call__(self, request: HttpRequest) -> Any:
        """Gives the request a basket."""
        return super().__call__(request) if visit().site != "reddit" else self.get_response(request)

    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        """Shows the basket in pages of the shop."""
        return super().process_template_response(request, response) if visit().site != "reddit" else response


class ForumOnly(ForumPermissionMiddleware):
    """Machina's permissions, where there is a forum."""

    def __call__(self, request: HttpRequest) -> Any:
        """Gives the request what its user may do."""
        return super().__call__(request) if visit().site == "reddit" else self.get_response(request)
