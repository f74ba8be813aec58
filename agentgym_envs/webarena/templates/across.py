"""Tasks that need two sites: something is found on one and used on the other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from agentgym_envs.webarena.sites.accounts import MAINTAINER, MODERATOR
from agentgym_envs.webarena.sites.tenants import START
from agentgym_envs.webarena.templates import cms, gitlab, reddit, shopping
from agentgym_envs.webarena.templates.common import (
    Data,
    Fields,
    Plan,
    Row,
    Step,
    Template,
    click,
    form,
    in_new_tab,
    rows_are,
    state,
    stop,
)

_NOW = datetime.fromtimestamp(START, UTC).strftime("%Y-%m-%d %H:%M:%S")

# ---- what fills the slots ------------------------------------------------------------------------------


def _beside(rows: list[Row], others: list[Row], first: int, **names: str) -> Iterator[Row]:
    """Rows, each with some columns of another one under new names."""
    for place, row in enumerate(rows):
        other = others[(first + place * 7) % len(others)]
        yield row | {new: other[old] for new, old in names.items()}


def prices(data: Data) -> list[Row]:
    """Products, and a forum in which to tell what they cost."""
    return list(_beside(shopping.products(data), reddit.forums(data), 3, forum="name"))


def questions(data: Data) -> list[Row]:
    """Orders, and a topic in which somebody asks about them."""
    rows = [row for row in cms.orders(data) if row["status"] != "Complete"]
    return list(_beside(rows, reddit.plain(data), 5, forum="forum", subject="subject", topic="id"))


def owners(data: Data) -> list[Row]:
    """Tickets, and a forum in which to ask for their owners."""
    return list(_beside(gitlab.owned(data), reddit.forums(data), 11, forum="name"))


def ideas(data: Data) -> list[Row]:
    """Forums and their topics with the most views, and the number of the ticket that comes next."""
    following = 1 + max(row["id"] for row in data("gitlab", "tickets"))
    return [row | {"id": following} for row in reddit.leading(data, "views", margin=20)]


def calls(data: Data) -> list[Row]:
    """Orders, and the number of the ticket that comes next."""
    following = 1 + max(row["id"] for row in data("gitlab", "tickets"))
    return [row | {"id": following} for row in cms.orders(data)]


def shortages(data: Data) -> list[Row]:
    """Products, and the number of the ticket that comes next."""
    following = 1 + max(row["id"] for row in data("gitlab", "tickets"))
    return [row | {"id": following} for row in shopping.products(data)[70:]]


def sales(data: Data) -> list[Row]:
    """Products to be bought, and the number that the order will have."""
    baskets = data("shopping", "sql", statement="SELECT MAX(id) AS last FROM basket_basket")[0]["last"]
    return [row | {"number": str(100_001 + baskets)} for row in shopping.products(data)[55:]]


def presents(data: Data) -> Iterator[Row]:
    """Orders of one product, and another customer who wants that too."""
    listed = {row["title"]: row for row in shopping.products(data)}
    for place, row in enumerate(cms.orders(data)):
        title = row["lines"][0]["title"]
        if len(row["lines"]) == 1 and title in listed:
            buyers = [account for account in shopping.accounts(data) if account != row["account"]]
            yield row | {"title": title, "account": buyers[place % len(buyers)], "dollars": listed[title]["dollars"]}


# ---- what is often done --------------------------------------------------------------------------------


def topic(subject: str, text: str) -> Plan:
    """Start a topic."""
    return [
        click("link '{forum}'"),
        click("link 'New topic'", reddit.FORUM),
        *form({"textbox 'Subject'": subject, "textbox": text}, "button 'Submit'"),
        stop("", f"heading '{subject}' level: 1", "link 'Post reply'"),
    ]


def topic_is(subject: str, text: str) -> list[Fields]:
    """The topic, and no other post, was made."""
    return [
        state("reddit", "topics", [{"forum": "{forum}", "account": MODERATOR, "posts": 1}], subject=subject),
        rows_are(
            "reddit",
            "SELECT subject, content FROM forum_conversation_post WHERE created > ? OR updated > ?",
            [{"subject": subject, "content": text}],
            _NOW,
            _NOW,
        ),
    ]


def ticket(summary: str) -> Plan:
    """Create a ticket."""
    return [
        click("link 'NEW TICKET'"),
        *form({"textbox 'Summary:'": summary, "combobox 'Type:'": "task"}, "button 'Create ticket'"),
        stop("", gitlab.TICKET, f"heading '{summary}' level: 1"),
    ]


def ticket_is(summary: str) -> list[Fields]:
    """The ticket, and no other, was made."""
    return gitlab.changes({"summary": summary, "type": "task", "reporter": MAINTAINER})


def _cart() -> list[Step]:
    return [
        *shopping.FIND,
        click("button 'Add to cart'", shopping.PRODUCT),
        stop("", "StaticText 'Cart total: {dollars}'"),
    ]


TEMPLATES = (
    Template(
        "price_into_forum",
        ("shopping", "reddit"),
        'Find out what the product "{title}" costs in the shop. Then start a topic with the subject "Price of {title}" '
        'in the forum "{forum}". Its text is the price alone, written as the shop shows it, with the dollar sign.',
        prices,
        [
            *shopping.FIND,
            *in_new_tab(
                "reddit",
                "{title} |",
                (shopping.PRODUCT, "StaticText '{dollars}'"),
                topic("Price of {title}", "{dollars}"),
            ),
        ],
        state=topic_is("Price of {title}", "{dollars}"),
        login="{account}",
    ),
    Template(
        "order_status_into_forum",
        ("cms", "reddit"),
        'Find out on the dashboard which status order {number} has. Then reply to the topic "{subject}" in the forum '
        '"{forum}" with that status as the only word of the text.',
        questions,
        [
            *cms.ORDER,
            *in_new_tab(
                "reddit",
                "Order {number} |",
                (cms.ORDER_PAGE, "cell '{status}'"),
                [
                    *reddit.TO_TOPIC,
                    click("link 'Post reply'", reddit.TOPIC),
                    *form({"textbox": "{status}"}, "button 'Submit'", "heading 'Post a reply'"),
                    stop("", reddit.TOPIC, "link 'Post reply'", "StaticText '{status}'"),
                ],
            ),
        ],
        state=[
            rows_are(
                "reddit",
                "SELECT topic_id AS topic, content FROM forum_conversation_post WHERE created > ? OR updated > ?",
                [{"topic": "{topic}", "content": "{status}"}],
                _NOW,
                _NOW,
            )
        ],
    ),
    Template(
        "owner_of_ticket_into_forum",
        ("gitlab", "reddit"),
        'Find out who owns ticket #{id}. Then start a topic with the subject "Looking for help with ticket {id}" in '
        'the forum "{forum}". Its text is the full name of the owner, and nothing else.',
        owners,
        [
            gitlab.JUMP,
            *in_new_tab(
                "reddit",
                "#{id} (",
                (gitlab.TICKET, "rowheader 'Owned by:' + link '{owner_name}'"),
                topic("Looking for help with ticket {id}", "{owner_name}"),
            ),
        ],
        state=topic_is("Looking for help with ticket {id}", "{owner_name}"),
    ),
    Template(
        "topic_into_ticket",
        ("reddit", "gitlab"),
        'Find out which topic of the forum "{forum}" has been viewed most often. Then create a ticket of type "task" '
        "on the tracker whose summary is the subject of that topic.",
        ideas,
        [
            *reddit.TO_FORUM,
            *in_new_tab(
                "gitlab",
                "Commonroom — {forum}",
                (reddit.FORUM, "link '{subject}' + StaticText * + StaticText * + StaticText * + StaticText '{views}'"),
                ticket("{subject}"),
            ),
        ],
        state=ticket_is("{subject}"),
    ),
    Template(
        "customer_into_ticket",
        ("cms", "gitlab"),
        'Find out on the dashboard which customer placed order {number}. Then create a ticket of type "task" on the '
        'tracker with the summary "Write to" followed by the customer\'s email address.',
        calls,
        [
            *cms.ORDER,
            *in_new_tab("gitlab", "Order {number} |", (cms.ORDER_PAGE, "cell '{email}'"), ticket("Write to {email}")),
        ],
        state=ticket_is("Write to {email}"),
    ),
    Template(
        "code_into_ticket",
        ("shopping", "gitlab"),
        'Find out the UPC of the product "{title}" in the shop. Then create a ticket of type "task" on the tracker '
        'with the summary "New photograph of" followed by the UPC.',
        shortages,
        [
            *shopping.FIND,
            *in_new_tab(
                "gitlab",
                "{title} |",
                (shopping.PRODUCT, "rowheader 'UPC' + cell '{upc}'"),
                ticket("New photograph of {upc}"),
            ),
        ],
        state=ticket_is("New photograph of {upc}"),
        login="{account}",
    ),
    Template(
        "buy_and_process",
        ("shopping", "cms"),
        'Buy one piece of the product "{title}" in the shop, to be sent to the default address of the account there. '
        "Then change the status of this new order to Processing on the dashboard.",
        sales,
        [
            *shopping.CART,
            *shopping.CHECKOUT[:-1],
            *in_new_tab(
                "cms",
                "Order {number}: confirmation",
                ("link 'Print this page'",),
                [
                    *cms.ORDER,
                    *cms.new_status("Processing"),
                    stop(
                        "", cms.ORDER_PAGE, "StaticText 'Order status changed from \\'Pending\\' to \\'Processing\\''"
                    ),
                ],
            ),
        ],
        state=[
            shopping.ordered([{"account": "{account}", "title": "{title}", "quantity": 1, "line1": "{home}"}]),
            state("cms", "orders", [{"status": "Processing"}], number="{number}"),
            rows_are(
                "cms",
                "SELECT o.number FROM order_orderstatuschange c JOIN order_order o ON o.id = c.order_id",
                [{"number": "{number}"}],
            ),
        ],
        login="{account}",
    ),
    Template(
        "same_product_into_the_cart",
        ("cms", "shopping"),
        "Find out on the dashboard which product was bought with order {number}. Then put one piece of it into the "
        "cart of the account that is logged in in the shop.",
        lambda data: list(presents(data)),
        [
            *cms.ORDER,
            *in_new_tab("shopping", "Order {number} |", (cms.ORDER_PAGE, "link '{title}'"), _cart()),
        ],
        state=shopping.in_cart([{"title": "{title}", "quantity": 1}]),
        login="{account}",
    ),
)
