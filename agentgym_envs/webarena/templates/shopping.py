"""Tasks on the shop front, for one of its customers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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
    all_of,
    alternating,
    balanced,
    click,
    date,
    day,
    dollars,
    enter,
    fill,
    form,
    last_day,
    money,
    month_name,
    number,
    rows_are,
    state,
    stop,
    text,
    texts,
)

SITES = ("shopping",)
BUYER = "{account}"
_NOW = datetime.fromtimestamp(START, UTC).strftime("%Y-%m-%d %H:%M:%S")

# ---- what fills the slots ------------------------------------------------------------------------------


def accounts(data: Data) -> list[str]:
    """Customers."""
    return [row["account"] for row in data("shopping", "customers") if not row["is_staff"]]


def products(data: Data) -> list[Row]:
    """Products that are in stock, of all categories in turn, each with a customer who looks for it."""
    buyers = accounts(data)
    homes = {account: data("shopping", "addresses", account=account)[0]["line1"] for account in buyers}
    rows = []
    for place, row in enumerate(data("shopping", "products")):
        row |= row["attributes"] | {
            "dollars": dollars(row["price"]),
            "path": f"/catalogue/{row['slug']}_{row['id']}",
            "department": row["categories"][0],
            "category": row["categories"][-1],
            "account": buyers[place * 7 % len(buyers)],
        }
        row["home"] = homes[row["account"]]
        rows.append(row)
    return alternating((row for row in rows if row["stock"] > 5), "category")


def shelves(data: Data, level: int) -> Iterator[Row]:
    """Departments (0) or categories (-1) with their cheapest and their dearest product, where there is one."""
    groups: dict[str, list[Row]] = {}
    for row in data("shopping", "products"):
        groups.setdefault(row["categories"][level], []).append(row)
    slugs = {row["name"]: (f"{row['slug']}_{row['id']}", row["parent"]) for row in data("shopping", "categories")}
    for place, (name, rows) in enumerate(groups.items()):
        prices = [Decimal(row["price"]) for row in rows]
        slug, parent = slugs[name]
        path = f"/catalogue/category/{slugs[parent][0].rsplit('_', 1)[0]}/{slug}" if parent else f"/catalogue/{slug}"
        found = {"name": name, "path": path, "account": accounts(data)[place]}
        for word, extreme in (("cheapest", min(prices)), ("dearest", max(prices))):
            if prices.count(extreme) == 1:
                found[word] = rows[prices.index(extreme)]["title"]
        yield found


def cheapest(data: Data) -> list[Row]:
    """Categories whose cheapest product is one alone."""
    return [row for row in shelves(data, -1) if "cheapest" in row]


def dearest(data: Data) -> list[Row]:
    """Departments whose dearest product is one alone."""
    return [row for row in shelves(data, 0) if "dearest" in row]


def searches(data: Data) -> Iterator[Row]:
    """Words and how many products the search finds."""
    listed = data("shopping", "products")
    brands = dict.fromkeys(row["attributes"]["brand"] for row in listed)
    kinds = ("Notebook", "Planter", "Blanket", "Table Lamp", "Kite", "Chess Set")
    for place, word in enumerate([name for pair in zip(brands, kinds, strict=False) for name in pair]):
        found = [row for row in listed if _mentions(row, word)]
        yield {"word": word, "count": len(found), "account": accounts(data)[place]}


def _mentions(row: Row, words: str) -> bool:
    """Whether each word is in the title, the code or the description, as the search looks for them."""
    fields = [row["title"].lower(), row["upc"].lower(), row["description"].lower()]
    return all(any(word in field for field in fields) for word in words.lower().split())


def reviewed(data: Data) -> Iterator[Row]:
    """Products and who gave them the same number of stars."""
    known = {row["account"]: f"{row['first_name']} {row['last_name']}" for row in data("shopping", "customers")}
    listed = {row["title"]: row for row in products(data)}
    reviews: dict[str, list[Row]] = {}
    for row in data("shopping", "reviews"):
        if row["status"] == "approved" and row["product"] in listed:
            reviews.setdefault(row["product"], []).append(row)
    for title, rows in reviews.items():
        newest = rows[-1]
        most = max(Counter(row["score"] for row in rows).items(), key=lambda item: (item[1], item[0]))[0]
        fans = [row for row in rows if row["score"] == most]
        if len(rows) >= 4 and 2 <= len(fans) < len(rows):
            people = [known[row["account"]] for row in fans]
            yield listed[title] | {
                "newest": newest["title"],
                "score": most,
                "fans": texts(people),
                "shown": "; ".join(people),
                "reviews": len(rows),
            }


def orders(data: Data) -> Iterator[Row]:
    """Orders of customers with two or more."""
    rows = [row for row in data("shopping", "orders") if row["account"]]
    many = {account for account, count in Counter(row["account"] for row in rows).items() if count > 1}
    for row in rows:
        if row["account"] in many:
            titles = [line["title"] for line in row["lines"]]
            yield row | {
                "dollars": dollars(row["total"]),
                "titles": texts(titles),
                "shown": "; ".join(titles),
                "wanted": [{"title": line["title"], "quantity": line["quantity"]} for line in row["lines"]],
            }


def latest_orders(data: Data) -> list[Row]:
    """The latest order of each customer."""
    return list({row["account"]: row for row in orders(data)}.values())


def long_orders(data: Data) -> list[Row]:
    """Orders of several products."""
    return [row for row in orders(data) if 2 <= len(row["lines"]) <= 4]


def repeatable(data: Data) -> list[Row]:
    """Orders of several products all of which are still in stock."""
    stock = {row["title"]: row["stock"] for row in data("shopping", "products")}
    return [row for row in long_orders(data) if all(line["quantity"] <= stock[line["title"]] for line in row["lines"])]


def months(data: Data) -> Iterator[Row]:
    """Months in which a customer ordered more than once."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in orders(data):
        found.setdefault((row["account"], row["placed"][:7]), []).append(row)
    for (account, month), rows in found.items():
        if 2 <= len(rows) <= 6 and month < "2025-03":
            total = sum((Decimal(row["total"]) for row in rows), Decimal(0))
            yield {"account": account, "month": month_name(month), "total": str(total), "dollars": dollars(total)} | {
                "first": f"{month}-01",
                "last": last_day(month),
                "number": rows[0]["number"],
            }


def customers(data: Data) -> list[Row]:
    """Customers and the days on which they joined."""
    return [row | {"day": day(row["joined"])} for row in data("shopping", "customers") if not row["is_staff"]]


def wish_lists(data: Data) -> Iterator[Row]:
    """Wish lists of several products."""
    for row in data("shopping", "wish_lists"):
        titles = [line["title"] for line in row["lines"]]
        if len(titles) > 1:
            yield row | {"titles": texts(titles), "shown": "; ".join(titles)}


def several(data: Data) -> Iterator[Row]:
    """Products and how many to buy."""
    for place, row in enumerate(products(data)[40:]):
        count = 2 + place % 4
        total = dollars(Decimal(row["price"]) * count)
        yield row | {"count": count, "all": total}


def pairs(data: Data) -> Iterator[Row]:
    """Two products to be bought together."""
    listed = products(data)
    for one, two in zip(listed[80:], listed[110:], strict=False):
        total = dollars(Decimal(one["price"]) + Decimal(two["price"]))
        yield one | {"other": two["title"], "all": total}


def parcels(data: Data) -> Iterator[Row]:
    """Products that are sent to somebody else."""
    for place, row in enumerate(products(data)[130:]):
        first, last, street, city, region, code = _PLACES[place % len(_PLACES)]
        yield row | {"first": first, "last": last, "street": street, "city": city, "region": region, "code": code}


def unreviewed(data: Data) -> Iterator[Row]:
    """Products that a customer has bought and not reviewed, and what to say of them."""
    known = {(row["product"], row["account"]) for row in data("shopping", "reviews")}
    listed = {row["title"]: row for row in products(data)}
    place = 0
    for order in orders(data):
        title = order["lines"][0]["title"]
        if (title, order["account"]) not in known and title in listed and order["status"] == "Complete":
            head, body, score = _OPINIONS[place % len(_OPINIONS)]
            place += 1
            yield (
                listed[title]
                | {"account": order["account"], "head": head, "body": body, "score": score}
                | {"stars": int(score)}
            )


def listless(data: Data) -> list[Row]:
    """Customers without a wish list, and the name of one."""
    owners = {row["account"] for row in data("shopping", "wish_lists")}
    left = [account for account in accounts(data) if account not in owners]
    return [{"account": account, "name": name} for account, name in zip(left, _LISTS, strict=False)]


def wished(data: Data) -> Iterator[Row]:
    """Wish lists and a product that is not on them."""
    for place, row in enumerate(wish_lists(data)):
        product = products(data)[place * 3]
        if product["title"] not in row["shown"]:
            lines = [*row["lines"], {"title": product["title"], "quantity": 1}]
            yield product | {"account": row["account"], "list": row["name"], "lines": lines}


def movers(data: Data) -> Iterator[Row]:
    """Customers and an address that they have not got yet."""
    for account, place in zip(accounts(data)[5::7], _PLACES, strict=False):
        first, last, street, city, region, code = place
        old = [
            {"line1": row["line1"], "is_default_for_shipping": True, "is_default_for_billing": True}
            for row in data("shopping", "addresses", account=account)
        ]
        new: Row = {
            "line1": street,
            "first_name": first,
            "last_name": last,
            "city": city,
            "state": region,
            "postcode": code,
        }
        new |= {"is_default_for_shipping": False, "is_default_for_billing": False}
        yield {"account": account, "first": first, "last": last, "street": street, "city": city, "region": region} | {
            "code": code,
            "all": [*old, new],
        }


def renamed(data: Data) -> list[Row]:
    """Customers and another surname."""
    names = ("Aldridge", "Bellamy", "Corvin", "Delacroix", "Eastwick", "Farrow")
    return [row | {"new": name} for row, name in zip(customers(data)[2::8], names, strict=False)]


def reduced(data: Data) -> Iterator[Row]:
    """Coupons that are valid, and a product that each is for."""
    listed = products(data)
    for row in data("shopping", "vouchers"):
        department = row["range"].removesuffix(" range")
        if row["ends"] > "2025-03-15":
            yield next(item for item in listed if item["department"] == department) | {"code": row["code"]}


_PLACES = (
    ("Nora", "Lind", "12 Mill Lane", "Portland", "Oregon", "97202"),
    ("Omar", "Haddad", "4 Chapel Street", "Madison", "Wisconsin", "53705"),
    ("Ruth", "Okoro", "88 Quarry Road", "Burlington", "Vermont", "05408"),
    ("Piet", "Jansen", "31 Orchard Way", "Boulder", "Colorado", "80305"),
    ("Lena", "Brook", "7 Station Yard", "Duluth", "Minnesota", "55803"),
    ("Ivan", "Moreau", "150 Ferry Road", "Savannah", "Georgia", "31405"),
)
_OPINIONS = (
    ("Just what we needed", "It does the job and looks good on the shelf.", "5"),
    ("Sturdy but heavy", "Nothing wrong with it, only I cannot lift it with one hand.", "4"),
    ("Not for me", "It is smaller than the picture made me think.", "2"),
    ("A present that pleased", "My aunt has used it every day since her birthday.", "5"),
    ("Came late", "The thing itself is fine, the parcel took two weeks.", "3"),
    ("Fell apart", "The first wash was the last.", "1"),
)
_LISTS = ("Summer house", "Presents for May", "Workshop", "Picnic in June", "Reading corner", "Wedding")

# ---- what is often done --------------------------------------------------------------------------------

PRODUCT = "heading '{title}' level: 1"
FIND = [
    enter("textbox 'Search'", "{title}"),
    click("link '{title}'", "heading 'Products matching \"{title}\"'"),
]
REVIEWS = [*FIND, click("link '{reviews} customer reviews'", PRODUCT)]
REVIEWS_PAGE = "heading 'Customer reviews' level: 1"
ORDERS = [click("link 'Account'"), click("link 'Order History'")]
ORDER = [
    *ORDERS,
    enter("textbox 'Order number'", "{number}", "heading 'Order History'"),
    click("link '{number}'", "heading 'Order History'"),
]
CART = [
    *FIND,
    click("button 'Add to cart'", PRODUCT),
    click("button 'View cart'", "StaticText 'Cart total: {dollars}'"),
]
IN_CART = "columnheader 'Cart total' + columnheader '{dollars}'"
CHECKOUT = [
    click("link 'Proceed to checkout'", "heading 'Cart' level: 1"),
    click("button 'Ship to your default shipping address'"),
    click("link 'Continue'", "heading 'Enter payment details'"),
    click("button 'Place order'"),
    stop("", "link 'Print this page'"),
]


def customer(
    name: str,
    intent: str,
    rows: Rows,
    plan: Plan,
    answer: Fields | None = None,
    url: str = "",
    url_query: Row | None = None,
    state: Sequence[Fields] = (),
) -> Template:
    """A task for the customer whose account the row has."""
    return Template(name, SITES, intent, rows, plan, answer, url, url_query or {}, state, login=BUYER)


def fact(name: str, intent: str, label: str, answer: Fields, rows: Rows = products) -> Template:
    """Something that a product's page says in its table."""
    value = answer["value"]
    shown = stop(value, PRODUCT, f"rowheader '{label}' + cell '{value}'")
    return customer(name, intent, rows, [*FIND, shown], answer)


def in_cart(lines: object) -> list[Fields]:
    """What the cart holds, and nothing was ordered."""
    return [state("shopping", "basket", lines, account=BUYER), ordered([])]


def ordered(lines: object, columns: str = "l.title, l.quantity, a.line1") -> Fields:
    """What was ordered since the start."""
    statement = (
        f"SELECT u.username AS account, {columns} FROM order_line l JOIN order_order o ON o.id = l.order_id"
        " JOIN auth_user u ON u.id = o.user_id JOIN order_shippingaddress a ON a.id = o.shipping_address_id"
        " WHERE o.date_placed > ? ORDER BY l.id"
    )
    return rows_are("shopping", statement, lines, _NOW)


def sorted_by(order: str, *see: str) -> list[Step]:
    """Sort the products of a department or category."""
    return [
        click("link '{name}'", "heading 'Show results for'"),
        fill("combobox 'Sort by'", order, "heading '{name}' level: 1"),
        stop(*see, "heading '{name}' level: 1", f"combobox 'Sort by' value: '{order}'"),
    ]


TEMPLATES = (
    customer(
        "price_of_product",
        'What does the product "{title}" cost? Answer with the amount in dollars.',
        products,
        [*FIND, stop("{dollars}", PRODUCT, "StaticText '{dollars}'")],
        money("{price}"),
    ),
    fact(
        "material_of_product",
        'Which material is the product "{title}" made of? Answer with the material alone.',
        "Material",
        text("{material}"),
        lambda data: balanced(products(data), "material"),
    ),
    fact(
        "weight_of_product",
        'How much does the product "{title}" weigh, in grams? Answer with the number.',
        "Weight in grams",
        number("{weight}", "gram"),
    ),
    fact(
        "code_of_product",
        'What is the UPC of the product "{title}"?',
        "UPC",
        text("{upc}"),
    ),
    customer(
        "stock_of_product",
        'How many pieces of the product "{title}" are available? Answer with the number.',
        products,
        [*FIND, stop("{stock}", PRODUCT, "StaticText 'In stock ({stock} available)'")],
        number("{stock}", "piece"),
    ),
    customer(
        "cheapest_of_category",
        'Which product of the category "{name}" has the lowest price? Answer with its full name.',
        cheapest,
        sorted_by("Price low to high", "{cheapest}", "link '{cheapest}'"),
        text("{cheapest}"),
    ),
    customer(
        "dearest_of_department",
        'Which product of the department "{name}" has the highest price? Answer with its full name.',
        dearest,
        sorted_by("Price high to low", "{dearest}", "link '{dearest}'"),
        text("{dearest}"),
    ),
    customer(
        "products_found",
        'How many products does the shop\'s search find for the words "{word}"? Answer with the number.',
        searches,
        [enter("textbox 'Search'", "{word}"), stop("{count}", "heading 'Products matching \"{word}\"'")],
        number("{count}", "product"),
    ),
    customer(
        "newest_review",
        'What is the title of the newest review of the product "{title}"?',
        reviewed,
        [*REVIEWS, stop("{newest}", REVIEWS_PAGE, "link '{newest}'")],
        text("{newest}"),
    ),
    customer(
        "reviewers_with_stars",
        'Which customers gave the product "{title}" exactly {score} of 5 stars? '
        "List their full names, separated by semicolons.",
        reviewed,
        [*REVIEWS, stop("{shown}", REVIEWS_PAGE, "image 'Rated {score} of 5'")],
        all_of("{fans}"),
    ),
    customer(
        "total_of_latest_order",
        "What is the total of my latest order? Answer with the amount in dollars.",
        latest_orders,
        [*ORDERS, stop("{dollars}", "heading 'All orders'", "link '{number}' + cell * + cell '{dollars}'")],
        money("{total}"),
    ),
    customer(
        "status_of_my_order",
        "What is the status of my order {number}? Answer with one word.",
        lambda data: balanced(orders(data), "status"),
        [*ORDER, stop("{status}", "heading 'Order #{number}'", "heading 'Status' + StaticText '{status}'")],
        text("{status}"),
    ),
    customer(
        "products_of_order",
        "Which products did I buy with my order {number}? List their full names, separated by semicolons.",
        long_orders,
        [*ORDER, stop("{shown}", "heading 'Order #{number}'")],
        all_of("{titles}"),
    ),
    customer(
        "spent_in_month",
        "What is the total of all the orders together that I placed in {month}, whatever became of them? "
        "Answer with the amount in dollars.",
        months,
        [
            *ORDERS,
            *form(
                {"textbox 'From'": "{first}", "textbox 'To'": "{last}"},
                "button 'Filter results'",
                "heading 'Order History'",
            ),
            stop("{dollars}", "heading 'Orders placed between {first} and {last}'", "link '{number}'"),
        ],
        money("{total}"),
    ),
    customer(
        "day_of_registration",
        "On which day was my account registered? Answer with the date as year-month-day.",
        customers,
        [click("link 'Account'"), stop("{day}", "rowheader 'Date registered'")],
        date("{day}"),
    ),
    customer(
        "products_of_wish_list",
        'Which products are on my wish list "{name}"? List their full names, separated by semicolons.',
        wish_lists,
        [
            click("link 'Account'"),
            click("link 'Wish Lists'"),
            click("link '{name}'", "heading 'Wish Lists'"),
            stop("{shown}", "heading '{name}' level: 1"),
        ],
        all_of("{titles}"),
    ),
    # ---- pages to be opened ----
    customer(
        "page_of_product",
        'Open the page of the product "{title}".',
        lambda data: products(data)[7:],
        [*FIND, stop("", PRODUCT, "URL: http://shopping{path}/")],
        url="{path}",
    ),
    customer(
        "reviews_of_product",
        'Open the page that has nothing but the customer reviews of the product "{title}".',
        reviewed,
        [*REVIEWS, stop("", REVIEWS_PAGE)],
        url="{path}/reviews",
    ),
    customer(
        "category_by_price",
        'Show the products of the category "{name}", the most expensive first.',
        lambda data: list(shelves(data, -1)),
        sorted_by("Price high to low", ""),
        url="{path}",
        url_query={"sort_by": "price-desc"},
    ),
    customer(
        "page_of_my_order",
        "Open the page of my order {number}.",
        lambda data: list(orders(data))[3:],
        [*ORDER, stop("", "heading 'Order #{number}'")],
        url="/accounts/orders/{number}",
    ),
    # ---- changes ----
    customer(
        "into_the_cart",
        'Put one piece of the product "{title}" into my cart.',
        lambda data: products(data)[20:],
        [*FIND, click("button 'Add to cart'", PRODUCT), stop("", "StaticText 'Cart total: {dollars}'")],
        state=in_cart([{"title": "{title}", "quantity": 1}]),
    ),
    customer(
        "several_into_the_cart",
        'Put {count} pieces of the product "{title}" into my cart.',
        several,
        [
            *CART,
            *form({"heading 'Cart' » spinbutton": "{count}"}, "button 'Update'", "heading 'Cart' level: 1"),
            stop("", IN_CART.replace("{dollars}", "{all}")),
        ],
        state=in_cart([{"title": "{title}", "quantity": "{count}"}]),
    ),
    customer(
        "two_into_the_cart",
        'Put one piece each of the products "{title}" and "{other}" into my cart.',
        pairs,
        [
            *FIND,
            click("button 'Add to cart'", PRODUCT),
            enter("textbox 'Search'", "{other}", "StaticText 'Cart total: {dollars}'"),
            click("link '{other}'", "StaticText 'Cart total: {dollars}'", "heading 'Products matching \"{other}\"'"),
            click("button 'Add to cart'", "StaticText 'Cart total: {dollars}'", "heading '{other}' level: 1"),
            stop("", "StaticText 'Cart total: {all}'"),
        ],
        state=in_cart([{"title": "{title}", "quantity": 1}, {"title": "{other}", "quantity": 1}]),
    ),
    customer(
        "buy_product",
        'Buy one piece of the product "{title}", to be sent to my default address.',
        lambda data: products(data)[30:],
        [*CART, *CHECKOUT],
        state=[
            ordered([{"account": BUYER, "title": "{title}", "quantity": 1, "line1": "{home}"}]),
            state("shopping", "basket", [], account=BUYER),
        ],
    ),
    customer(
        "buy_several",
        'Buy {count} pieces of the product "{title}" in one order, to be sent to my default address.',
        lambda data: list(several(data))[9:],
        [
            *CART,
            *form({"heading 'Cart' » spinbutton": "{count}"}, "button 'Update'", "heading 'Cart' level: 1"),
            CHECKOUT[0]._replace(see=("heading 'Cart' level: 1", IN_CART.replace("{dollars}", "{all}"))),
            *CHECKOUT[1:],
        ],
        state=[
            ordered([{"account": BUYER, "title": "{title}", "quantity": "{count}", "line1": "{home}"}]),
            state("shopping", "basket", [], account=BUYER),
        ],
    ),
    customer(
        "send_to_somebody",
        'Buy one piece of the product "{title}" as a present. It goes to {first} {last}, {street}, {city}, {region}, '
        "{code}, which is not in my address book.",
        parcels,
        [
            *CART,
            CHECKOUT[0],
            *form(
                {
                    "textbox 'First name *'": "{first}",
                    "textbox 'Last name *'": "{last}",
                    "textbox 'First line of address *'": "{street}",
                    "textbox 'City *'": "{city}",
                    "textbox 'State/County'": "{region}",
                    "textbox 'Post/Zip-code *'": "{code}",
                },
                "button 'Continue'",
                "heading 'Shipping address'",
            ),
            *CHECKOUT[2:],
        ],
        state=[
            ordered(
                [
                    {
                        "account": BUYER,
                        "title": "{title}",
                        "quantity": 1,
                        "first_name": "{first}",
                        "last_name": "{last}",
                        "line1": "{street}",
                        "line4": "{city}",
                        "state": "{region}",
                        "postcode": "{code}",
                    }
                ],
                "l.title, l.quantity, a.first_name, a.last_name, a.line1, a.line4, a.state, a.postcode",
            )
        ],
    ),
    customer(
        "order_again",
        "Put everything that I bought with my order {number} into my cart once more, in the same quantities.",
        repeatable,
        [
            *ORDER,
            click("button 'Re-order all items'", "heading 'Order #{number}'"),
            stop("", "heading 'Cart' level: 1", IN_CART),
        ],
        state=in_cart("{wanted}"),
    ),
    customer(
        "write_review",
        'Write a review of the product "{title}" with the title "{head}", the score {score} and the text "{body}"',
        unreviewed,
        [
            *FIND,
            click("link 'Write a review'", PRODUCT),
            *form(
                {"textbox 'Title *'": "{head}", "combobox 'Score *'": "{score}", "textbox 'Body *'": "{body}"},
                "button 'Save review'",
            ),
            stop("", PRODUCT, "StaticText 'Thank you for reviewing this product'"),
        ],
        state=[
            rows_are(
                "shopping",
                "SELECT p.title, u.username AS account, r.title AS head, r.score, r.body FROM reviews_productreview r"
                " JOIN catalogue_product p ON p.id = r.product_id JOIN auth_user u ON u.id = r.user_id"
                " WHERE r.date_created > ?",
                [{"title": "{title}", "account": BUYER, "head": "{head}", "score": "{stars}", "body": "{body}"}],
                _NOW,
            )
        ],
    ),
    customer(
        "new_wish_list",
        'Make a wish list with the name "{name}" for me.',
        listless,
        [
            click("link 'Account'"),
            click("link 'Wish Lists'"),
            click("link 'Create a new wish list'"),
            *form({"textbox 'Name *'": "{name}"}, "button 'Save'", "heading 'Create a new wish list'"),
            stop("", "heading 'Wish Lists'", "link '{name}'"),
        ],
        state=[state("shopping", "wish_lists", [{"name": "{name}", "lines": []}], account=BUYER)],
    ),
    customer(
        "onto_wish_list",
        'Put the product "{title}" onto my wish list "{list}".',
        wished,
        [
            *FIND,
            click("link 'Add to wish list'", PRODUCT),
            click("link 'Add to \\'{list}\\' wish list'"),
            stop("", "StaticText '\\'{title}\\' was added to your wish list.'"),
        ],
        state=[state("shopping", "wish_lists", [{"name": "{list}", "lines": "{lines}"}], account=BUYER)],
    ),
    customer(
        "new_address",
        "Add an address to my address book: {first} {last}, {street}, {city}, {region}, {code}, United States. "
        "My default addresses stay as they are.",
        movers,
        [
            click("link 'Account'"),
            click("link 'Address Book'"),
            click("link 'Add a new address'"),
            *form(
                {
                    "textbox 'First name *'": "{first}",
                    "textbox 'Last name *'": "{last}",
                    "textbox 'First line of address *'": "{street}",
                    "textbox 'City *'": "{city}",
                    "textbox 'State/County'": "{region}",
                    "textbox 'Post/Zip-code *'": "{code}",
                    "combobox 'Country *'": "United States",
                },
                "button 'Save'",
                "heading 'Add a new address'",
            ),
            stop(
                "",
                "heading 'Address Book'",
                "StaticText '{first} {last} {street} {city} {region} {code} United States'",
            ),
        ],
        state=[state("shopping", "addresses", "{all}", account=BUYER)],
    ),
    customer(
        "new_surname",
        "I have married: change the last name in my profile to {new}, and nothing else.",
        renamed,
        [
            click("link 'Account'"),
            click("link 'Edit profile'"),
            *form({"textbox 'Last name'": "{new}"}, "button 'Save'", "heading 'Edit Profile'"),
            stop("", "rowheader 'Name' + cell '{first_name} {new}'"),
        ],
        state=[
            rows_are(
                "shopping",
                "SELECT username AS account, first_name, last_name, email FROM auth_user"
                " WHERE username = ? OR last_name = ?",
                [{"account": BUYER, "first_name": "{first_name}", "last_name": "{new}", "email": "{email}"}],
                BUYER,
                "{new}",
            )
        ],
    ),
    customer(
        "use_coupon",
        'Put one piece of the product "{title}" into my cart and apply the coupon code {code} to it.',
        reduced,
        [
            *CART,
            click("link 'I have a coupon code...'", "heading 'Cart' level: 1"),
            *form({"textbox 'Code *'": "{code}"}, "button 'Add coupon'", "heading 'Cart' level: 1"),
            stop("", "heading 'Cart' level: 1", "StaticText 'Coupon \\'{code}\\' added to cart'"),
        ],
        state=[
            *in_cart([{"title": "{title}", "quantity": 1}]),
            rows_are(
                "shopping",
                "SELECT v.code FROM basket_basket_vouchers l JOIN voucher_voucher v ON v.id = l.voucher_id"
                " JOIN basket_basket b ON b.id = l.basket_id JOIN auth_user u ON u.id = b.owner_id"
                " WHERE u.username = ? AND b.status = 'Open'",
                [{"code": "{code}"}],
                BUYER,
            ),
        ],
    ),
)
