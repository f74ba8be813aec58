"""What the shop sells: departments, categories, kinds of goods and the words that describe them."""

from __future__ import annotations

# Department -> category -> kinds, each with its lowest and highest price in dollars.
DEPARTMENTS: dict[str, dict[str, dict[str, tuple[int, int]]]] = {
    "Kitchen": {
        "Cookware": {"Frying Pan": (24, 80), "Stockpot": (40, 140), "Casserole Dish": (30, 120), "Wok": (28, 75)},
        "Tea and Coffee": {"Teapot": (18, 65), "Pour-Over Set": (22, 60), "Milk Jug": (9, 30), "Kettle": (28, 110)},
        "Jars and Tins": {
            "Storage Jar": (6, 24),
            "Bread Bin": (25, 70),
            "Spice Rack": (15, 48),
            "Biscuit Tin": (8, 26),
        },
        "Knives and Boards": {"Chef Knife": (30, 130), "Bread Knife": (22, 75), "Cutting Board": (14, 60)},
    },
    "Garden": {
        "Hand Tools": {"Trowel": (8, 28), "Pruning Shears": (15, 60), "Hand Fork": (8, 26), "Dibber": (6, 18)},
        "Pots and Planters": {"Planter": (14, 90), "Hanging Basket": (10, 35), "Seed Tray": (4, 15)},
        "Watering": {"Watering Can": (14, 50), "Garden Hose": (22, 85), "Rain Gauge": (7, 22), "Sprinkler": (12, 44)},
        "Birds and Bees": {"Bird Feeder": (9, 40), "Nest Box": (12, 38), "Bee Hotel": (14, 45)},
    },
    "Lighting": {
        "Table Lamps": {"Table Lamp": (28, 140), "Bedside Lamp": (20, 80), "Banker Lamp": (45, 150)},
        "Lanterns": {"Storm Lantern": (16, 60), "Paper Lantern": (6, 22), "Candle Lantern": (12, 45)},
        "Ceiling": {"Pendant Light": (35, 190), "Flush Light": (28, 110), "Lamp Shade": (12, 60)},
    },
    "Desk": {
        "Notebooks": {"Notebook": (5, 24), "Sketchbook": (8, 30), "Planner": (10, 32)},
        "Writing": {"Fountain Pen": (18, 140), "Mechanical Pencil": (6, 36), "Ink Bottle": (8, 26)},
        "Organisers": {"Letter Tray": (10, 36), "Pen Pot": (5, 22), "Drawer Unit": (30, 120), "Bookend": (12, 44)},
    },
    "Bedroom": {
        "Bedding": {"Duvet Cover": (35, 150), "Pillow": (18, 75), "Blanket": (28, 130), "Fitted Sheet": (18, 60)},
        "Clocks": {"Alarm Clock": (14, 60), "Wall Clock": (20, 110)},
        "Boxes and Baskets": {"Laundry Basket": (18, 64), "Linen Box": (20, 80), "Jewellery Box": (16, 90)},
    },
    "Bathroom": {
        "Towels": {"Bath Towel": (12, 45), "Hand Towel": (7, 24), "Bath Mat": (14, 48)},
        "Fittings": {"Soap Dish": (5, 26), "Towel Rail": (22, 85), "Shaving Mirror": (18, 72)},
    },
    "Outdoors": {
        "Camping": {"Camp Stove": (28, 130), "Sleeping Mat": (24, 110), "Enamel Mug": (7, 20), "Cool Box": (30, 140)},
        "Walking": {"Daypack": (30, 120), "Walking Pole": (18, 80), "Water Bottle": (10, 38)},
        "Picnic": {"Picnic Rug": (20, 75), "Picnic Hamper": (45, 180), "Folding Chair": (25, 95)},
    },
    "Games": {
        "Puzzles": {"Jigsaw Puzzle": (10, 38), "Brain Teaser": (8, 28)},
        "Table Games": {"Chess Set": (22, 140), "Domino Set": (10, 44), "Backgammon Board": (30, 120)},
        "Outdoor Games": {"Kite": (12, 58), "Skittles Set": (24, 80), "Boules Set": (26, 95)},
    },
}

BRANDS = (
    "Ashcombe", "Bellwether", "Copperkin", "Dovetail", "Emberly", "Fernhollow", "Grayling", "Hearthside",
    "Ironbark", "Juniper Row", "Kittiwake", "Lowfell", "Marram", "Northmere",
)  # fmt: skip
STYLES = (
    "Classic", "Compact", "Everyday", "Heritage", "Large", "Lightweight", "Mini", "Original", "Ribbed", "Rustic",
    "Slim", "Studio", "Travel", "Weekend",
)  # fmt: skip
COLOURS = "Amber,Black,Cobalt,Cream,Forest Green,Grey,Mustard,Navy,Rust,Sage,Terracotta,White".split(",")
MATERIALS = "Acacia,Bamboo,Brass,Cast Iron,Cotton,Enamel,Glass,Linen,Oak,Recycled Plastic,Steel,Stoneware".split(",")

OPENINGS = (
    "A {style} {kind} in {material}, made to be used every day.",
    "This {kind} is one of {brand}'s oldest designs and has hardly changed.",
    "{brand} makes this {kind} in small batches from {material}.",
    "A {kind} for people who would rather buy one good thing than three.",
)
MIDDLES = (
    "The {colour} finish is applied by hand, so no two pieces are quite alike.",
    "It weighs {weight} g and takes little room in a cupboard.",
    "Every part can be ordered separately, should one ever break.",
    "The {colour} colour does not fade in the sun.",
    "It comes in a plain cardboard box without any plastic.",
)
ENDINGS = (
    "Wipe clean with a damp cloth.",
    "Covered by a warranty of {warranty} years.",
    "Goes well with the rest of the {brand} range.",
    "Makes a good present for a first flat.",
)

PRAISE = (
    ("Better than I expected", "The {kind} looks even nicer than in the picture and feels solid."),
    ("Would buy again", "I bought a second {kind} for my sister after a month with this one."),
    ("Very pleased", "Arrived two days early, well packed, and the {colour} is exactly as shown."),
    ("Lasting quality", "I have used the {kind} nearly every day since spring and it looks like new."),
    ("Good value", "For this price you will not find a better {kind}."),
)
MIXED = (
    ("Fine, with one flaw", "The {kind} does its job, but the edges could be finished with more care."),
    ("Smaller than I thought", "A decent {kind}, only measure first: it is smaller than it looks."),
    ("Does what it says", "Nothing special and nothing wrong with it. An ordinary {kind}."),
)
BLAME = (
    ("Broke within weeks", "The {kind} came apart after three weeks of light use. I have asked for a refund."),
    ("Wrong colour sent", "I ordered {colour} and got something else, and the exchange took a month."),
    ("Not worth the money", "It feels thin and cheap. I expected more of {brand}."),
    ("Poor packaging", "The box was dented and the {kind} had a scratch right across it."),
)
