"""What was left out by hand: facts on which the packages agree, but which are contested, new or not so simple."""

from __future__ import annotations

# Country -> why no passage names its capital.
CAPITALS = {
    "AS": "the government sits in a village next to Pago Pago",
    "BI": "moved from Bujumbura to Gitega in 2019",
    "BJ": "the government sits in Cotonou",
    "BO": "Sucre by the constitution, the government sits in La Paz",
    "CC": "no official capital",
    "CH": "no capital by law",
    "CI": "Yamoussoukro by law, the government sits in Abidjan",
    "EG": "the government is moving to a new city",
    "EH": "contested territory",
    "GQ": "moving from Malabo",
    "ID": "moving from Jakarta to Nusantara",
    "IL": "contested",
    "IO": "no civilian settlement",
    "KI": "the government is spread over several places",
    "KZ": "renamed several times; the packages have the name of 2019 to 2022",
    "LK": "Sri Jayawardenepura Kotte by law, much of the government is in Colombo",
    "LY": "two rival governments",
    "MM": "moved from Yangon to Naypyidaw in 2005",
    "MP": "Saipan is an island, the seat is a village on it",
    "MS": "Plymouth was destroyed, the government sits in Brades",
    "MY": "Kuala Lumpur by law, the government sits in Putrajaya",
    "NF": "Kingston by tradition, the offices are in Burnt Pine",
    "NL": "Amsterdam by the constitution, the government sits in The Hague",
    "NR": "no official capital",
    "PS": "contested",
    "PW": "moved from Koror to Ngerulmud in 2006",
    "SD": "the government sat elsewhere during the war",
    "SJ": "no capital: two territories under one code",
    "SZ": "Mbabane and Lobamba share the part",
    "TF": "no inhabitants but visitors",
    "TK": "the seat goes round from year to year",
    "TZ": "moved from Dar es Salaam to Dodoma over many years",
    "YE": "Sanaa by the constitution, the recognised government sits in Aden",
    "YT": "Mamoudzou and Dzaoudzi share the part",
    "ZA": "three capitals",
}

# Country -> why no passage names its currency.
CURRENCIES = {
    "BG": "the euro since 2026",
    "CK": "notes and coins of its own beside New Zealand's",
    "EH": "contested territory",
    "FO": "notes of its own beside Denmark's",
    "GG": "notes of its own beside Britain's",
    "GS": "notes of its own beside Britain's",
    "HM": "no inhabitants",
    "IM": "notes of its own beside Britain's",
    "JE": "notes of its own beside Britain's",
    "SZ": "named after the old name of the country",
    "TV": "coins of its own beside Australia's",
}

# Names in common use that the packages lack.
CURRENCY_NAMES = {
    "AED": ("Emirati Dirham",),
    "CNY": ("Renminbi",),
    "GBP": ("Pound Sterling", "Sterling"),
    "USD": ("United States Dollar", "American Dollar"),
}

# Calling codes that several countries or territories use; those of the North American plan begin with 1.
SHARED_CALLING_CODES = frozenset("7 39 44 47 61 64 212 262 290 358 379 500 590 596 599 672".split())
