"""Logging in to Trac with a form; Trac itself leaves that to the web server."""

from __future__ import annotations

from typing import Any

from trac.core import implements
from trac.web.auth import LoginModule
from trac.web.chrome import ITemplateProvider, add_warning

from agentgym_envs.webarena.sites.accounts import password
from agentgym_envs.webarena.sites.trac_project.resources import resource_filename


class FormLogin(LoginModule):
    """Trac's login, which trusts the web server, behind a form that checks the password."""

    implements(ITemplateProvider)

    def process_request(self, req: Any) -> Any:
        """Show the form, or log in."""
        if not req.path_info.startswith("/login"):
            return super().process_request(req)
        if req.is_authenticated:
            self._redirect_back(req)
        name = req.args.get("user", "")
        if req.method == "POST":
            known = {user for user, _, _ in self.env.get_known_users()}
            if name in known and req.args.get("password") == password(name):
                req.environ["REMOTE_USER"] = name
                return super().process_request(req)
            add_warning(req, "This user name and password do not match.")
        return "form_login.html", {"user": name, "referer": self._referer(req)}

    def get_htdocs_dirs(self) -> list[tuple[str, str]]:
        """No files of its own."""
        return []

    def get_templates_dirs(self) -> list[str]:
        """Where the form is."""
        return [resource_filename("agentgym_envs.webarena.sites.trac_project", "templates")]
