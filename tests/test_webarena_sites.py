"""The embedded sites: a real server process, real HTTP, real signals."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentgym_envs.cache import MANIFEST
from agentgym_envs.core import Fault
from agentgym_envs.webarena.sites import Cookie, SiteServer, Tenant, start_sites
from agentgym_envs.webarena.sites.accounts import MAINTAINER, MERCHANT, MODERATOR, password
from agentgym_envs.webarena.sites.pages import apply_difference, difference
from agentgym_envs.webarena.sites.pristine import environment, pristine_folder
from agentgym_envs.webarena.sites.wsgi import Sites

PRIVILEGED = {"cms": MERCHANT, "reddit": MODERATOR, "gitlab": MAINTAINER}
PAGES = {
    "shopping": ["/catalogue/", "/catalogue/category/kitchen_1/", "/search/?q=kettle", "/basket/", "/accounts/login/"],
    "cms": ["/", "/dashboard/orders/", "/dashboard/catalogue/", "/dashboard/reviews/", "/dashboard/reports/"],
    "reddit": ["/", "/forum/day-hikes-9/", "/search/?q=blisters", "/member/profile/3/", "/moderation/queue/"],
    "gitlab": [
        "/wiki",
        "/roadmap",
        "/browser",
        "/log/tidebook",
        "/ticket/5",
        "/query",
        "/timeline",
        "/admin",
        "/login",
    ],
}


class Page(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    text: str
    path: str


class Form(NamedTuple):
    """A form of a page."""

    action: str
    method: str
    fields: dict[str, str]


class Visitor:
    """What a browser does, as far as these tests need it: cookies, redirects, forms."""

    def __init__(self, origin: str, cookies: list[Cookie] | None = None) -> None:
        self.host = origin.removeprefix("http://")
        self.port = int(origin.rpartition(":")[2])
        self.cookies = {cookie.name: cookie.value for cookie in cookies or []}
        self.path = "/"

    def request(self, method: str, path: str, body: bytes = b"", kind: str = "") -> Page:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Host": self.host, "Referer": f"http://{self.host}{self.path}"}
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if kind:
            headers["Content-Type"] = kind
        with contextlib.closing(connection):
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            data = response.read()
        for header in response.headers.get_all("Set-Cookie") or []:
            name, _, value = header.partition(";")[0].partition("=")
            self.cookies[name] = value
        location = response.headers.get("Location")
        if location is not None and response.status in (301, 302, 303):
            target = urllib.parse.urlsplit(urllib.parse.urljoin(f"http://{self.host}{path}", location))
            assert target.netloc == self.host, location
            return self.request("GET", urllib.parse.urlunsplit(("", "", target.path, target.query, "")))
        self.path = path
        return Page(response.status, dict(response.headers.items()), data.decode(errors="replace"), path)

    def get(self, path: str) -> Page:
        return self.request("GET", path)

    def submit(self, page: Page, action: str, /, **fields: str) -> Page:
        """Submits the first form of a page whose action or one of whose fields has this text in it."""
        form = next(form for form in forms(page) if action in form.action or action in form.fields)
        return self.send(form, **fields)

    def send(self, form: Form, /, **fields: str) -> Page:
        values = urllib.parse.urlencode({**form.fields, **fields})
        if form.method == "get":
            return self.get(f"{form.action.partition('?')[0]}?{values}")
        return self.request("POST", form.action, values.encode(), "application/x-www-form-urlencoded")

    def upload(self, form: Form, name: str, data: bytes) -> Page:
        """Sends a form with a file in it."""
        line = "----------line"
        parts = [
            f'--{line}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in form.fields.items()
        ]
        head = f'--{line}\r\nContent-Disposition: form-data; name="{name}"; filename="a.png"\r\nContent-Type: image/png'
        body = "".join(parts).encode() + f"{head}\r\n\r\n".encode() + data + f"\r\n--{line}--\r\n".encode()
        return self.request("POST", form.action, body, f"multipart/form-data; boundary={line}")


class _Reader(HTMLParser):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.forms: list[Form] = []
        self.links: list[str] = []
        self.loaded: list[str] = []  # what a browser fetches without being asked
        self._area: str | None = None
        self._select: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            action = urllib.parse.urljoin(self.path, given.get("action", "") or self.path)
            self.forms.append(Form(action, given.get("method", "get").lower(), {}))
        elif tag == "a":
            self.links.append(given.get("href", ""))
        elif tag in ("script", "img", "iframe", "source", "embed"):
            self.loaded.append(given.get("src", ""))
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "shortcut icon"):
            self.loaded.append(given.get("href", ""))
        if tag == "option" and self._select is not None and "selected" in given:
            self.forms[-1].fields[self._select] = given.get("value", "")
        if not self.forms or not given.get("name"):
            return
        fields = self.forms[-1].fields
        if tag == "input" and given.get("type") not in ("submit", "checkbox", "radio", "file", "image", "button"):
            fields[given["name"]] = given.get("value", "")
        elif (tag == "input" and given.get("type") in ("checkbox", "radio") and "checked" in given) or (
            tag == "button" and given.get("type") == "submit"
        ):
            fields[given["name"]] = given.get("value", "on")
        elif tag == "textarea":
            self._area = given["name"]
            fields[self._area] = ""
        elif tag == "select":
            self._select = given["name"]

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self.forms[-1].fields[self._area] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = None
        elif tag == "select":
            self._select = None


def read(page: Page) -> _Reader:
    reader = _Reader(page.path)
    reader.feed(page.text)
    return reader


def forms(page: Page) -> list[Form]:
    return read(page).forms


@pytest.fixture(scope="module")
def server() -> Iterator[SiteServer]:
    server = start_sites()
    yield server
    server.close()


@pytest.fixture
def tenant(server: SiteServer) -> Iterator[Tenant]:
    tenant = server.open_tenant()
    yield tenant
    tenant.close()


@pytest.fixture
def other(server: SiteServer) -> Iterator[Tenant]:
    tenant = server.open_tenant()
    yield tenant
    tenant.close()


def customer(tenant: Tenant) -> str:
    return str(next(row["account"] for row in tenant.query("shopping", "customers") if not row["is_staff"]))


def logins(tenant: Tenant) -> dict[str, str]:
    return {"shopping": customer(tenant), **PRIVILEGED}


def visitors(tenant: Tenant) -> dict[str, Visitor]:
    """Resets the tenant and returns a logged-in visitor for each site."""
    return {site: Visitor(tenant.origins[site], c) for site, c in tenant.reset(logins(tenant)).items()}


def buy(visitor: Visitor, product: int) -> Page:
    """Buys a product, from its page to the thank-you page."""
    page = visitor.get(f"/catalogue/any_{product}/")
    visitor.submit(page, "/basket/add/")
    page = visitor.get("/checkout/shipping-address/")
    visitor.submit(page, "address_id")
    visitor.get("/checkout/shipping-method/")
    visitor.get("/checkout/payment-method/")
    visitor.get("/checkout/payment-details/")
    page = visitor.get("/checkout/preview/")
    return visitor.submit(page, "action", action="place_order")


def reply(visitor: Visitor, topic: dict[str, Any], text: str) -> Page:
    """Replies to a topic of the forum."""
    forum = next(p for p in read(visitor.get("/")).links if "/day-hikes-" in p)
    page = visitor.get(f"{forum}topic/{topic['slug']}-{topic['id']}/post/create/")
    return visitor.submit(page, "content", content=text)


def act(visits: dict[str, Visitor], tenant: Tenant) -> None:
    """Changes something on every site."""
    product = next(row for row in tenant.query("shopping", "products") if row["stock"] > 3)
    assert "confirmation" in buy(visits["shopping"], product["id"]).text.lower()
    topic = next(row for row in tenant.query("reddit", "topics", forum="Day hikes") if row["status"] == "open")
    assert reply(visits["reddit"], topic, "The ridge is icy.").status == 200
    page = visits["gitlab"].get("/newticket")
    visits["gitlab"].submit(page, "field_summary", field_summary="Clock stands still", submit="Create ticket")


# ---- pages -----------------------------------------------------------------------------------------------------------


def test_pages_answer_and_load_nothing_from_elsewhere(tenant: Tenant) -> None:
    for site, visitor in visitors(tenant).items():
        for path in PAGES[site]:
            page = visitor.get(path)
            assert page.status == 200, (site, path)
            assert "default-src 'self'" in page.headers["Content-Security-Policy"]
            for loaded in read(page).loaded:
                assert not loaded.startswith(("http:", "https:", "//")), (site, path, loaded)
                if loaded and not loaded.startswith("data:"):
                    assert visitor.get(urllib.parse.urljoin(page.path, loaded)).status == 200, loaded


def test_content_is_rich(tenant: Tenant) -> None:
    assert len(tenant.query("shopping", "products")) >= 300
    assert len(tenant.query("cms", "orders")) >= 300
    assert len(tenant.query("shopping", "reviews")) >= 500
    assert len(tenant.query("reddit", "forums")) >= 24
    assert len(tenant.query("reddit", "posts")) >= 1000
    assert len(tenant.query("reddit", "members")) >= 40
    assert len(tenant.query("gitlab", "tickets")) >= 200
    assert len({row["repository"] for row in tenant.query("gitlab", "commits")}) >= 4
    assert len(tenant.query("gitlab", "milestones")) >= 10
    assert len(tenant.query("gitlab", "wiki")) >= 10


def test_shop_and_forum_find_things(tenant: Tenant) -> None:
    shop = Visitor(tenant.origins["shopping"])
    products = tenant.query("shopping", "products")
    assert f"<strong>{len(products)}</strong> results" in shop.get("/catalogue/").text
    pans = [row for row in products if "Cookware" in row["categories"]]
    link = next(link for link in read(shop.get("/catalogue/")).links if "cookware" in link)
    page = shop.get(f"{link}?sort_by=price-asc")
    shown = re.findall(r"<p class=\"price_color\">\$([0-9.]+)", page.text)
    assert shown == sorted((row["price"] for row in pans), key=float)
    dear = [row for row in pans if float(row["price"]) >= 60]
    page = shop.get(f"{link}?selected_facets=price%3A%5B60+TO+*%5D")
    assert f"<strong>{len(dear)}</strong> result" in page.text
    kettles = [row for row in products if "kettle" in (row["title"] + row["description"]).lower()]
    assert f"<strong>{len(kettles)}</strong> result" in shop.get("/search/?q=kettle").text
    posts = tenant.query("reddit", "posts")
    found = [row for row in posts if "snails" in (row["subject"] + row["content"]).lower()]
    forum = Visitor(tenant.origins["reddit"])
    assert f"<b>{len(found)}</b> results" in forum.get("/search/?q=Snails").text


def test_sessions_are_logged_in_and_forms_log_in(tenant: Tenant) -> None:
    account = customer(tenant)
    for site, visitor in visitors(tenant).items():
        home = {"shopping": "/accounts/profile/", "cms": "/dashboard/", "reddit": "/", "gitlab": "/wiki"}[site]
        page = visitor.get(home)
        assert page.path == home
        assert re.search("log ?out", page.text, re.IGNORECASE), site
    mail = tenant.query("shopping", "customers", account=account)[0]["email"]
    shop = Visitor(tenant.origins["shopping"])
    page = shop.submit(shop.get("/accounts/login/"), "login-username", **{
        "login-username": mail, "login-password": password(account), "login_submit": "Log In",
    })  # fmt: skip
    assert "Logout" in page.text
    forum = Visitor(tenant.origins["reddit"])
    member = tenant.query("reddit", "members")[0]["account"]
    wrong = forum.submit(forum.get("/accounts/login/"), "username", username=member, password="x")
    assert "correct username and password" in wrong.text
    assert "Log out" in forum.submit(wrong, "username", username=member, password=password(member)).text
    tracker = Visitor(tenant.origins["gitlab"])
    developer = tenant.query("gitlab", "users")[0]["account"]
    wrong = tracker.submit(tracker.get("/login"), "user", user=developer, password="x")
    assert "do not match" in wrong.text
    assert "logged in as" in tracker.submit(wrong, "user", user=developer, password=password(developer)).text


def test_ordinary_accounts_do_not_reach_what_is_privileged(tenant: Tenant) -> None:
    cookies = tenant.reset({"shopping": customer(tenant)})
    assert Visitor(tenant.origins["shopping"], cookies["shopping"]).get("/dashboard/").status == 404
    cms = Visitor(tenant.origins["cms"], cookies["shopping"])
    assert cms.get("/dashboard/").status in (200, 403)
    assert "Store statistics" not in cms.get("/dashboard/").text
    developer = next(row["account"] for row in tenant.query("gitlab", "users") if row["account"] != MAINTAINER)
    cookies = tenant.reset({"gitlab": developer})
    page = Visitor(tenant.origins["gitlab"], cookies["gitlab"]).get("/admin/general/perm")
    assert page.status in (403, 404)


# ---- changes, reset, isolation ---------------------------------------------------------------------------------------


def test_actions_change_what_queries_tell(tenant: Tenant) -> None:
    visits = visitors(tenant)
    account = customer(tenant)
    orders, posts = tenant.query("cms", "orders", account=account), tenant.query("reddit", "posts", account=MODERATOR)
    tickets = tenant.query("gitlab", "tickets")
    act(visits, tenant)
    placed = tenant.query("cms", "orders", account=account)[-1]
    assert len(tenant.query("cms", "orders", account=account)) == len(orders) + 1
    assert placed["status"] == "Pending"
    assert placed["lines"][0]["quantity"] == 1
    assert placed["placed"].startswith("2025-03-14")
    assert [row["content"] for row in tenant.query("reddit", "posts", account=MODERATOR)][len(posts) :] == [
        "The ridge is icy."
    ]
    (ticket,) = tenant.query("gitlab", "tickets", number=len(tickets) + 1)
    assert (ticket["summary"], ticket["reporter"]) == ("Clock stands still", MAINTAINER)


def test_reset_brings_everything_back_after_random_forms(tenant: Tenant) -> None:
    pristine = tenant.state_hash()
    rng = random.Random(5)
    words = ["2", "Quiet word", "1999-12-31", "nobody@mail.example", "-7", "&lt;b&gt;", ""]
    sent = 0
    for _ in range(2):
        visits = visitors(tenant)
        for site in PAGES:
            visitor, page = visits[site], visits[site].get(rng.choice(PAGES[site]))
            for _ in range(14):
                links = [urllib.parse.urljoin(page.path, link).partition("#")[0] for link in read(page).links]
                inner = [link for link in links if link.startswith("/")] or ["/"]
                choices = [form for form in forms(page) if form.method == "post"]
                if choices and rng.random() < 0.6:
                    form = rng.choice(choices)
                    fields = {
                        name: rng.choice(words)
                        for name, value in form.fields.items()
                        if not re.search("token|^action$|TOTAL|INITIAL", name, re.IGNORECASE) and rng.random() < 0.7
                    }
                    page, sent = visitor.send(form, **fields), sent + 1
                else:
                    page = visitor.get(rng.choice(inner))
        assert tenant.state_hash() != pristine
        tenant.reset({})
        assert tenant.state_hash() == pristine
    assert sent > 15


def test_tenants_do_not_see_each_other(tenant: Tenant, other: Tenant) -> None:
    visits = visitors(tenant)
    visitors(other)
    untouched = other.state_hash()
    act(visits, tenant)
    assert other.state_hash() == untouched
    assert tenant.state_hash() != untouched


def test_tenants_at_the_same_time(server: SiteServer) -> None:
    tenants = [server.open_tenant() for _ in range(4)]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            tenant = tenants[number]
            visits = visitors(tenant)
            for turn in range(3):
                summary = f"ticket {turn} of {number}"
                page = visits["gitlab"].get("/newticket")
                visits["gitlab"].submit(page, "field_summary", field_summary=summary, submit="Create ticket")
                assert tenant.query("gitlab", "tickets")[-1]["summary"] == summary
                product = tenant.query("shopping", "products")[number * 7 + turn]
                page = visits["shopping"].get(f"/catalogue/any_{product['id']}/")
                assert product["title"] in page.text
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(tenants))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    for tenant in tenants:
        tenant.close()


def test_the_same_actions_give_the_same_state_and_pages(tenant: Tenant, other: Tenant) -> None:
    texts = []
    for one in (tenant, other):
        visits = visitors(one)
        act(visits, one)
        label = one.origins["cms"].split(".")[1]
        texts.append([visits[site].get(PAGES[site][0]).text.replace(label, "") for site in PAGES])
    assert tenant.state_hash() == other.state_hash()
    assert texts[0] == texts[1]


def test_snapshot_is_small_and_restores_anywhere(tenant: Tenant, other: Tenant) -> None:
    visits = visitors(tenant)
    act(visits, tenant)
    middle = tenant.state_hash()
    data = tenant.snapshot()
    assert len(data) < 300_000
    act(visits, tenant)
    assert tenant.state_hash() != middle
    for one in (tenant, other):
        one.restore(data)
        assert one.state_hash() == middle
        assert one.query("gitlab", "tickets")[-1]["summary"] == "Clock stands still"
    twin = {site: Visitor(other.origins[site]) for site in PAGES}
    for site, visitor in twin.items():
        visitor.cookies = dict(visits[site].cookies)
        assert visitor.get(PAGES[site][0]).status == 200
    other.reset({})
    tenant.reset({})
    assert other.state_hash() == tenant.state_hash() != middle


def test_bytes_that_are_no_snapshot_are_refused(tenant: Tenant) -> None:
    before = tenant.state_hash()
    with pytest.raises(ValueError, match="no snapshot"):
        tenant.restore(b"whatever")
    with pytest.raises(ValueError, match="no snapshot"):
        tenant.restore(tenant.snapshot()[:-30])
    assert tenant.state_hash() == before


@pytest.mark.parametrize("size", [0, 100, 4096, 10_000])
def test_differences_rebuild_the_data(size: int) -> None:
    rng = random.Random(size)
    base = rng.randbytes(9000)
    data = bytearray(base[:size].ljust(size, b"x"))
    if size > 50:
        data[50] ^= 255
    assert apply_difference(base, difference(base, bytes(data))) == bytes(data)


def test_uploads_are_state(tenant: Tenant) -> None:
    png = bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc000000301010018"
        "dd8db00000000049454e44ae426082"
    )
    visits = visitors(tenant)
    before = tenant.state_hash()
    form = next(
        form
        for form in forms(visits["cms"].get("/dashboard/catalogue/products/1/"))
        if "images-TOTAL_FORMS" in form.fields
    )
    visits["cms"].upload(form, "images-1-original", png)
    (row,) = tenant.query(
        "cms", "sql", statement="SELECT original FROM catalogue_productimage WHERE product_id = 1 AND id > 300"
    )
    path = f"/media/{row['original']}"
    assert path.startswith("/media/images/products/2025/03/")
    assert visits["shopping"].get(path).status == 200
    data = tenant.snapshot()
    visits = visitors(tenant)
    assert tenant.state_hash() == before
    assert visits["shopping"].get(path).status == 404
    tenant.restore(data)
    assert visits["shopping"].get(path).status == 200


def clock_of(tenant: Tenant) -> float:
    now = tenant.clock()
    assert now is not None
    return now


def test_the_clock_counts_pages(tenant: Tenant) -> None:
    visits = visitors(tenant)
    start = clock_of(tenant)
    visits["shopping"].get("/catalogue/")
    visits["gitlab"].get("/wiki")
    assert clock_of(tenant) == start + 2
    visits["shopping"].get("/static/oscar/css/styles.css")
    visits["shopping"].get("/favicon.ico")
    visits["gitlab"].get("/chrome/common/css/trac.css")
    tenant.query("gitlab", "tickets")
    assert clock_of(tenant) == start + 2
    tenant.reset({})
    assert clock_of(tenant) == start


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_bad_arguments_are_refused(tenant: Tenant) -> None:
    with pytest.raises(ValueError, match=r"no account 'nobody'.*accepted are .*maintainer"):
        tenant.reset({"gitlab": "nobody"})
    with pytest.raises(ValueError, match="accepted are merchant"):
        tenant.reset({"cms": customer(tenant)})
    with pytest.raises(ValueError, match="no sites wikipedia"):
        tenant.reset({"wikipedia": "x"})
    with pytest.raises(ValueError, match=r"accepted are .*orders"):
        tenant.query("shopping", "order")
    with pytest.raises(ValueError, match=r"accepted are .*account"):
        tenant.query("shopping", "orders", accuont="x")
    with pytest.raises(ValueError, match="no site 'map'"):
        tenant.query("map", "sql")


def test_queries_do_not_write(tenant: Tenant) -> None:
    before = tenant.state_hash()
    for site in PAGES:
        with pytest.raises(ValueError, match="readonly"):
            tenant.query(site, "sql", statement="CREATE TABLE x (y)")
    for site in ("shopping", "cms", "gitlab"):
        table = "ticket" if site == "gitlab" else "order_order"
        with pytest.raises(ValueError, match="readonly"):
            tenant.query(site, "sql", statement=f"DELETE FROM {table}")
    with pytest.raises(ValueError, match="attached"):
        tenant.query("cms", "sql", statement="ATTACH DATABASE 'x' AS x")
    with pytest.raises(ValueError, match="too big"):
        tenant.query("gitlab", "sql", statement="SELECT hex(randomblob(50000000))")
    assert tenant.state_hash() == before


def test_what_is_known_of_paths_is_bounded() -> None:
    asked = []

    def find(site: str, path: str) -> None:
        asked.append((site, path))

    sites = Sites({}, find)
    for number in (*range(3000), 2999, 0):
        sites._statics("shopping", f"/static/{number}.css")
    assert len(asked) == 3001
    assert asked[-1] == ("shopping", "/static/0.css")  # it had been forgotten


def test_hosts_that_are_nobodys_have_no_pages(tenant: Tenant) -> None:
    real = Visitor(tenant.origins["shopping"])
    for host in ("localhost", "shopping.t999.localhost", "map." + real.host.split(".", 1)[1], "127.0.0.1"):
        visitor = Visitor(tenant.origins["shopping"])
        visitor.host = host
        assert visitor.get("/").status == 404
    assert real.get("/static/../../../../etc/passwd").status == 404
    page = Visitor(tenant.origins["gitlab"]).get("/chrome/common/../../../__init__.py")
    assert page.status in (404, 500)
    assert "ComponentManager" not in page.text


def test_a_closed_tenant_is_gone(server: SiteServer) -> None:
    tenant = server.open_tenant()
    visitor = Visitor(tenant.origins["gitlab"])
    assert visitor.get("/wiki").status == 200
    tenant.close()
    tenant.close()
    deadline = time.monotonic() + 20
    while visitor.get("/wiki").status != 404:
        assert time.monotonic() < deadline


def test_clients_that_never_finish_hold_nobody_up(tenant: Tenant) -> None:
    visitor = Visitor(tenant.origins["shopping"])
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            hanging = stack.enter_context(socket.create_connection(("127.0.0.1", visitor.port), timeout=10))
            hanging.sendall(
                f"POST /basket/ HTTP/1.1\r\nHost: {visitor.host}\r\nContent-Length: 1000\r\n\r\nabc".encode()
            )
        assert visitor.get("/catalogue/").status == 200
        assert clock_of(tenant) > 0


def test_bodies_are_limited(tenant: Tenant) -> None:
    visitor = Visitor(tenant.origins["shopping"])
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", visitor.port, timeout=30)) as connection:
        connection.putrequest("POST", "/", skip_host=True)
        connection.putheader("Host", visitor.host)
        connection.putheader("Content-Length", str(10**9))
        connection.endheaders()
        assert connection.getresponse().status == 413


# ---- processes -------------------------------------------------------------------------------------------------------


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while not gone(pid):
        assert time.monotonic() < deadline, "the server has outlived its parent"
        time.sleep(0.05)


PARENT = """
import os, sys, time
from agentgym_envs.webarena.sites import start_sites
server = start_sites()
tenant = server.open_tenant()
child = os.fork() if len(sys.argv) > 1 else 0  # it holds the pipe to the server open
if child or len(sys.argv) == 1:
    print(server.pid, child, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("signum", "forks"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_the_server_dies_with_its_parent(signum: signal.Signals, forks: bool) -> None:
    command = [sys.executable, "-c", PARENT, *(["fork"] if forks else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server_pid, child = map(int, parent.stdout.readline().split())
        os.kill(parent.pid, signum)
        try:
            wait_until_gone(server_pid)
        finally:
            if child:
                os.kill(child, signal.SIGKILL)


def test_a_server_that_is_killed_is_a_fault_and_the_next_one_is_clean(server: SiteServer, tenant: Tenant) -> None:
    doomed = start_sites()
    lost = doomed.open_tenant()
    os.kill(doomed.pid, signal.SIGKILL)
    wait_until_gone(doomed.pid)
    with pytest.raises(Fault, match="died") as failure:
        lost.state_hash()
    assert failure.value.kind == "died"
    assert not doomed.alive
    with pytest.raises(Fault, match="died"):
        doomed.open_tenant()
    doomed.close()
    doomed.close()
    lost.close()
    assert server.alive
    assert tenant.state_hash()


def test_a_server_that_stops_answering_is_ended() -> None:
    server = start_sites(call_seconds=1.0)
    tenant = server.open_tenant()
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(Fault, match="did not answer") as failure:
        tenant.state_hash()
    assert failure.value.kind == "timeout"
    wait_until_gone(server.pid)
    server.close()


def test_the_server_ignores_the_keyboard(server: SiteServer, tenant: Tenant) -> None:
    os.kill(server.pid, signal.SIGINT)
    assert tenant.state_hash()
    assert server.alive


def test_content_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "agentgym_envs.webarena.sites.build", str(tmp_path)]
    subprocess.run(command, env={**environment(), "PYTHONHASHSEED": "77"}, check=True, timeout=280, capture_output=True)
    folder = pristine_folder()
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    cached = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == sorted(cached - {MANIFEST})
    different = [name for name in names if (tmp_path / name).read_bytes() != (folder / name).read_bytes()]
    assert different == []


def test_missing_packages_are_named() -> None:
    code = (
        "from importlib import metadata\n"
        "real = metadata.version\n"
        "def version(name):\n"
        "    if name == 'Trac': raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
        "from agentgym_envs.webarena.sites import start_sites\n"
        "import json\n"
        "try: start_sites()\n"
        "except ModuleNotFoundError as error: print(json.dumps(str(error)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "Trac" in json.loads(done.stdout)
    assert "agentgym-suite[webarena]" in json.loads(done.stdout)
