"""Small real web sites, for tests of the browser half of WebArena: an HTTP server with tenants, as the embedded
sites have, whose pages do what is awkward for a browser."""

import html
import json
import os
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

from agentgym_envs.core import Fault
from agentgym_envs.webarena.sites.interface import SITES, Cookie

NOW = 1_700_000_000.0

HOME = """<title>Home of {site}</title><h1>Welcome to {site}</h1>
<nav><a href="/form">Form</a> <a href="/odd">Odd things</a> <a href="/notes">Notes</a> <a href="/long">Long</a>
<a href="http://example.com/">Outside</a> <a href="http://reddit/notes">Forum</a> <a href="/whoami">Who</a></nav>
<p>Some <em>stressed</em> text on {host}.</p>
<table><tr><th>Name<th>Price<tr><td>Cup<td>$3.20<tr><td><a href="/notes?cup">Big cup</a><td>$4</table>
<p id=date></p><script>document.getElementById("date").textContent = new Date().toISOString()</script>"""

FORM = """<title>Form</title><form method=post action=/notes>
<label>Text <input name=text value=old required></label>
<select name=size aria-label=Size><option>Small<option selected>Large</select>
<label><input type=checkbox name=agree> Agree</label> <input type=date name=day aria-label=Day>
<textarea name=more aria-label=More></textarea><button>Send</button></form>
<form action=/notes><input name=q aria-label=Search></form><button disabled>Never</button>"""

ODD = """<title>Odd</title>
<button onclick="alert('Careful!')">Alert</button>
<button onclick="document.title = confirm('Sure?') ? 'agreed' : 'declined'">Confirm</button>
<button onclick="document.title = String(prompt('Name?'))">Prompt</button>
<a href=/notes target=_blank>New window</a>
<button onclick="for (let i = 0; i < 12; i++) window.open('/notes?' + i)">Many windows</button>
<a href=/file>Download</a> <input type=file aria-label=Upload> <a href=/away>Away</a> <a href=/hang>Hang</a>
<button onclick="setTimeout(() => fetch('/slow').then(r => r.text()).then(t => document.title = t), 300)">Later</button>
<button onclick="location = 'http://127.0.0.1:{port}/'">Other port</button>
<button onclick="fetch('http://shopping.t0.localhost:{port}/secret').then(() => 'reached', () => 'refused')
  .then((t) => document.title = t)">Neighbour</button>
<div style="position:relative">
<button onclick="document.title = 'covered'">Covered</button>
<div style="position:absolute;inset:0;background:white"></div></div>
<button onclick="for (;;) {{}}">Endless</button>"""

# Each part comes late and asks for the next: scripts, a style sheet, a picture and a frame.
CHAIN = """<title>Chain</title><p id=end>Not yet</p><script>
const add = (tag, given, next) => {
  const node = Object.assign(document.createElement(tag), given);
  node.onload = node.onerror = next;
  document.head.append(node);
};
onload = () => add("script", { src: "/slow?1" }, () => add("link", { rel: "stylesheet", href: "/slow?2" }, () =>
  add("img", { src: "/slow?3" }, () => setTimeout(() => add("script", { src: "/slow?4" }, () =>
    requestIdleCallback(() => { end.textContent = "All there"; })), 100))));
</script>"""

FRAMED = """<title>Framed</title><h1>Outside</h1><div style="height:100px"></div>
<iframe src=/form title=Inside width=600 height=300></iframe>
<iframe srcdoc="<title>Text</title><body contenteditable=true><p>Old text</p>" title=Editor></iframe>
<iframe srcdoc="<p>Middle
<iframe srcdoc='<button onclick=&quot;top.document.title=1&quot;>Deep</button>'></iframe>"></iframe>
<p>After"""


class WebSites:
    """The sites of all tenants, served by a thread."""

    def __init__(self) -> None:
        self.tenants: dict[str, WebTenant] = {}
        self.requests: list[str] = []
        self.hanging = threading.Event()
        sites = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                sites.answer(self, {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                sites.answer(self, dict(parse_qsl(body, keep_blank_values=True)))

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """A browser that was killed while it waited."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.pid = os.getpid()
        self.alive = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def open_tenant(self) -> "WebTenant":
        name = f"t{len(self.tenants) + 1}"
        self.tenants[name] = WebTenant(self, name)
        return self.tenants[name]

    def close(self) -> None:
        if self.alive:
            self.alive = False
            self.hanging.set()
            self._server.shutdown()
            self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, form: dict[str, str]) -> None:
        """Serve one request of one tenant."""
        if not self.alive:
            request.close_connection = True
            return None
        host = request.headers["host"]
        self.requests.append(f"{request.command} {host}{request.path}")
        site, _, rest = host.partition(".")
        tenant = self.tenants.get(rest.partition(".")[0])
        if tenant is None or site not in SITES:
            return _reply(request, 404, "no such site")
        tenant.time += 1
        parts = urlsplit(request.path)
        if parts.path == "/":
            return _reply(request, 200, HOME.format(site=site, host=host))
        if parts.path == "/form":
            return _reply(request, 200, FORM)
        if parts.path == "/odd":
            return _reply(request, 200, ODD.format(port=self.port))
        if parts.path == "/chain":
            return _reply(request, 200, CHAIN)
        if parts.path == "/framed":
            return _reply(request, 200, FRAMED)
        if parts.path == "/whoami":
            return _reply(request, 200, f"<p>You are {request.headers.get('cookie', 'nobody')}")
        if parts.path == "/long":
            return _reply(request, 200, "<h1>Top</h1>" + "".join(f"<p>Line {n}" for n in range(400)))
        if parts.path == "/away":
            return _reply(request, 302, "", location="http://example.com/x")
        if parts.path == "/file":
            return _reply(request, 200, "a,b", kind="text/csv", disposition='attachment; filename="a.csv"')
        if parts.path == "/slow":
            time.sleep(0.2)
            return _reply(request, 200, "came later")
        if parts.path == "/hang":
            self.hanging.wait(60)
            return _reply(request, 200, "at last")
        if parts.path == "/notes":
            return self._notes(request, tenant, site, form)
        return _reply(request, 404, "<title>Not found</title>There is nothing here.")

    def _notes(self, request: BaseHTTPRequestHandler, tenant: "WebTenant", site: str, form: dict[str, str]) -> None:
        notes = tenant.notes[site]
        if form and not form["text"].strip():
            return _reply(request, 200, f"<title>Error</title><p>Empty.</p>{FORM}")
        if form:
            notes.append(form)
            return _reply(request, 302, "", location="/notes")
        found = [note for note in notes if parse_qs(urlsplit(request.path).query).get("q", [""])[0] in note["text"]]
        items = "".join(f"<li>{html.escape(json.dumps(note))}" for note in found)
        return _reply(
            request, 200, f"<title>Notes</title><h1>{len(found)} notes</h1><ul>{items}</ul><a href=/>Home</a>"
        )


class WebTenant:
    """One environment's copy."""

    def __init__(self, server: WebSites, name: str) -> None:
        self.server = server
        self.origins = {site: f"http://{site}.{name}.localhost:{server.port}" for site in SITES}
        self.reset({})

    def reset(self, logins: Mapping[str, str]) -> Mapping[str, list[Cookie]]:
        self._check()
        self.notes: dict[str, list[dict[str, str]]] = {site: [] for site in SITES}
        self.time = NOW
        return {site: [Cookie("user", account, self.origins[site])] for site, account in logins.items()}

    def snapshot(self) -> bytes:
        self._check()
        return json.dumps([self.notes, self.time]).encode()

    def restore(self, data: bytes) -> None:
        self.notes, self.time = json.loads(data)

    def state_hash(self) -> str:
        return self.snapshot().decode()

    def clock(self) -> float:
        return self.time

    def query(self, site: str, name: str, **arguments: Any) -> Any:
        self._check()
        return {"notes": self.notes[site], "count": len(self.notes[site])}[name]

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if not self.server.alive:
            raise Fault("site", "the site server died")


def _reply(
    request: BaseHTTPRequestHandler,
    status: int,
    body: str,
    location: str = "",
    kind: str = "text/html; charset=utf-8",
    disposition: str = "",
) -> None:
    data = body.encode()
    request.send_response(status)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(data)))
    for name, value in (("Location", location), ("Content-Disposition", disposition)):
        if value:
            request.send_header(name, value)
    request.end_headers()
    request.wfile.write(data)
