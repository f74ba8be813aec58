"""Names of people and places."""

from __future__ import annotations

from typing import NamedTuple

from agentgym_envs.webarena.sites.content.draw import Draw

FIRST = (
    "Ada Bruno Carla Dario Edith Felix Greta Hamid Irma Jonas Keiko Lorenz Mira Nadia Oskar Petra Quentin Rosa "
    "Stefan Tamar Ugo Vera Wanda Xavier Yusuf Zelda Anouk Bela Cosmo Delia Emil Freya Gustav Hana Ilya Juno"
).split()
LAST = (
    "Abernathy Brandt Castellan Dunmore Eklund Fairweather Grimaldi Holloway Ivers Jankowski Kestrel Lindqvist "
    "Marchetti Norwood Okafor Pemberton Quill Rasmussen Santorini Thackeray Underhill Vasquez Whitlock Yarrow"
).split()
STREETS = "Alder Lane,Birch Road,Canal Street,Dockside,Elm Terrace,Foundry Way,Garrison Row,Harbour View".split(",")
CITIES = (
    ("Portland", "Oregon", "97201"),
    ("Madison", "Wisconsin", "53703"),
    ("Burlington", "Vermont", "05401"),
    ("Savannah", "Georgia", "31401"),
    ("Boulder", "Colorado", "80302"),
    ("Duluth", "Minnesota", "55802"),
    ("Asheville", "North Carolina", "28801"),
    ("Tucson", "Arizona", "85701"),
)


class Person(NamedTuple):
    """Somebody who has accounts.

    Attributes:
        first: First name.
        last: Last name.
    """

    first: str
    last: str

    @property
    def account(self) -> str:
        """User name."""
        return f"{self.first}.{self.last}".lower()

    @property
    def email(self) -> str:
        """Mail address."""
        return f"{self.account}@mail.example"

    @property
    def name(self) -> str:
        """Full name."""
        return f"{self.first} {self.last}"


def people(draw: Draw, count: int) -> list[Person]:
    """So many people with different names."""
    found: dict[str, Person] = {}
    while len(found) < count:
        person = Person(draw.one(FIRST), draw.one(LAST))
        found[person.account] = person
    return list(found.values())
