"""Read-only questions about a tenant's state, for scoring and for computing the truths of tasks.

Each question is a function of a database connection and its own arguments. `sql` is there on every site, for what
the others do not answer. Money comes as a string with two decimals, times as ISO strings in UTC.
"""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any

from agentgym_envs.webarena.sites.tenants import Database

Row = dict[str, Any]


def ask(database: Database, site: str, name: str, arguments: dict[str, Any]) -> Any:
    """Answer a question.

    Raises:
        ValueError: If there is no such question, or its arguments are not accepted.
    """
    questions = QUESTIONS[site]
    if name not in questions:
        raise ValueError(f"{site}: there is no question {name!r}; accepted are {', '.join(sorted(questions))}.")
    question = questions[name]
    try:
        inspect.signature(question).bind(database.connection, **arguments)
    except TypeError as error:
        accepted = [str(p) for p in list(inspect.signature(question).parameters.values())[1:]]
        raise ValueError(f"{site}, {name}: {error}; accepted are {', '.join(accepted) or 'none'}.") from None
    connection = database.connection
    connection.execute("PRAGMA query_only = ON").close()
    try:
        return question(connection, **arguments)
    except sqlite3.Error as error:
        raise ValueError(f"{site}, {name}: {error}") from error
    finally:
        connection.rollback()
        connection.execute("PRAGMA query_only = OFF").close()


def sql(connection: sqlite3.Connection, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
    """Rows of a SELECT statement, as dictionaries."""
    cursor = connection.execute(statement, tuple(parameters))
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, map(_plain, row), strict=True)) for row in cursor.fetchall()]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if value is None or isinstance(value, str | int | float):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _money(rows: list[Row], *columns: str) -> list[Row]:
    for row in rows:
        for column in columns:
            row[column] = None if row[column] is None else f"{float(row[column]):.2f}"
    return rows


def _where(**conditions: Any) -> tuple[str, list[Any]]:
    """A WHERE clause of the conditions that are given; two underscores in a name stand for a dot."""
    given = {name.replace("__", "."): value for name, value in conditions.items() if value is not None}
    clause = " AND ".join(f"{name} = ?" for name in given)
    return (f" WHERE {clause}" if clause else ""), list(given.values())


# ---- shop ----------------------------------------------------------------------------------------------------------


def orders(connection: sqlite3.Connection, account: str | None = None, number: str | None = None) -> list[Row]:
    """Orders with their lines, oldest first."""
    where, values = _where(u__username=account, o__number=number)
    found = sql(
        connection,
        "SELECT o.id, o.number, u.username AS account, o.status, o.date_placed AS placed, o.total_incl_tax AS total,"
        " o.shipping_method, a.line1, a.line4 AS city, a.state, a.postcode FROM order_order o"
        " LEFT JOIN auth_user u ON u.id = o.user_id LEFT JOIN order_shippingaddress a ON a.id = o.shipping_address_id"
        f"{where} ORDER BY o.date_placed, o.id",
        values,
    )
    for order in _money(found, "total"):
        order["lines"] = _money(
            sql(
                connection,
                "SELECT title, upc, quantity, status, unit_price_incl_tax AS price, partner_name AS supplier"
                " FROM order_line WHERE order_id = ? ORDER BY id",
                [order["id"]],
            ),
            "price",
        )
        order["notes"] = sql(
            connection, "SELECT message, note_type FROM order_ordernote WHERE order_id = ? ORDER BY id", [order["id"]]
        )
    return found


def basket(connection: sqlite3.Connection, account: str) -> list[Row]:
    """Lines of the account's open basket."""
    return sql(
        connection,
        "SELECT p.title, p.upc, l.quantity FROM basket_line l JOIN basket_basket b ON b.id = l.basket_id"
        " JOIN auth_user u ON u.id = b.owner_id JOIN catalogue_product p ON p.id = l.product_id"
        " WHERE b.status = 'Open' AND u.username = ? ORDER BY l.id",
        [account],
    )


def wish_lists(connection: sqlite3.Connection, account: str | None = None) -> list[Row]:
    """Wish lists with the titles and quantities on them."""
    where, values = _where(u__username=account)
    found = sql(
        connection,
        "SELECT w.id, w.name, u.username AS account, w.visibility FROM wishlists_wishlist w"
        f" JOIN auth_user u ON u.id = w.owner_id{where} ORDER BY w.id",
        values,
    )
    for wish_list in found:
        wish_list["lines"] = sql(
            connection,
            "SELECT title, quantity FROM wishlists_line WHERE wishlist_id = ? ORDER BY id",
            [wish_list["id"]],
        )
    return found


def reviews(connection: sqlite3.Connection, product: str | None = None, account: str | None = None) -> list[Row]:
    """Reviews, oldest first; `status` is `waiting`, `approved` or `rejected`."""
    where, values = _where(p__title=product, u__username=account)
    return sql(
        connection,
        "SELECT r.id, p.title AS product, u.username AS account, r.score, r.title, r.body, r.date_created AS created,"
        " CASE r.status WHEN 0 THEN 'waiting' WHEN 1 THEN 'approved' ELSE 'rejected' END AS status"
        " FROM reviews_productreview r JOIN catalogue_product p ON p.id = r.product_id"
        f" LEFT JOIN auth_user u ON u.id = r.user_id{where} ORDER BY r.date_created, r.id",
        values,
    )


def products(connection: sqlite3.Connection, title: str | None = None, upc: str | None = None) -> list[Row]:
    """Products with price, stock, category, department, attributes and rating."""
    where, values = _where(p__title=title, p__upc=upc)
    found = _money(
        sql(
            connection,
            "SELECT p.id, p.title, p.upc, p.slug, p.description, p.is_public, p.rating, s.price,"
            " s.num_in_stock AS stock, s.num_allocated AS allocated, s.partner_sku AS sku, t.name AS supplier"
            " FROM catalogue_product p LEFT JOIN partner_stockrecord s ON s.product_id = p.id"
            f" LEFT JOIN partner_partner t ON t.id = s.partner_id{where} ORDER BY p.id",
            values,
        ),
        "price",
    )
    for product in found:
        product["categories"] = [
            row["name"]
            for row in sql(
                connection,
                "SELECT b.name FROM catalogue_productcategory l JOIN catalogue_category c ON c.id = l.category_id"
                " JOIN catalogue_category b ON c.path LIKE b.path || '%' WHERE l.product_id = ? ORDER BY l.id, b.depth",
                [product["id"]],
            )
        ]
        product["attributes"] = {
            row["code"]: row["text"] if row["text"] is not None else row["number"]
            for row in sql(
                connection,
                "SELECT a.code, v.value_text AS text, v.value_integer AS number FROM catalogue_productattributevalue v"
                " JOIN catalogue_productattribute a ON a.id = v.attribute_id WHERE v.product_id = ? ORDER BY a.id",
                [product["id"]],
            )
        }
    return found


def categories(connection: sqlite3.Connection) -> list[Row]:
    """Categories with their parents, in the order of the menu."""
    return sql(
        connection,
        "SELECT c.id, c.name, p.name AS parent, c.slug, c.is_public FROM catalogue_category c"
        " LEFT JOIN catalogue_category p ON p.path = substr(c.path, 1, length(c.path) - 4) ORDER BY c.path",
    )


def customers(connection: sqlite3.Connection, account: str | None = None) -> list[Row]:
    """Accounts of the shop."""
    where, values = _where(username=account)
    return sql(
        connection,
        "SELECT id, username AS account, email, first_name, last_name, is_active, is_staff, date_joined AS joined"
        f" FROM auth_user{where} ORDER BY id",
        values,
    )


def addresses(connection: sqlite3.Connection, account: str) -> list[Row]:
    """The account's address book."""
    return sql(
        connection,
        "SELECT a.first_name, a.last_name, a.line1, a.line2, a.line4 AS city, a.state, a.postcode, a.phone_number,"
        " a.is_default_for_shipping, a.is_default_for_billing FROM address_useraddress a"
        " JOIN auth_user u ON u.id = a.user_id WHERE u.username = ? ORDER BY a.id",
        [account],
    )


def vouchers(connection: sqlite3.Connection) -> list[Row]:
    """Vouchers with the percentage they take off."""
    return sql(
        connection,
        "SELECT v.name, v.code, v.usage, v.start_datetime AS starts, v.end_datetime AS ends, v.num_orders,"
        " CAST(b.value AS REAL) AS percent, r.name AS range FROM voucher_voucher v"
        " LEFT JOIN voucher_voucher_offers l ON l.voucher_id = v.id"
        " LEFT JOIN offer_conditionaloffer o ON o.id = l.conditionaloffer_id"
        " LEFT JOIN offer_benefit b ON b.id = o.benefit_id LEFT JOIN offer_range r ON r.id = b.range_id ORDER BY v.id",
    )


# ---- forum ---------------------------------------------------------------------------------------------------------


def forums(connection: sqlite3.Connection) -> list[Row]:
    """Forums with their categories and counts."""
    return sql(
        connection,
        "SELECT f.id, f.name, p.name AS category, f.slug, f.direct_topics_count AS topics,"
        " f.direct_posts_count AS posts FROM forum_forum f LEFT JOIN forum_forum p ON p.id = f.parent_id"
        " WHERE f.type = 0 ORDER BY f.tree_id, f.lft",
    )


def topics(
    connection: sqlite3.Connection, forum: str | None = None, account: str | None = None, subject: str | None = None
) -> list[Row]:
    """Topics, oldest first."""
    where, values = _where(f__name=forum, u__username=account, t__subject=subject)
    return sql(
        connection,
        "SELECT t.id, t.subject, f.name AS forum, u.username AS account, t.created, t.last_post_on, t.approved,"
        " t.posts_count AS posts, t.views_count AS views, t.slug,"
        " CASE t.type WHEN 0 THEN 'normal' WHEN 1 THEN 'sticky' ELSE 'announcement' END AS type,"
        " CASE t.status WHEN 1 THEN 'locked' WHEN 2 THEN 'moved' ELSE 'open' END AS status"
        " FROM forum_conversation_topic t JOIN forum_forum f ON f.id = t.forum_id"
        f" LEFT JOIN auth_user u ON u.id = t.poster_id{where} ORDER BY t.created, t.id",
        values,
    )


def posts(connection: sqlite3.Connection, topic: int | None = None, account: str | None = None) -> list[Row]:
    """Posts of a topic (by its id), of an account, or all; oldest first."""
    where, values = _where(p__topic_id=topic, u__username=account)
    return sql(
        connection,
        "SELECT p.id, p.topic_id AS topic, t.subject AS topic_subject, f.name AS forum, p.subject, p.content,"
        " u.username AS account, p.created, p.approved, p.updates_count AS updates FROM forum_conversation_post p"
        " JOIN forum_conversation_topic t ON t.id = p.topic_id JOIN forum_forum f ON f.id = t.forum_id"
        f" LEFT JOIN auth_user u ON u.id = p.poster_id{where} ORDER BY p.created, p.id",
        values,
    )


def polls(connection: sqlite3.Connection, topic: int | None = None) -> list[Row]:
    """Options of polls, with the accounts that voted for them."""
    where, values = _where(p__topic_id=topic)
    found = sql(
        connection,
        "SELECT o.id, p.topic_id AS topic, p.question, o.text AS option FROM forum_polls_topicpolloption o"
        f" JOIN forum_polls_topicpoll p ON p.id = o.poll_id{where} ORDER BY o.id",
        values,
    )
    for option in found:
        votes = sql(
            connection,
            "SELECT u.username AS account FROM forum_polls_topicpollvote v LEFT JOIN auth_user u ON u.id = v.voter_id"
            " WHERE v.poll_option_id = ? ORDER BY v.rowid",
            [option["id"]],
        )
        option["votes"] = [vote["account"] for vote in votes]
    return found


def members(connection: sqlite3.Connection, account: str | None = None) -> list[Row]:
    """Members with their signatures and counts of posts."""
    where, values = _where(u__username=account)
    return sql(
        connection,
        "SELECT u.id, u.username AS account, u.email, u.date_joined AS joined, u.is_superuser, p.signature,"
        " p.posts_count AS posts FROM auth_user u LEFT JOIN forum_member_forumprofile p ON p.user_id = u.id"
        f"{where} ORDER BY u.id",
        values,
    )


def subscriptions(connection: sqlite3.Connection, account: str) -> list[Row]:
    """Topics that the account has subscribed to."""
    return sql(
        connection,
        "SELECT t.id AS topic, t.subject FROM forum_conversation_topic_subscribers s"
        " JOIN forum_conversation_topic t ON t.id = s.topic_id JOIN auth_user u ON u.id = s.user_id"
        " WHERE u.username = ? ORDER BY s.id",
        [account],
    )


# ---- tracker -------------------------------------------------------------------------------------------------------

_MICROSECONDS = 1_000_000


def _times(rows: list[Row], *columns: str) -> list[Row]:
    """Trac's times as ISO strings; None for none."""
    for row in rows:
        for column in columns:
            seconds = (row[column] or 0) / _MICROSECONDS
            row[column] = datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None
    return rows


def tickets(connection: sqlite3.Connection, number: int | None = None) -> list[Row]:
    """Tickets with their comments and changes."""
    where, values = _where(id=number)
    found = sql(connection, f"SELECT * FROM ticket{where} ORDER BY id", values)
    for ticket in _times(found, "time", "changetime"):
        ticket["changes"] = _times(
            sql(
                connection,
                "SELECT time, author, field, oldvalue AS old, newvalue AS new FROM ticket_change"
                " WHERE ticket = ? ORDER BY time, rowid",
                [ticket["id"]],
            ),
            "time",
        )
    return found


def milestones(connection: sqlite3.Connection) -> list[Row]:
    """Milestones with their numbers of open and closed tickets."""
    found = sql(
        connection,
        "SELECT m.name, m.due, m.completed, m.description,"
        " (SELECT COUNT(*) FROM ticket t WHERE t.milestone = m.name AND t.status <> 'closed') AS open,"
        " (SELECT COUNT(*) FROM ticket t WHERE t.milestone = m.name AND t.status = 'closed') AS closed"
        " FROM milestone m ORDER BY m.name",
    )
    return _times(found, "due", "completed")


def components(connection: sqlite3.Connection) -> list[Row]:
    """Components and their owners."""
    return sql(connection, "SELECT name, owner, description FROM component ORDER BY name")


def versions(connection: sqlite3.Connection) -> list[Row]:
    """Released versions."""
    return _times(sql(connection, "SELECT name, time, description FROM version ORDER BY name"), "time")


def wiki(connection: sqlite3.Connection, name: str | None = None) -> list[Row]:
    """The latest version of wiki pages."""
    where, values = _where(name=name)
    found = sql(
        connection,
        f"SELECT name, MAX(version) AS version, time, author, text, comment FROM wiki{where}"
        " GROUP BY name ORDER BY name",
        values,
    )
    return _times(found, "time")


def commits(connection: sqlite3.Connection, repository: str | None = None) -> list[Row]:
    """Commits of all branches, oldest first."""
    where, values = _where(n__value=repository)
    found = sql(
        connection,
        "SELECT n.value AS repository, r.rev AS id, r.time, r.author, r.message FROM revision r"
        f" JOIN repository n ON n.id = r.repos AND n.name = 'name'{where} ORDER BY r.time, r.rev",
        values,
    )
    for commit in found:
        changes = sql(
            connection,
            "SELECT c.path FROM node_change c JOIN repository n ON n.id = c.repos AND n.name = 'name'"
            " WHERE n.value = ? AND c.rev = ? ORDER BY c.path",
            [commit["repository"], commit["id"]],
        )
        commit["paths"] = [change["path"] for change in changes]
    return _times(found, "time")


def users(connection: sqlite3.Connection) -> list[Row]:
    """Accounts of the tracker with names and mail addresses."""
    return sql(
        connection,
        "SELECT s.sid AS account, n.value AS name, e.value AS email FROM session s"
        " LEFT JOIN session_attribute n ON n.sid = s.sid AND n.authenticated = 1 AND n.name = 'name'"
        " LEFT JOIN session_attribute e ON e.sid = s.sid AND e.authenticated = 1 AND e.name = 'email'"
        " WHERE s.authenticated = 1 ORDER BY s.sid",
    )


def permissions(connection: sqlite3.Connection) -> list[Row]:
    """Who may do what."""
    return sql(connection, "SELECT username AS account, action FROM permission ORDER BY username, action")


def _table(*questions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {question.__name__: question for question in (sql, *questions)}


_SHOP = _table(orders, basket, wish_lists, reviews, products, categories, customers, addresses, vouchers)

QUESTIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "shopping": _SHOP,
    "cms": _SHOP,
    "reddit": _table(forums, topics, posts, polls, members, subscriptions),
    "gitlab": _table(tickets, milestones, components, versions, wiki, commits, users, permissions),
}
