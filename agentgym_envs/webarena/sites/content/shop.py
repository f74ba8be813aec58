"""Fills the shop: catalogue, customers, orders, reviews, vouchers and what the dashboard's reports are made of."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import User
from oscar.apps.catalogue.categories import create_from_breadcrumbs
from oscar.core.loading import get_model

from agentgym_envs.webarena.sites.accounts import MERCHANT
from agentgym_envs.webarena.sites.content import goods
from agentgym_envs.webarena.sites.content.accounts import make_users, set_dates, store_sessions
from agentgym_envs.webarena.sites.content.draw import Draw
from agentgym_envs.webarena.sites.content.people import CITIES, STREETS, Person, people
from agentgym_envs.webarena.sites.content.pictures import product_picture
from agentgym_envs.webarena.sites.tenants import START, visit

CUSTOMERS = 48
ORDERS = 360
PRODUCTS_PER_CATEGORY = 12
SUPPLIERS = ("Larkfield Warehouse", "Ostrey Trading", "Pellworth and Sons")
NOW = datetime.fromtimestamp(START, UTC)

Address = get_model("address", "UserAddress")
AttributeValue = get_model("catalogue", "ProductAttributeValue")
Basket = get_model("basket", "Basket")
Category = get_model("catalogue", "Category")
Country = get_model("address", "Country")
Line = get_model("order", "Line")
Order = get_model("order", "Order")
Partner = get_model("partner", "Partner")
Product = get_model("catalogue", "Product")
ProductAttribute = get_model("catalogue", "ProductAttribute")
ProductCategory = get_model("catalogue", "ProductCategory")
ProductClass = get_model("catalogue", "ProductClass")
ProductImage = get_model("catalogue", "ProductImage")
ProductRecord = get_model("analytics", "ProductRecord")
Review = get_model("reviews", "ProductReview")
ShippingAddress = get_model("order", "ShippingAddress")
StockRecord = get_model("partner", "StockRecord")
UserRecord = get_model("analytics", "UserRecord")
WishList = get_model("wishlists", "WishList")
WishListLine = get_model("wishlists", "Line")


def fill() -> None:
    """Fill the empty shop."""
    customers = people(Draw("customers"), CUSTOMERS)
    users = make_users([*customers, Person("Morgan", "Sterling")], {Person("Morgan", "Sterling"): MERCHANT}, _joined)
    store_sessions("shopping", users)
    store_sessions("cms", [user for user in users if user.is_staff])
    addresses = _addresses(customers, users)
    products = _catalogue()
    _reviews(products, users[:CUSTOMERS])
    _orders(products, users[:CUSTOMERS], addresses)
    _wish_lists(products, users[:CUSTOMERS])
    _vouchers()


def _joined(number: int) -> datetime:
    return NOW - timedelta(days=900 - number * 11, hours=number % 7)


def _addresses(customers: list[Person], users: list[User]) -> list[Any]:
    draw = Draw("addresses")
    country = Country.objects.create(
        iso_3166_1_a2="US",
        iso_3166_1_a3="USA",
        iso_3166_1_numeric="840",
        printable_name="United States",
        name="United States of America",
        is_shipping_country=True,
    )
    made = []
    for person, user in zip(customers, users, strict=False):
        city, state, postcode = draw.one(CITIES)
        made.append(
            Address.objects.create(
                user=user,
                first_name=person.first,
                last_name=person.last,
                line1=f"{draw.integer(1, 180)} {draw.one(STREETS)}",
                line4=city,
                state=state,
                postcode=postcode,
                country=country,
                is_default_for_shipping=True,
                is_default_for_billing=True,
            )
        )
    return made


def _catalogue() -> list[Any]:
    draw = Draw("catalogue")
    kind_of_product = ProductClass.objects.create(name="Goods", requires_shipping=True, track_stock=True)
    attributes = {
        code: ProductAttribute.objects.create(product_class=kind_of_product, name=name, code=code, type=type_)
        for code, name, type_ in (
            ("brand", "Brand", "text"),
            ("colour", "Colour", "text"),
            ("material", "Material", "text"),
            ("weight", "Weight in grams", "integer"),
            ("warranty", "Warranty in years", "integer"),
        )
    }
    partners = [Partner.objects.create(name=name, code=f"supplier-{n}") for n, name in enumerate(SUPPLIERS, 1)]
    leaves = [
        (create_from_breadcrumbs(f"{department} > {category}"), kinds)
        for department, categories in goods.DEPARTMENTS.items()
        for category, kinds in categories.items()
    ]
    products: list[Any] = []
    values, links, stock = [], [], []
    titles: set[str] = set()
    for category, kinds in leaves:
        left = PRODUCTS_PER_CATEGORY
        while left:
            kind = draw.one(list(kinds))
            brand, style = draw.one(goods.BRANDS), draw.one(goods.STYLES)
            title = f"{brand} {style} {kind}"
            if title in titles:
                continue
            titles.add(title)
            left -= 1
            colour = draw.one(goods.COLOURS)
            facts = {
                "brand": brand,
                "colour": colour,
                "material": draw.one(goods.MATERIALS),
                "weight": draw.integer(4, 180) * 20,
                "warranty": draw.integer(1, 10),
            }
            number = len(products) + 1
            words = {**facts, "kind": kind.lower(), "style": style.lower()}
            text = [draw.one(goods.OPENINGS), *draw.some(goods.MIDDLES, 2), draw.one(goods.ENDINGS)]
            when = NOW - timedelta(days=draw.integer(30, 800), minutes=number)
            product = Product(
                title=title,
                slug="-".join(title.lower().split()),
                upc=f"LF{10_000 + number * 7}",
                product_class=kind_of_product,
                description="<p>" + " ".join(text).format(**words) + "</p>",
                structure="standalone",
            )
            visit().tenant.ticks = int(when.timestamp() - START)  # the dates that the model sets by itself
            product.save()
            product.kind, product.facts, product.quality = kind, facts, draw.integer(1, 5)
            low, high = kinds[kind]
            product.price = Decimal(draw.integer(low, high)) + draw.one(
                [Decimal("0.00"), Decimal("0.50"), Decimal("0.95")]
            )
            products.append(product)
            links.append(ProductCategory(product=product, category=category))
            for code, value in facts.items():
                values.append(AttributeValue(attribute=attributes[code], product=product, value=value))
            stock.append(
                StockRecord(
                    product=product,
                    partner=draw.one(partners),
                    partner_sku=f"{brand[:3].upper()}-{1000 + number}",
                    price_currency="USD",
                    price=product.price,
                    num_in_stock=0 if draw.chance(0.06) else draw.skewed(1, 240),
                    low_stock_threshold=5,
                )
            )
            path = f"images/products/{product.slug}.svg"
            visit().tenant.uploads[path] = product_picture(number, colour)
            ProductImage.objects.create(product=product, original=path, display_order=0)
    visit().tenant.ticks = 0
    ProductCategory.objects.bulk_create(links)
    AttributeValue.objects.bulk_create(values)
    StockRecord.objects.bulk_create(stock)
    for product, record in zip(products, StockRecord.objects.order_by("product_id"), strict=True):
        product.record = record
    return products


def _reviews(products: list[Any], users: list[User]) -> None:
    draw = Draw("reviews")
    reviews = []
    for product in products:
        for user in draw.some(users, draw.skewed(0, 9)):
            score = min(5, max(1, product.quality + draw.integer(-1, 2)))
            title, body = draw.one(goods.PRAISE if score > 3 else goods.MIXED if score == 3 else goods.BLAME)
            words = {"kind": product.kind.lower(), **product.facts}
            reviews.append(
                Review(
                    product=product,
                    user=user,
                    score=score,
                    title=title,
                    body=body.format(**{**words, "colour": words["colour"].lower()}),
                    status=Review.FOR_MODERATION if draw.chance(0.02) else Review.APPROVED,
                    date_created=NOW - timedelta(days=draw.integer(1, 400), minutes=draw.integer(0, 1400)),
                )
            )
    dates = [review.date_created for review in reviews]
    made = Review.objects.bulk_create(reviews)
    set_dates(
        "reviews_productreview", ("date_created",), [(date, row.pk) for row, date in zip(made, dates, strict=True)]
    )
    for product in products:
        product.update_rating()


def _status(draw: Draw, age_days: int) -> str:
    if draw.chance(0.08):
        return "Cancelled"
    if age_days < 3:
        return "Pending"
    if age_days < 8:
        return draw.one(["Processing", "Processing", "Pending"])
    if age_days < 16:
        return "Shipped"
    return "Returned" if draw.chance(0.05) else "Complete"


def _orders(products: list[Any], users: list[User], addresses: list[Any]) -> None:
    draw = Draw("orders")
    sellable = [product for product in products if product.record.num_in_stock]
    ages = sorted((draw.skewed(0, 620) for _ in range(ORDERS)), reverse=True)
    lines: list[Any] = []
    sold: Counter[int] = Counter()
    spent: defaultdict[int, Decimal] = defaultdict(Decimal)
    counts: Counter[int] = Counter()
    items: Counter[int] = Counter()
    last: dict[int, datetime] = {}
    for number, age in enumerate(ages, 1):
        buyer = draw.skewed(0, len(users) - 1)
        user, address = users[buyer], addresses[buyer]
        when = NOW - timedelta(days=age, hours=draw.integer(1, 12), minutes=number % 60)
        status = _status(draw, age)
        bought = [(product, draw.skewed(1, 4)) for product in draw.some(sellable, draw.skewed(1, 5))]
        total = sum((product.price * count for product, count in bought), Decimal(0))
        basket = Basket.objects.create(owner=user, status="Submitted", date_submitted=when)
        shipping = ShippingAddress.objects.create(
            **{
                field: getattr(address, field)
                for field in ("first_name", "last_name", "line1", "line4", "state", "postcode", "country")
            }
        )
        order = Order.objects.create(
            number=str(100_000 + basket.id),
            basket=basket,
            user=user,
            currency="USD",
            total_incl_tax=total,
            total_excl_tax=total,
            shipping_address=shipping,
            shipping_method="Free shipping",
            shipping_code="free-shipping",
            status=status,
            date_placed=when,
        )
        for product, count in bought:
            amount = product.price * count
            lines.append(
                Line(
                    order=order,
                    product=product,
                    title=product.title,
                    upc=product.upc,
                    partner=product.record.partner,
                    partner_name=product.record.partner.name,
                    partner_sku=product.record.partner_sku,
                    stockrecord=product.record,
                    quantity=count,
                    num_allocated=0,
                    status=status,
                    line_price_incl_tax=amount,
                    line_price_excl_tax=amount,
                    line_price_before_discounts_incl_tax=amount,
                    line_price_before_discounts_excl_tax=amount,
                    unit_price_incl_tax=product.price,
                    unit_price_excl_tax=product.price,
                )
            )
            sold[product.id] += count
            items[user.id] += count
        spent[user.id] += total
        counts[user.id] += 1
        last[user.id] = when
    Line.objects.bulk_create(lines)
    ProductRecord.objects.bulk_create(
        ProductRecord(
            product=product,
            num_views=sold[product.id] * 9 + draw.integer(3, 60),
            num_basket_additions=sold[product.id] * 2 + draw.integer(0, 9),
            num_purchases=sold[product.id],
            score=sold[product.id],
        )
        for product in products
    )
    UserRecord.objects.bulk_create(
        UserRecord(
            user=user,
            num_product_views=counts[user.id] * 12 + draw.integer(0, 40),
            num_basket_additions=items[user.id] + draw.integer(0, 6),
            num_orders=counts[user.id],
            num_order_lines=len({line.pk for line in lines if line.order.user_id == user.id}),
            num_order_items=items[user.id],
            total_spent=spent[user.id],
            date_last_order=last.get(user.id),
        )
        for user in users
    )


def _wish_lists(products: list[Any], users: list[User]) -> None:
    draw = Draw("wish lists")
    for user in users[::3]:
        wish_list = WishList(owner=user, name=draw.one(["Birthday", "New flat", "Garden", "Some day"]))
        wish_list.save()
        for product in draw.some(products, draw.integer(1, 6)):
            WishListLine.objects.create(
                wishlist=wish_list, product=product, title=product.title, quantity=draw.integer(1, 2)
            )


def _vouchers() -> None:
    Benefit = get_model("offer", "Benefit")
    Condition = get_model("offer", "Condition")
    ConditionalOffer = get_model("offer", "ConditionalOffer")
    Range = get_model("offer", "Range")
    Voucher = get_model("voucher", "Voucher")
    for name, code, percent, department, days in (
        ("Spring garden week", "GARDEN15", 15, "Garden", 21),
        ("Lamp month", "LAMPS10", 10, "Lighting", 40),
        ("Kitchen thank-you", "KITCHEN20", 20, "Kitchen", 10),
        ("Winter bedding", "WARM25", 25, "Bedroom", -5),
        ("Back to the desk", "DESK12", 12, "Desk", 33),
        ("Bathroom refresh", "TOWEL18", 18, "Bathroom", 15),
        ("First days out", "TRAIL30", 30, "Outdoors", 55),
        ("Games night", "PLAY5", 5, "Games", -12),
    ):
        goods_range = Range.objects.create(name=f"{department} range", slug=department.lower(), is_public=False)
        goods_range.included_categories.add(Category.objects.get(name=department))
        condition = Condition.objects.create(range=goods_range, type=Condition.COUNT, value=1)
        benefit = Benefit.objects.create(range=goods_range, type=Benefit.PERCENTAGE, value=percent)
        offer = ConditionalOffer.objects.create(
            name=name, slug=code.lower(), offer_type=ConditionalOffer.VOUCHER, condition=condition, benefit=benefit
        )
        voucher = Voucher.objects.create(
            name=name,
            code=code,
            usage=Voucher.MULTI_USE,
            start_datetime=NOW - timedelta(days=30),
            end_datetime=NOW + timedelta(days=days),
        )
        voucher.offers.add(offer)
