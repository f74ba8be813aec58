"""Tasks on the shop's dashboard, for the merchant."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

from agentgym_envs.webarena.sites.tenants import START
from agentgym_envs.webarena.templates.common import (
    Data,
    Fields,
    Plan,
    Row,
    Rows,
    Step,
    Template,
    alternating,
    balanced,
    click,
    date,
    day,
    dollars,
    enter,
    fill,
    form,
    given,
    last_day,
    money,
    month_name,
    number,
    only,
    rows_are,
    state,
    stop,
    text,
)

SITES = ("cms",)
_NOW = datetime.fromtimestamp(START, UTC).strftime("%Y-%m-%d %H:%M:%S")

# ---- what fills the slots ------------------------------------------------------------------------------


def orders(data: Data) -> list[Row]:
    """Orders with the customers who placed them."""
    known = {row["account"]: row for row in data("cms", "customers")}
    rows = []
    for row in data("cms", "orders"):
        customer = known[row["account"]]
        row |= {"dollars": dollars(row["total"]), "email": customer["email"], "day": day(row["placed"])}
        rows.append(row | {"who": f"{customer['first_name']} {customer['last_name']}"})
    return rows


def moving(data: Data) -> Iterator[Row]:
    """Orders that can go on, and to what."""
    following = {
        "Pending": ("Processing", "Cancelled"),
        "Processing": ("Shipped",),
        "Shipped": ("Complete", "Returned"),
    }
    for place, row in enumerate(alternating(orders(data), "status")):
        if row["status"] in following:
            choices = following[row["status"]]
            yield row | {"new": choices[place // 4 % len(choices)]}


def noted(data: Data) -> list[Row]:
    """Orders and what is to be noted of them."""
    chosen = orders(data)[::47]
    return [row | {"note": note} for row, note in zip(chosen, _NOTES, strict=False)]


def customers(data: Data) -> Iterator[Row]:
    """Customers and what their orders come to."""
    placed: dict[str, list[Row]] = {}
    for row in data("cms", "orders"):
        placed.setdefault(row["account"], []).append(row)
    for row in data("cms", "customers"):
        made = placed.get(row["account"], [])
        total = sum((Decimal(order["total"]) for order in made), Decimal(0))
        if len(made) > 2 and not row["is_staff"]:
            yield (
                row
                | {"count": len(made), "total": str(total), "dollars": dollars(total)}
                | {"who": f"{row['first_name']} {row['last_name']}"}
            )


def months(data: Data) -> Iterator[Row]:
    """Months, their orders and what those brought in."""
    placed: dict[str, list[Row]] = {}
    for row in data("cms", "orders"):
        placed.setdefault(row["placed"][:7], []).append(row)
    for month, rows in list(placed.items())[1:-1]:
        total = sum((Decimal(row["total"]) for row in rows), Decimal(0))
        yield {"month": month_name(month), "first": f"{month}-01", "last": last_day(month), "count": len(rows)} | {
            "total": str(total),
            "dollars": dollars(total),
        }


def statuses(data: Data) -> list[Row]:
    """Statuses of orders and how many orders have them."""
    rows = data("cms", "orders")
    found = dict.fromkeys(sorted(row["status"] for row in rows))
    return [{"status": status, "count": sum(row["status"] == status for row in rows)} for status in found]


def products(data: Data) -> list[Row]:
    """Products, of all categories in turn."""
    rows = [row | row["attributes"] | {"category": row["categories"][-1]} for row in data("cms", "products")]
    return alternating(rows, "category")


def repriced(data: Data) -> Iterator[Row]:
    """Products and a new price for each."""
    for place, row in enumerate(products(data)[60:]):
        whole = int(Decimal(row["price"])) + 1 + place % 5
        yield row | {"new": f"{whole}.25"}


def restocked(data: Data) -> Iterator[Row]:
    """Products and a new number in stock."""
    for place, row in enumerate(products(data)[90:]):
        yield row | {"new": row["stock"] + 17 + place % 30}


def rewarranted(data: Data) -> list[Row]:
    """Products and another warranty."""
    return [row | {"new": row["warranty"] % 10 + 3} for row in products(data)[120:]]


def retitled(data: Data) -> list[Row]:
    """Products and another title."""
    return [row | {"new": f"{row['title']} {row['colour']}"} for row in products(data)[150:]]


def described(data: Data) -> list[Row]:
    """Products and what search engines are to show of them."""
    return [
        row
        | {"meta_title": f"{row['title']} in {row['colour']}", "meta_text": f"{row['material']}, {row['weight']} g."}
        for row in products(data)[180:]
    ]


def coupons(data: Data) -> list[Row]:
    """Coupons."""
    return [row | {"day": day(row["ends"]), "off": int(row["percent"])} for row in data("cms", "vouchers")]


def waiting(data: Data) -> list[Row]:
    """Reviews that wait for moderation, of products that have one such review."""
    rows = [row for row in data("cms", "reviews") if row["status"] == "waiting"]
    known = {row["account"]: f"{row['first_name']} {row['last_name']}" for row in data("cms", "customers")}
    for row in rows:
        row["who"] = known[row["account"]]
        row["others"] = [{"id": other["id"]} for other in sorted(rows, key=lambda item: item["id"]) if other is not row]
    return only(rows, "product")


def _new(table: str, names: tuple[str, ...], key: str = "id") -> Rows:
    """Names of things that are not there yet, and the last number of those that are."""

    def rows(data: Data) -> list[Row]:
        last = data("cms", "sql", statement=f"SELECT MAX({key}) AS last FROM {table}")[0]["last"]
        return [{"name": name, "last": last} for name in names]

    return rows


_NOTES = (
    "Customer called: leave the parcel with the neighbour.",
    "Address checked on the phone.",
    "Pack the glass parts separately.",
    "Send the invoice by post as well.",
    "Wrapped as a present, without prices.",
    "Asked for delivery after six.",
    "Second attempt of delivery on Monday.",
    "Refund of the postage agreed.",
)
_CATEGORIES = ("Workshop", "Children", "Stationery", "Seasonal", "Clearance", "Pets")
_PARTNERS = (
    "Brackwater Mills",
    "Olive and Oak",
    "Tannery Lane",
    "Hollin Imports",
    "Greywick Glass",
    "Sandpiper Crafts",
)
_PAGES = (
    ("Delivery times", "/delivery-times/"),
    ("Repairs and spare parts", "/repairs/"),
    ("Gift wrapping", "/gift-wrapping/"),
    ("Our suppliers", "/suppliers/"),
    ("Opening hours", "/opening-hours/"),
    ("Returns", "/returns/"),
)

# ---- what is often done --------------------------------------------------------------------------------


def menu(name: str, entry: str) -> list[Step]:
    """Open a part of the dashboard."""
    return [click(f"button '{name}'"), click(f"link '{entry}'", f"button '{name}' expanded: true")]


ORDER_PAGE = "heading 'Order #{number}' level: 1"
ORDER = [*menu("Fulfilment", "Orders"), enter("textbox 'Order number:'", "{number}", "heading 'Orders' level: 1")]
STATISTICS = menu("Fulfilment", "Statistics")
CUSTOMER = [
    *menu("Customers", "Customers"),
    enter("textbox 'Email:'", "{email}", "heading 'Customers' level: 1"),
    click("link '{email}'", "heading 'Customers' level: 1"),
]
PRODUCT_PAGE = "heading '{title}' level: 1"
PRODUCT = [
    *menu("Catalog", "Products"),
    enter("textbox 'Product title:'", "{title}", "heading 'Products' level: 1"),
    click("link '{title}'", "heading 'Products' level: 1"),
]
_FOUND = "textbox 'Email:' value: '{email}'"
STOCK = "table 'Stock and pricing'"
COUPON = [*menu("Offers", "Coupons"), click("link '{name}'", "heading 'Coupons' level: 1")]
_MATCHING = "All reviews with status matching \\'{}\\'"
SAVED = "link 'View it on the site'"


def section(name: str, seen: str, fields: dict[str, str]) -> Plan:
    """Change fields of a section of a product's form, and save."""
    return [
        *PRODUCT,
        click(f"link '{name}'", PRODUCT_PAGE),
        *form(fields, "button 'Save'", PRODUCT_PAGE, seen),
        stop("", "heading 'Products' level: 1", SAVED),
    ]


def pick(plain: str, styled: str, choice: str, submit: str, *see: str) -> list[Step]:
    """Choose in a list, and click; the dashboard's scripts put one of their own in its place once they have run.

    Args:
        plain: Line of the list as it comes.
        styled: Line above the list of the scripts.
        choice: What to choose.
        submit: Line of the button.
        see: What else the page shows.
    """
    return [
        click(f"{styled} » combobox *", *see),
        click(f"option '{choice}'", *see),
        fill(plain, choice, *see),
        click(submit, *see, f"{styled} » combobox '{choice}'"),
        click(submit, *see, f"{plain} value: '{choice}'"),
    ]


def new_status(status: str) -> list[Step]:
    """Change the status of an order on its page."""
    plain, styled = "combobox 'New order status *'", "heading 'Change order status:'"
    return pick(plain, styled, status, "button 'Change status'", ORDER_PAGE)


def of_order(name: str, intent: str, rows: Rows, line: str, answer: Fields, said: str) -> Template:
    """Something that an order's page says."""
    return Template(name, SITES, intent, rows, [*ORDER, stop(said, ORDER_PAGE, line)], answer)


def of_customer(name: str, intent: str, label: str, said: str, answer: Fields) -> Template:
    """Something that a customer's page says."""
    seen = f"rowheader '{label}' + cell '{said}'"
    return Template(name, SITES, intent, lambda data: list(customers(data)), [*CUSTOMER, stop(said, seen)], answer)


def of_period(name: str, intent: str, label: str, said: str, answer: Fields) -> Template:
    """Something that the statistics of a period say."""
    plan = [
        *STATISTICS,
        *form({"textbox 'From:'": "{first}", "textbox 'To:'": "{last}"}, "button 'Filter result'"),
        stop(said, "textbox 'From:' value: '{first}'", f"rowheader '{label}' + cell '{said}'"),
    ]
    return Template(name, SITES, intent, lambda data: list(months(data)), plan, answer)


def moderated(name: str, intent: str, choice: str, result: str) -> Template:
    """A decision about a review."""
    waits = f"heading '{_MATCHING.format('Requires moderation')}'"
    decided = f"heading '{_MATCHING.format(choice)} with customer name matching \\'{{who}}\\''"
    plan = [
        *menu("Content", "Reviews"),
        *form({"combobox 'Status:'": "Requires moderation"}, "button 'Search'", "heading 'All reviews' level: 3"),
        # Where it no longer waits, it is looked for among those that have been decided about.
        *form({"combobox 'Status:'": choice, "textbox 'Customer name:'": "{who}"}, "button 'Search'", waits),
        click("link '{product}' + button 'Actions'", waits),
        click("link 'Edit'", waits),
        *pick("combobox 'Status:'", "StaticText 'Status:'", choice, "button 'Save'", "heading 'Review #{id}'"),
        stop("", decided, "link '{product}'"),
    ]
    return Template(
        name,
        SITES,
        intent,
        waiting,
        plan,
        state=[
            rows_are("cms", "SELECT id FROM reviews_productreview WHERE status = 0 ORDER BY id", "{others}"),
            rows_are(
                "cms",
                "SELECT title, body, score, status FROM reviews_productreview WHERE id = ?",
                [
                    {
                        "title": "{title}",
                        "body": "{body}",
                        "score": "{score}",
                        "status": 1 if result == "approved" else 2,
                    }
                ],
                "{id}",
            ),
        ],
    )


def product_is(**columns: object) -> list[Fields]:
    """The product is now so, and nothing else of it is otherwise than it was."""
    was = {"title": "{title}", "upc": "{upc}", "price": "{price}", "stock": "{stock}", "is_public": True}
    return [
        state("cms", "products", [was | columns], upc="{upc}"),
        rows_are("cms", "SELECT upc FROM catalogue_product WHERE date_updated > ?", [{"upc": "{upc}"}], _NOW),
    ]


TEMPLATES = (
    of_order(
        "total_of_order",
        "What is the total of order {number}? Answer with the amount in dollars.",
        orders,
        "cell '{dollars}'",
        money("{total}"),
        "{dollars}",
    ),
    of_order(
        "status_of_order",
        "What is the status of order {number}? Answer with one word.",
        lambda data: balanced(orders(data), "status"),
        "cell '{status}'",
        text("{status}"),
        "{status}",
    ),
    of_order(
        "customer_of_order",
        "Who placed order {number}? Answer with the customer's email address.",
        orders,
        "cell '{email}'",
        text("{email}"),
        "{email}",
    ),
    of_order(
        "day_of_order",
        "On which day was order {number} placed? Answer with the date as year-month-day.",
        orders,
        "columnheader 'Date of purchase'",
        date("{day}"),
        "{day}",
    ),
    Template(
        "street_of_order",
        SITES,
        "To which street and house number was order {number} sent? Answer with that line of the address alone.",
        orders,
        [
            *ORDER,
            click("link 'Shipping'", ORDER_PAGE),
            stop("{line1}", ORDER_PAGE, "rowheader 'Method name'"),
        ],
        text("{line1}"),
    ),
    of_customer(
        "orders_of_customer",
        "How many orders has the customer {who} placed? Answer with the number.",
        "Number of orders",
        "{count}",
        number("{count}", "order"),
    ),
    of_customer(
        "spent_by_customer",
        "How much has the customer {who} spent in all, according to the dashboard? Answer with the amount in dollars.",
        "Total spent",
        "{dollars}",
        money("{total}"),
    ),
    of_period(
        "orders_in_month",
        "How many orders were placed in {month}? Answer with the number.",
        "Total orders",
        "{count}",
        number("{count}", "order"),
    ),
    of_period(
        "revenue_in_month",
        "What was the total revenue of the orders placed in {month}? Answer with the amount in dollars.",
        "Total revenue",
        "{dollars}",
        money("{total}"),
    ),
    Template(
        "orders_with_status",
        SITES,
        'How many orders have the status "{status}"? Answer with the number.',
        statuses,
        [*STATISTICS, stop("{count}", "link '{status}' + cell '{count}'")],
        number("{count}", "order"),
    ),
    Template(
        "sku_of_product",
        SITES,
        'Under which SKU does its supplier know the product "{title}"?',
        products,
        [
            *PRODUCT,
            click("link 'Stock and pricing'", PRODUCT_PAGE),
            stop("{sku}", PRODUCT_PAGE, STOCK, "textbox value: '{sku}'"),
        ],
        text("{sku}"),
    ),
    Template(
        "stock_in_dashboard",
        SITES,
        'How many pieces of the product "{title}" are in stock? Answer with the number.',
        lambda data: [row for row in products(data)[25:] if row["stock"]],
        [
            *PRODUCT,
            click("link 'Stock and pricing'", PRODUCT_PAGE),
            stop("{stock}", PRODUCT_PAGE, STOCK, "textbox value: '{sku}' » spinbutton value: '{stock}'"),
        ],
        number("{stock}", "piece"),
    ),
    Template(
        "code_of_coupon",
        SITES,
        'What is the code of the coupon "{name}"?',
        coupons,
        [*menu("Offers", "Coupons"), stop("{code}", "heading 'Coupons' level: 1", "link '{name}' + cell '{code}'")],
        text("{code}"),
    ),
    Template(
        "end_of_coupon",
        SITES,
        'On which day does the coupon "{name}" end, or did it end? Answer with the date as year-month-day.',
        coupons,
        [*COUPON, stop("{day}", "heading '{name}' level: 1")],
        date("{day}"),
    ),
    # ---- pages to be opened ----
    Template(
        "page_of_customer",
        SITES,
        "Open the dashboard's page of the customer {who}.",
        lambda data: list(customers(data))[3:],
        [*CUSTOMER, stop("", "heading '{email}' level: 1")],
        url="/dashboard/users/{id}",
    ),
    Template(
        "form_of_product",
        SITES,
        'Open the form in which the product "{title}" can be edited.',
        lambda data: products(data)[50:],
        [*PRODUCT, stop("", PRODUCT_PAGE)],
        url="/dashboard/catalogue/products/{id}",
    ),
    Template(
        "list_of_orders_with_status",
        SITES,
        'Show the list of all orders that have the status "{status}", and only those.',
        statuses,
        [
            *STATISTICS,
            click("link '{status}'", "table 'Order status breakdown'"),
            stop("", "URL: http://cms/dashboard/orders/?status={status}"),
        ],
        url="/dashboard/orders",
        url_query={"status": "{status}"},
    ),
    Template(
        "report_of_orders",
        SITES,
        "Show the report of the orders placed from {first} to {last}.",
        lambda data: list(months(data)),
        [
            click("link 'Reports'"),
            *form(
                {"textbox 'Date from:'": "{first}", "textbox 'Date to:'": "{last}"},
                "button 'Generate report'",
                "heading 'Reporting dashboard'",
            ),
            stop("", "textbox 'Date from:' value: '{first}'", "columnheader 'Order number'"),
        ],
        url="/dashboard/reports",
        url_query={"report_type": "order_report", "date_from": "{first}", "date_to": "{last}"},
    ),
    # ---- changes ----
    Template(
        "change_order_status",
        SITES,
        "Change the status of order {number} to {new}.",
        lambda data: list(moving(data)),
        [
            *ORDER,
            *new_status("{new}"),
            stop("", ORDER_PAGE, "StaticText 'Order status changed from \\'{status}\\' to \\'{new}\\''"),
        ],
        state=[
            rows_are(
                "cms",
                "SELECT o.number, c.old_status, c.new_status FROM order_orderstatuschange c"
                " JOIN order_order o ON o.id = c.order_id",
                [{"number": "{number}", "old_status": "{status}", "new_status": "{new}"}],
            ),
            state("cms", "orders", [{"status": "{new}", "total": "{total}"}], number="{number}"),
        ],
    ),
    Template(
        "note_on_order",
        SITES,
        'Leave the note "{note}" on order {number}.',
        noted,
        [
            *ORDER,
            click("link 'Notes'", ORDER_PAGE),
            *form({"textbox 'Message *'": "{note}"}, "button 'Save note'", ORDER_PAGE),
            stop("", ORDER_PAGE, "StaticText 'Note saved'"),
        ],
        state=[
            rows_are(
                "cms",
                "SELECT o.number, n.message FROM order_ordernote n JOIN order_order o ON o.id = n.order_id"
                " WHERE n.note_type <> 'System'",
                [{"number": "{number}", "message": "{note}"}],
            ),
            state("cms", "orders", [{"status": "{status}"}], number="{number}"),
        ],
    ),
    Template(
        "new_price",
        SITES,
        'Change the price of the product "{title}" to ${new}.',
        lambda data: list(repriced(data)),
        section("Stock and pricing", STOCK, {"textbox value: 'USD' » spinbutton": "{new}"}),
        state=product_is(price="{new}"),
    ),
    Template(
        "new_stock",
        SITES,
        'A delivery has come in: set the number in stock of the product "{title}" to {new}.',
        lambda data: list(restocked(data)),
        section("Stock and pricing", STOCK, {"textbox value: '{sku}' » spinbutton": "{new}"}),
        state=product_is(stock="{new}"),
    ),
    Template(
        "new_warranty",
        SITES,
        'Set the warranty of the product "{title}" to {new} years.',
        rewarranted,
        section("Attributes", "spinbutton 'Warranty in years'", {"spinbutton 'Warranty in years'": "{new}"}),
        state=product_is(attributes={"warranty": "{new}", "brand": "{brand}", "colour": "{colour}"}),
    ),
    Template(
        "new_title",
        SITES,
        'Rename the product "{title}" to "{new}".',
        retitled,
        [
            *PRODUCT,
            *form({"textbox 'Title'": "{new}"}, "button 'Save'", PRODUCT_PAGE),
            stop("", "heading 'Products' level: 1", SAVED),
        ],
        state=product_is(title="{new}"),
    ),
    Template(
        "hide_product",
        SITES,
        'The product "{title}" must no longer be seen in the shop: make it not public, but do not delete it.',
        lambda data: products(data)[75:],
        [
            *PRODUCT,
            click("checkbox 'Is public' checked: true", PRODUCT_PAGE),
            click("button 'Save'", PRODUCT_PAGE, "checkbox 'Is public' checked: false"),
            stop("", "heading 'Products' level: 1", SAVED),
        ],
        state=product_is(is_public=False),
    ),
    Template(
        "words_for_search_engines",
        SITES,
        'Give the product "{title}" the meta title "{meta_title}" and the meta description "{meta_text}"',
        described,
        section(
            "Search engine optimization",
            "textbox 'Meta title'",
            {"textbox 'Meta title'": "{meta_title}", "textbox 'Meta description'": "{meta_text}"},
        ),
        state=[
            *product_is(),
            rows_are(
                "cms",
                "SELECT meta_title, meta_description FROM catalogue_product WHERE upc = ?",
                [{"meta_title": "{meta_title}", "meta_description": "{meta_text}"}],
                "{upc}",
            ),
        ],
    ),
    moderated(
        "approve_review",
        'Approve the review "{title}" of the product "{product}", which waits for moderation.',
        "Approved",
        "approved",
    ),
    moderated(
        "reject_review",
        'Reject the review "{title}" of the product "{product}", which waits for moderation.',
        "Rejected",
        "rejected",
    ),
    Template(
        "block_customer",
        SITES,
        "Make the account of the customer {who} ({email}) inactive.",
        lambda data: list(customers(data))[1:],
        [
            *CUSTOMER[:-1],
            click(f"{_FOUND} » checkbox checked: false"),
            click("radio 'Make inactive' checked: false", f"{_FOUND} » checkbox checked: true"),
            click("button 'Go!'", f"{_FOUND} » checkbox checked: true", "radio 'Make inactive' checked: true"),
            stop("", "heading 'Customers' level: 1", "StaticText 'Users\\' status successfully changed'"),
        ],
        state=[rows_are("cms", "SELECT email FROM auth_user WHERE NOT is_active", [{"email": "{email}"}])],
    ),
    Template(
        "new_category",
        SITES,
        'Create a category "{name}" at the top of the catalogue, that is, below no other.',
        _new("catalogue_category", _CATEGORIES),
        [
            *menu("Catalog", "Categories"),
            click("link 'Create new category'"),
            *form({"textbox 'Name *'": "{name}"}, "button 'Save'", "heading 'Add a new category' level: 1"),
            stop("", "heading 'Categories' level: 1", "link '{name}'"),
        ],
        state=[
            rows_are(
                "cms",
                "SELECT name, depth, is_public FROM catalogue_category WHERE id > ?",
                [{"name": "{name}", "depth": 1, "is_public": True}],
                "{last}",
            )
        ],
    ),
    Template(
        "new_partner",
        SITES,
        'Add "{name}" to the partners who supply the shop.',
        _new("partner_partner", _PARTNERS),
        [
            *menu("Fulfilment", "Partners"),
            click("link 'Create new partner'"),
            *form({"textbox 'Name *'": "{name}"}, "button 'Save'"),
            stop("", "StaticText 'Partner \\'{name}\\' was created successfully.'"),
        ],
        state=[rows_are("cms", "SELECT name FROM partner_partner WHERE id > ?", [{"name": "{name}"}], "{last}")],
    ),
    Template(
        "new_page",
        SITES,
        'Create a page with the title "{title}" at the URL {path}, still without any content.',
        given(*({"title": title, "path": path} for title, path in _PAGES)),
        [
            *menu("Content", "Pages"),
            click("link 'Create new page'"),
            *form({"textbox 'Title *'": "{title}", "textbox 'URL'": "{path}"}, "button 'Save'"),
            stop("", "heading 'Pages' level: 1", "link '{title}'"),
        ],
        state=[rows_are("cms", "SELECT title, url FROM django_flatpage", [{"title": "{title}", "url": "{path}"}])],
    ),
)
