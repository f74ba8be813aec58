"""The actions: what agents may write, and what is not theirs to say."""

from __future__ import annotations

from agentgym_envs.verbs import quoted, template

STOP_WORDS = ("a", "an", "the")  # the simulator drops them


def look_around() -> str:
    """Describe the room; takes no time.

    Examples:
        look around
    """
    return "look around"


def look_at(object: str) -> str:
    """Describe an object.

    Examples:
        look at thermometer
    """
    return f"look at {object}"


def look_in(container: str) -> str:
    """List what is in a container.

    Examples:
        look in cupboard
    """
    return f"look in {container}"


def read(object: str) -> str:
    """Read a note or a book.

    Examples:
        read recipe in kitchen
    """
    return f"read {object}"


def inventory() -> str:
    """List what you carry; takes no time.

    Examples:
        inventory
    """
    return "inventory"


def task() -> str:
    """Repeat the task; takes no time.

    Examples:
        task
    """
    return "task"


def go_to(place: str) -> str:
    """Go to an adjacent room, whose door must be open.

    Examples:
        go to kitchen
    """
    return f"go to {place}"


def open(object: str) -> str:
    """Open a door or a container.

    Examples:
        open door to kitchen
    """
    return f"open {object}"


def close(object: str) -> str:
    """Close a door or a container.

    Examples:
        close freezer
    """
    return f"close {object}"


def activate(device: str) -> str:
    """Switch a device on.

    Examples:
        activate stove
    """
    return f"activate {device}"


def deactivate(device: str) -> str:
    """Switch a device off.

    Examples:
        deactivate sink
    """
    return f"deactivate {device}"


def pick_up(object: str) -> str:
    """Put an object into your inventory.

    Examples:
        pick up metal pot
    """
    return f"pick up {object}"


def put_down(object: str) -> str:
    """Put an object from your inventory down in the room.

    Examples:
        put down metal pot
    """
    return f"put down {object}"


def move(object: str, place: str) -> str:
    """Move an object to a container or a place.

    Examples:
        move metal pot to stove
    """
    return f"move {object} to {place}"


def pour(liquid: str, container: str) -> str:
    """Pour a liquid, or what is in a container, into another one.

    Examples:
        pour cup containing red paint into bowl
    """
    return f"pour {liquid} into {container}"


def dunk(object: str, liquid: str) -> str:
    """Dip a container into a liquid.

    Examples:
        dunk cup into water
    """
    return f"dunk {object} into {liquid}"


def mix(container: str) -> str:
    """Mix what is in a container.

    Examples:
        mix cup
    """
    return f"mix {container}"


def use(tool: str, object: str) -> str:
    """Use a tool or an instrument on an object.

    Examples:
        use thermometer in inventory on water
    """
    return f"use {tool} on {object}"


def connect(object: str, other: str) -> str:
    """Connect two electrical terminals or components.

    Examples:
        connect battery anode to red wire terminal 1
    """
    return f"connect {object} to {other}"


def disconnect(object: str) -> str:
    """Undo the connections of an electrical component.

    Examples:
        disconnect red wire
    """
    return f"disconnect {object}"


def eat(food: str) -> str:
    """Eat something.

    Examples:
        eat apple
    """
    return f"eat {food}"


def flush(object: str) -> str:
    """Flush a toilet.

    Examples:
        flush toilet
    """
    return f"flush {object}"


def focus_on(object: str) -> str:
    """Declare the object that a step of the task is about; a wrong one fails the task at once.

    Examples:
        focus on substance in metal pot
    """
    return f"focus on {object}"


def wait() -> str:
    """Let ten units of time pass.

    Examples:
        wait
    """
    return "wait"


def wait1() -> str:
    """Let one unit of time pass.

    Examples:
        wait1
    """
    return "wait1"


def teleport_to(place: str) -> str:
    """Go to any room at once (only with the simplification `teleportAction`).

    Examples:
        teleport to kitchen
    """
    return f"teleport to {place}"


VERBS = (
    look_around,
    look_at,
    look_in,
    read,
    inventory,
    task,
    go_to,
    open,
    close,
    activate,
    deactivate,
    pick_up,
    put_down,
    move,
    pour,
    dunk,
    mix,
    use,
    connect,
    disconnect,
    eat,
    flush,
    focus_on,
    wait,
    wait1,
)
ELECTRICAL = (connect, disconnect)
ACCEPTED = "; ".join(template(verb) for verb in VERBS)


def normal(action: str) -> str:
    """Return the action in small letters, with single spaces and without a final full stop."""
    return " ".join(action.lower().removesuffix(".").split())


def refusal(action: str) -> str:
    """Say why the simulator is not even asked, or nothing where it is."""
    if not action:
        return f"There is no action. Accepted are: {ACCEPTED}."
    if "\n" in action:
        return f"Could not execute {quoted(action)}: write one action on one line."
    words = [word for word in normal(action).split() if word not in STOP_WORDS]
    if "".join(words).startswith("resettask"):
        return f"Could not execute {quoted(action)}: the task cannot be set back."
    return ""
