"""Addresses of the dashboard; the shop front is there too, because the dashboard links to its pages."""

from django.urls import path, reverse_lazy
from django.views.generic import RedirectView

from agentgym_envs.webarena.sites.django_project.common_urls import shop_urls

urlpatterns = [path("", RedirectView.as_view(url=reverse_lazy("dashboard:index"))), *shop_urls(dashboard=True)]
