"""One simulated world in a Java process: the few calls that an episode takes, and the others on request."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_envs.core import Fault
from agentgym_envs.sciworld.bridge import BridgeError, Connection, JavaError, Ref
from agentgym_envs.sciworld.grammar import STOP_WORDS
from agentgym_envs.sciworld.jvm import Jvm
from agentgym_envs.sciworld.packages import THINGS, simulator_jar, things_with_hash_code
from agentgym_envs.sciworld.routes import PLACES, walk_past_everything

_NOT_UNDERSTOOD = "No known action matches that input."
_AMBIGUOUS = "Ambiguous request:"
_OPTION = re.compile(r"^(\d+):\t(.*)$", re.MULTILINE)
_PARAMETER = re.compile(r"(?:^|, )(\w+) -> ")
_PREPOSITIONS = ("to", "into", "in", "on")
_WITHOUT_NAMES = ("look around", "inventory", "task", "wait", "wait1")
_VERBS_WITH_TWO_NAMES = ("connect", "move", "pour", "dunk", "use")
_VERBS_OF_TWO_WORDS = ("look at", "look in", "pick up", "put down", "go to", "focus on", "teleport to")
_SEED_MASK = 0x5DEECE66D  # what java.util.Random.setSeed combines a seed with, as its documentation says
_STEPS_BETWEEN_CLEANINGS = 256
# The classes of past actions that goals look for (GoalPastAction... in scienceworld.tasks.goals.specificgoals).
_ACTIONS_OF_GOALS = tuple(f"scienceworld.actions.Action{name}@" for name in ("LookAt", "Read", "UseDevice"))
_MENU = "Ambiguous request: reply with the number of the action that you mean. Any other action drops the question."


class Variation(NamedTuple):
    """What the simulator is to load.

    Attributes:
        task: Its name of the task.
        number: Number of the variation.
        simplifications: Names, separated by commas.
    """

    task: str
    number: int
    simplifications: str = ""


class Reply(NamedTuple):
    """The simulator's answer to an action.

    Attributes:
        text: What the agent reads.
        score: From 0 to 1, or negative once the task has failed.
        completed: The simulator's own flag.
        understood: False if no action was meant by the text; then nothing has changed.
    """

    text: str
    score: float
    completed: bool
    understood: bool = True

    @property
    def solved(self) -> bool:
        """Whether the task is done, with everything that it asks for."""
        return self.completed and self.score >= 1.0

    @property
    def failed(self) -> bool:
        """Whether the task cannot be done any more."""
        return self.score < 0.0


class Simulator:
    """A simulated world, kept apart from the others of its Java process by a class loader of its own.

    The simulator keeps its random generator, its counter of objects and its simplifications in static fields.
    """

    def __init__(self, jvm: Jvm) -> None:
        """Load the simulator's classes once more.

        Raises:
            Fault: If the Java process died or the simulator cannot be loaded.
        """
        self._jvm = jvm
        self._menu: list[str] = []
        self._episode: tuple[Ref, ...] = ()
        self._knows_routes = False
        self._turn = threading.Lock()  # one thread at a time; held while Java is talked to
        self._given_up = False
        self._connection: Connection = jvm.connect()
        with self._talking():
            self._load_classes()

    @property
    def usable(self) -> bool:
        """Whether another episode can be played in it."""
        return self._jvm.alive and not self._connection.closed

    def hand_over(self) -> bool:
        """Whether another environment can have it; if a thread is still waiting for an answer, it gets none."""
        if self.usable and self._turn.locked():
            self._given_up = True
            self._jvm.disconnect(self._connection)
        return self.usable

    def begin(self, variation: Variation) -> tuple[str, Reply]:
        """Start an episode.

        Returns:
            The task's description, and the answer to a first look around.

        Raises:
            Fault: If the Java process died or the simulator refuses.
        """
        with self._talking():
            self._load(variation, gold_path=False)
            self._last = Reply("", 0.0, False)
            description: str = self._connection.call(self._agent, "getTaskDescription")
            return description, self._step("look around")

    def act(self, action: str) -> Reply:
        """Carry out an action, which may be the number of an option if the last answer was a menu.

        Raises:
            Fault: If the Java process died or the simulator broke.
        """
        with self._talking():
            if not self._menu:
                return self._step(action)
            if action.isascii() and action.isdecimal():
                if len(action) < 6 and int(action) < len(self._menu):
                    self._menu = []
                    return self._step(str(int(action)))
                told = f"There is no option {action}: the numbers go from 0 to {len(self._menu) - 1}."
                return self._last._replace(text=told, understood=False)
            # The simulator would take the action for an answer to its question, and drop it.
            menu, self._menu = self._menu, []
            matches = self._connection.call(self._parser, "lastAmbiguousMatches")
            self._connection.call(self._parser, "clearAmbiguousState")
            reply = self._step(action)
            if not reply.understood:
                self._menu = menu
                self._connection.call(self._parser, "lastAmbiguousMatches_$eq", matches)
            self._connection.release(matches)
            return reply

    @property
    def menu(self) -> list[str]:
        """The options that the agent is asked to choose from by number, if it is."""
        return list(self._menu)

    def valid_actions(self) -> list[str]:
        """Return what can be done now: what the simulator lists, as far as it understands it in one way.

        It also lists texts twice, texts with a name that two things have, and things in closed containers.
        Listing changes nothing, though the simulator draws random numbers for it.
        """
        with self._talking(), self._undisturbed():
            listed = self._lines(self._connection.call(self._server, "getValidActionObjectCombinations"))
            names = Counter(self._names())
        times = Counter(listed)
        return [
            action for action in listed if times[action] == 1 and (action in _WITHOUT_NAMES or _is_clear(action, names))
        ]

    def gold_path(self, variation: Variation) -> list[str]:
        """Let the simulator's own agent play, and return its actions; the episode that was running is lost."""
        with self._talking():
            if not self._knows_routes:
                self._teach_routes()
            self._load(variation, gold_path=True)
            return self._lines(self._connection.call(self._server, "getGoldActionSequence"))

    def trim(self, heap_mb: int) -> None:
        """Collect Java's garbage if its heap has grown beyond a size; by itself it would first grow to its cap."""
        with self._talking():
            if self._connection.call(self._runtime, "totalMemory") > heap_mb << 20:
                self._connection.call(self._runtime, "gc")

    def look(self) -> str:
        """Return what is around, at no time."""
        return _tidy(self._text("freeActionLook"))

    def inventory(self) -> str:
        """Return what the agent carries, at no time."""
        return _tidy(self._text("freeActionInventory"))

    def progress(self) -> str:
        """Return the simulator's table of the task's steps and which are done."""
        return self._text("getGoalProgressStr")

    def object_tree(self) -> dict[str, Any]:
        """Return everything that there is, in rooms and containers."""
        with self._talking(), tempfile.TemporaryDirectory() as folder:
            told = self._connection.call(self._server, "getObjectTree", folder)
            if told:
                raise Fault("simulator", f"there is no object tree: {told}")
            tree: dict[str, Any] = json.loads(Path(folder, "objectTree.json").read_text(encoding="utf-8"))
            return tree

    # ---- Java's side --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """Turn what goes wrong with the Java process into faults."""
        if not self._jvm.alive:  # in a forked process nobody would open the lock that a thread of the parent has
            raise self._jvm.broken(BridgeError("nothing can be asked"))
        with self._turn:
            try:
                yield
            except BridgeError as error:
                if self._given_up:
                    raise Fault("closed", "the environment was closed meanwhile") from error
                raise self._jvm.broken(error) from error
            except JavaError as error:
                raise Fault("simulator", f"the simulator threw {error}") from error

    def _load_classes(self) -> None:
        java = self._connection
        file = java.new("java.io.File", str(simulator_jar()))
        uri = java.call(file, "toURI")
        parent = java.call("java.lang.ClassLoader", "getPlatformClassLoader")
        urls = java.array("java.net.URL", java.call(uri, "toURL"))
        loader = java.new("java.net.URLClassLoader", urls, parent)

        def singleton(name: str) -> Ref:
            field = java.call(java.call(loader, "loadClass", f"{name}$"), "getField", "MODULE$")
            found: Ref = java.call(field, "get", None)
            return found

        self._runtime: Ref = java.call("java.lang.Runtime", "getRuntime")
        # A class of the same package and loader, since only from one of those another may be defined.
        neighbour = java.call(loader, "loadClass", f"{THINGS}$")
        lookup = java.call("java.lang.invoke.MethodHandles", "lookup")
        inside = java.call("java.lang.invoke.MethodHandles", "privateLookupIn", neighbour, lookup)
        java.release(java.call(inside, "defineClass", things_with_hash_code()), inside, lookup, neighbour)
        server = java.call(loader, "loadClass", "scienceworld.runtime.pythonapi.PythonInterface")
        self._server: Ref = java.call(server, "newInstance")
        self._ids = singleton("util.UniqueIdentifier")
        self._routes: Ref = java.call(singleton("scienceworld.goldagent.PathFinder"), "precomputedExhaustivePaths")
        self._random: Ref = java.call(singleton("scala.util.Random"), "self")
        # What is in a thing, as the simulator itself keeps it; its public method returns a copy.
        thing = java.call(loader, "loadClass", THINGS)
        self._contents: Ref = java.call(thing, "getDeclaredField", "containedObjects")
        java.call(self._contents, "setAccessible", True)
        java.release(thing)
        self._random_state: Ref = java.call(java.call(self._random, "getClass"), "getDeclaredField", "seed")
        java.call(self._random_state, "setAccessible", True)

    def _teach_routes(self) -> None:
        """Fill the table in which the simulator's agent keeps its walks through the building, by their start."""
        java = self._connection
        ways = {to: java.array("java.lang.String", f"open door to {to}", f"go to {to}") for to in PLACES}
        for start in PLACES:
            walk = java.array("[Ljava.lang.String;", *(ways[place] for place in walk_past_everything(start)))
            java.call(self._routes, "update", start, walk)
            java.release(walk)
        java.release(*ways.values())
        self._knows_routes = True

    def _load(self, variation: Variation, gold_path: bool) -> None:
        java = self._connection
        java.release(*self._episode)
        self._episode, self._menu, self._steps, self._actions_seen = (), [], 0, 0
        task, number, simplifications = variation
        told = java.call(self._server, "load", task, number, simplifications, gold_path)
        if told:
            raise Fault("simulator", f"the simulator cannot load {task}, variation {number}: {told}")
        option = java.call(self._server, "agentInterface")
        self._agent: Ref = java.call(option, "get")
        self._parser: Ref = java.call(self._agent, "inputParser")
        self._episode = (option, self._agent, self._parser)

    def _step(self, action: str) -> Reply:
        """Step the agent, not the server: that one also looks around and records all of it in each step."""
        java = self._connection
        self._steps += 1
        if self._steps % _STEPS_BETWEEN_CLEANINGS == 0:
            self._forget()
        try:
            result = java.call(self._agent, "step", action)
        except JavaError as error:  # while it read the text: what an action does is guarded in there
            return self._last._replace(text=f"The simulator cannot read that ({error}).", understood=False)
        told, broken = java.calls((result, "toString"), (self._agent, "isInErrorState"), release=[result])
        if broken:
            raise Fault("simulator", f"the simulator broke: {java.call(self._agent, 'getErrorStateMessage')}")
        text, score, completed = told[1:-1].rsplit(",", 2)
        understood = text != _NOT_UNDERSTOOD
        if text.startswith(_AMBIGUOUS):
            self._menu = self._options(text)
            text = "\n".join([_MENU, *(f"{number}: {option}" for number, option in enumerate(self._menu))])
        self._last = Reply(text, float(score), completed == "true", understood)
        return self._last

    def _forget(self) -> None:
        """Take out of the world what nobody can see any more, but each step adds to: it would grow without end."""
        java = self._connection
        universe = java.call(self._agent, "universe")
        contents = java.call(universe, "getContainedObjects", True)
        places = java.call(contents, "iterator")
        while java.call(places, "hasNext"):
            place = java.call(places, "next")
            if java.call(place, "name") == "sewer":
                self._empty(place)
            java.release(place)
        java.release(places, contents, universe)
        self._shorten_histories()

    def _empty(self, sewer: Ref) -> None:
        """Take out all but the sewer's own parts.

        Nobody can go there and nothing comes back, but the simulator keeps each unit of water that left a sink, and
        each makes its ticks slower.
        """
        java = self._connection
        contents = java.call(self._contents, "get", sewer)
        java.call(contents, "clear")
        java.release(contents)
        for part in ("terminal1", "terminal2"):
            option = java.call(sewer, part)
            terminal = java.call(option, "get")
            java.call(sewer, "addObject", terminal)
            java.release(terminal, option)

    def _shorten_histories(self) -> None:
        """Drop past actions, which hold the things that they were done to, but for those that goals ask for.

        The simulator keeps two lists of them. Of one it reads the last entry only. In the other, goals remember
        positions, so what is dropped leaves a gap.
        """
        java = self._connection
        handler = java.call(self._agent, "actionHandler")
        actions = java.call(handler, "actionHistory")
        java.call(actions, "clear")
        java.release(actions, handler)
        agent = java.call(self._agent, "agent")
        actions = java.call(agent, "actionHistory")
        size = java.call(actions, "size")
        new = java.call(actions, "slice", self._actions_seen, size)
        names = java.call(new, "mkString", "\n").splitlines()
        gaps = [self._actions_seen + at for at, name in enumerate(names) if not name.startswith(_ACTIONS_OF_GOALS)]
        java.each(actions, "update", *((position, None) for position in gaps))
        self._actions_seen = size
        java.release(actions, new, agent)

    def _options(self, text: str) -> list[str]:
        """Return the options of a menu; those of the same text get the objects' descriptions, else a number."""
        options = [option.strip() for _, option in _OPTION.findall(text)]
        if len(set(options)) == len(options):
            return options
        java = self._connection
        holder = java.call(self._parser, "lastAmbiguousMatches")
        matches = java.call(holder, "get")
        described = [
            option if options.count(option) == 1 else f"{option}: {self._described(java.item(matches, index))}"
            for index, option in enumerate(options)
        ]
        java.release(holder, matches)  # they hold the world, which would outlive its episode
        return [_numbered(described, index) for index in range(len(described))]

    def _described(self, match: Ref) -> str:
        """Return the descriptions of the objects that an option means."""
        java = self._connection
        objects = java.call(match, "varLUT")
        names = _PARAMETER.findall(java.call(objects, "mkString", ", "))
        things = [java.call(objects, "apply", name) for name in names if name != "agent"]
        described = ", ".join(java.call(thing, "getDescription", 0) for thing in things)
        java.release(match, objects, *things)
        return described

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Put back afterwards what the listing of actions changes: random numbers, the next id, an open menu."""
        java = self._connection
        state = java.call(self._random_state, "get", self._random)
        next_id = java.call(self._ids, "count")
        matches = None
        if self._menu:
            matches = java.call(self._parser, "lastAmbiguousMatches")
            java.call(self._parser, "clearAmbiguousState")
        yield
        java.call(self._random, "setSeed", state ^ _SEED_MASK)
        java.call(self._ids, "count_$eq", next_id)
        if matches is not None:
            java.call(self._parser, "lastAmbiguousMatches_$eq", matches)
            java.release(matches)

    def _names(self) -> list[str]:
        """Return every name of every thing that can be reached, one thing after the other."""
        java = self._connection
        agent = java.call(self._agent, "agent")
        option = java.call(agent, "getContainer")
        room = java.call(option, "get")
        carried = java.call(agent, "getInventoryContainer")
        arrays = [java.call(self._parser, "getPossibleReferents", root, room) for root in (room, carried)]
        names = [name for array in arrays for name in java.items(array)]
        java.release(agent, option, room, carried, *arrays)
        return names

    def _lines(self, strings: Ref) -> list[str]:
        """Return a Java list of strings, in one call whatever its length."""
        joined: str = self._connection.call("java.lang.String", "join", "\n", strings)
        self._connection.release(strings)
        return joined.split("\n") if joined else []

    def _text(self, method: str) -> str:
        with self._talking():
            text: str = self._connection.call(self._server, method)
            return text


def _is_clear(action: str, names: Mapping[str, int]) -> bool:
    """Whether an action is a verb with the names of things of which each can be reached and is the only one so named.

    Args:
        action: What the simulator lists.
        names: How many things that can be reached have a name.
    """
    words = [word for word in action.split() if word not in STOP_WORDS]
    if words[0] in _VERBS_WITH_TWO_NAMES:
        readings = [[words[1:at], words[at + 1 :]] for at, word in enumerate(words) if word in _PREPOSITIONS]
    else:
        readings = [[words[2 if " ".join(words[:2]) in _VERBS_OF_TWO_WORDS else 1 :]]]
    counts = [[names.get(" ".join(part), 0) for part in reading] for reading in readings]
    possible = [numbers for numbers in counts if all(numbers)]
    return len(possible) == 1 and max(possible[0]) == 1


def _tidy(text: str) -> str:
    """Return the text as an answer to an action would have it."""
    return re.sub(" +", " ", text.strip())


def _numbered(options: Sequence[str], index: int) -> str:
    alike = [other for other, option in enumerate(options) if option == options[index]]
    return options[index] if len(alike) == 1 else f"{options[index]} ({alike.index(index) + 1} of {len(alike)} alike)"
