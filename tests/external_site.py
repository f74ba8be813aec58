"""A stand-in for the containers of WebArena: a site in a process of its own, which a control server restarts.

python external_site.py PORT   # serves the site: notes, which live as long as the process, behind a login
"""

import html
import http.cookies
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

ACCOUNT = "byteblaze", "hello1234"
LOGIN = "/users/sign_in"


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])


class Site(BaseHTTPRequestHandler):
    """Notes, for those who are logged in."""

    protocol_version = "HTTP/1.1"
    notes: list[str] = []  # noqa: RUF012
    tokens: set[str] = set()  # noqa: RUF012
    sessions: set[str] = set()  # noqa: RUF012
    refusals = int(os.environ.get("REFUSALS", "0"))

    def do_GET(self) -> None:
        if not self.path.startswith(LOGIN) and not self.known():
            return self.redirect(LOGIN)
        if self.path.startswith(LOGIN):
            token = secrets.token_hex(4)
            self.tokens.add(token)
            return self.page(
                f"<form method=post action={LOGIN}><input name=token type=hidden value={token}>"
                "<input name=user aria-label=User><input name=password type=password><button>Sign in</button></form>"
            )
        notes = "".join(f"<li>{html.escape(note)}" for note in self.notes)
        return self.page(
            f"<title>Notes</title><h1>{len(self.notes)} notes</h1><ul>{notes}</ul><a href=/dashboard/todos>To do</a>"
            "<form method=post action=/notes><input name=text aria-label=Text><button>Add</button></form>"
            "<p id=date></p><script>date.textContent = new Date().getFullYear() > 2025</script>"
        )

    def do_POST(self) -> None:
        form = dict(parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
        if self.path == LOGIN:
            good = (form.get("user"), form.get("password")) == ACCOUNT and form.get("token") in self.tokens
            if good and Site.refusals > 0:  # flaky
                Site.refusals -= 1
                good = False
            if not good:
                return self.redirect(LOGIN)
            key = secrets.token_hex(8)
            self.sessions.add(key)
            return self.redirect("/", f"session={key}; Path=/; HttpOnly")
        if self.known():
            self.notes.append(form["text"])
        return self.redirect("/")

    def known(self) -> bool:
        found = http.cookies.SimpleCookie(self.headers.get("cookie", "")).get("session")
        return found is not None and found.value in self.sessions

    def page(self, body: str) -> None:
        data = f"<!doctype html><meta charset=utf-8>{body}".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def redirect(self, where: str, cookie: str = "") -> None:
        self.send_response(302)
        self.send_header("Location", where)
        self.send_header("Content-Length", "0")
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Container:
    """The site and its control server, whose POST /reset starts the site anew - or fails as `mood` says.

    Moods: `good`; `late` answers at once, and the site is away for a while; `error` answers with an error; `hang` does
    not answer; `dead` does not start the site again; `flaky` refuses the first login afterwards.
    """

    def __init__(self) -> None:
        self.port, self.mood, self.resets = free_port(), "good", 0
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.closed = threading.Event()
        container = self

        class Control(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                if urlsplit(self.path).path != "/reset":
                    return self.send_error(404)
                container.resets += 1
                if container.mood == "error":
                    return self.send_error(500, "no space left on device")
                if container.mood == "hang":
                    container.closed.wait(60)
                container.stop()
                if container.mood == "late":
                    threading.Timer(1.0, container.start).start()
                elif container.mood != "dead":
                    container.start(refusals=1 if container.mood == "flaky" else 0)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return None

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.control = ThreadingHTTPServer(("127.0.0.1", 0), Control)
        self.control.daemon_threads = True
        self.reset_url = f"http://127.0.0.1:{self.control.server_port}/reset"
        threading.Thread(target=self.control.serve_forever, args=(0.05,), daemon=True).start()
        self.start()

    def start(self, refusals: int = 0) -> None:
        self.stop()
        if self.closed.is_set():
            return
        command = [sys.executable, __file__, str(self.port)]
        self.process = subprocess.Popen(command, env={**os.environ, "REFUSALS": str(refusals)})

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.closed.set()
        time.sleep(0.01)
        self.control.shutdown()
        self.control.server_close()
        self.stop()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Site).serve_forever()
