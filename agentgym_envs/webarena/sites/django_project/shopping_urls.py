"""Addresses of the shop front."""

from agentgym_envs.webarena.sites.django_project.common_urls import shop_urls

urlpatterns = shop_urls(dashboard=False)
