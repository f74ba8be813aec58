"""The embedded web sites: a shop and its dashboard, a forum, and a project tracker, in one server process."""

from agentgym_envs.webarena.sites.interface import Cookie, SiteServer, Tenant, start_sites

__all__ = ["Cookie", "SiteServer", "Tenant", "start_sites"]
