"""What is talked about in the forum: categories, forums, their subjects, and sentences to talk with."""

from __future__ import annotations

# Category -> forum -> things that its members talk about.
FORUMS: dict[str, dict[str, tuple[str, ...]]] = {
    "Home and garden": {
        "Balcony gardens": ("cherry tomatoes", "window boxes", "compost", "snails", "chilli plants", "drip trays"),
        "Houseplants": ("a fiddle-leaf fig", "fungus gnats", "monstera cuttings", "a north-facing window", "repotting"),
        "Home repair": ("a dripping tap", "squeaky floorboards", "old sash windows", "plaster cracks", "a stuck lock"),
        "Bread baking": ("sourdough starter", "rye flour", "a soggy crumb", "steam in the oven", "proving baskets"),
        "Preserving": ("plum jam", "pickled beetroot", "jar lids", "dried apples", "fermenting cabbage"),
    },
    "Out and about": {
        "Day hikes": ("the ridge path", "blisters", "trail snacks", "rain jackets", "dogs on the trail"),
        "Bicycle touring": ("panniers", "chain wear", "headwinds", "bicycle trains", "a dynamo hub"),
        "Bird watching": ("a kestrel nest", "second-hand binoculars", "the winter count", "ringing", "hides"),
        "Night trains": ("couchette compartments", "delays at the border", "breakfast on board", "earplugs"),
        "Wild swimming": ("cold shock", "the quarry lake", "changing robes", "swim buoys", "water quality reports"),
    },
    "Making things": {
        "Woodworking": ("dovetail joints", "a dull plane", "hide glue", "workbench height", "oak offcuts"),
        "Sewing": ("pocket linings", "bobbin tension", "linen shirts", "pattern sizes", "zip repairs"),
        "Electronics": ("a cold solder joint", "an oscilloscope", "battery packs", "relay noise", "old radios"),
        "Book binding": ("waxed thread", "kettle stitch", "paper grain", "leather paring", "press boards"),
        "Pottery": ("glaze crawling", "kiln sitters", "throwing off the hump", "reclaiming clay", "ash glazes"),
    },
    "Mind and page": {
        "Book club": (
            "the spring novel",
            "unreliable narrators",
            "translated fiction",
            "reading slumps",
            "short stories",
        ),
        "Poetry corner": ("sonnets", "rhyme", "reading aloud", "prose poems", "editing a first draft"),
        "Language learning": (
            "Portuguese vowels",
            "flash cards",
            "tandem partners",
            "listening practice",
            "false friends",
        ),
        "History": ("canal building", "parish records", "old maps", "guild houses", "oral history"),
        "Astronomy": ("light pollution", "a first telescope", "meteor showers", "star charts", "dew on the lens"),
    },
    "Games and music": {
        "Board games": ("teaching rules", "two-player games", "sleeving cards", "solo modes", "game night snacks"),
        "Chess": ("endgame study", "the London opening", "blitz habits", "club ladders", "adjournments"),
        "Home recording": ("room echo", "a cheap microphone", "latency", "mixing vocals", "cable noise"),
        "Guitars": ("fret buzz", "flat-wound strings", "a neck reset", "capo use", "practice routines"),
        "Choirs": ("sight reading", "warm-ups", "the tenor shortage", "folders", "concert dates"),
    },
    "Technology": {
        "Self hosting": ("backups", "a mail server", "power draw", "certificates", "disk failures"),
        "Mechanical keyboards": ("switch lubing", "split layouts", "keycap legends", "desk noise", "spare stabilisers"),
        "Photography": ("film scanning", "a fifty millimetre lens", "white balance", "contact sheets", "tripods"),
        "Open data": ("timetable feeds", "air quality sensors", "licences", "map tiles", "broken spreadsheets"),
        "Repair cafe": ("toasters", "spare parts", "torx bits", "volunteers", "label makers"),
    },
    "Commonroom itself": {
        "Announcements": ("the new search page", "opening hours of the help desk", "moderators wanted", "house rules"),
        "Ideas and feedback": ("dark mode", "quoting", "notification mails", "larger avatars"),
    },
}

SUBJECTS = (
    "How do you deal with {thing}?", "Beginner question about {thing}", "What I learned about {thing} this year",
    "Is anybody else fed up with {thing}?", "My notes on {thing}", "Help wanted: {thing}",
    "A small success with {thing}",
    "Best book or site on {thing}?", "{Thing}: worth the trouble?", "Before and after: {thing}",
    "Looking for advice on {thing}", "Three mistakes I made with {thing}", "Pictures of {thing}, please",
)  # fmt: skip

OPENERS = (
    "I have been at it for {months} months now and keep coming back to {thing}.",
    "After reading here for a while this is my first post, and it is about {thing}.",
    "Last weekend I spent most of Saturday on {thing}.",
    "My neighbour got me interested in {thing}, and now I cannot stop.",
)
DETAILS = (
    "So far I have tried {count} different ways, and none was quite right.",
    "It cost me about {count} dollars all in, which seems fair.",
    "The first attempt failed within {count} days.",
    "I wrote everything down in a notebook, with dates.",
    "What surprised me most is how much patience matters.",
)
QUESTIONS = (
    "How do the rest of you do it?", "Would you start again from scratch?", "What would you try next?",
    "Does anyone have a picture of theirs?", "Am I missing something obvious?",
)  # fmt: skip
REPLIES = (
    "I had the same with {thing}. Leave it alone for {count} days and look again.",
    "Thanks for writing this up, I had wondered about {thing} for years.",
    "I would not bother. {Thing} never worked for me, and I tried {count} times.",
    "There is a good chapter on {thing} in the book that was recommended here in {month}.",
    "Start small. With {thing} the first {count} tries are always for the bin.",
    "I disagree: it is not {thing} that matters here, it is time.",
    "Could you post the measurements? Mine came out at {count} and I am not sure that is right.",
    "That is exactly what I needed to read today.",
    "Our local group met {count} times last year and talked about little else than {thing}.",
    "Update from me: {thing} is sorted, and it took {count} hours in the end.",
)
MONTHS = "January February March April May June July August September October November December".split()

POLL_OPTIONS = ("Every week", "About once a month", "Only when I must", "Never again", "I let others do it")
