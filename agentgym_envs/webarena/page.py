"""From Chromium's accessibility tree to the text that agents read, one line a node."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_SPACE = re.compile("[\\s\ue000-\uf8ff]+")  # and what fonts use for pictures
_MAX_DEPTH = 250  # only a script nests deeper, and deep ones would exhaust the stack
CUT_MARKER = "[the page goes on: {} more lines]"

# Nodes that say nothing themselves: their children stand in their place.
_TRANSPARENT = {"generic", "none", "paragraph", "LabelText", "Legend", "MenuListPopup", "rowgroup", "Section"}
# Of the same line of text as their neighbours.
_INLINE = {"emphasis", "strong", "code", "mark", "time", "subscript", "superscript", "insertion", "deletion", "Abbr"}
# Tables that only arrange things.
_LAYOUT = {"LayoutTable", "LayoutTableRow", "LayoutTableCell"}
_DROPPED = {"InlineTextBox", "ListMarker", "LineBreak", "Ruby"}
# What these hold is their value.
_LEAVES = {"textbox", "searchbox", "spinbutton", "slider", "progressbar", "meter", "Date", "DateTime", "InputTime"}
# Named by what is in them.
_NAMED_BY_CONTENT = {
    *("link", "button", "heading", "option", "tab", "menuitem", "menuitemcheckbox", "menuitemradio", "tooltip"),
    *("checkbox", "radio", "switch", "treeitem", "DisclosureTriangle", "cell", "gridcell", "columnheader", "rowheader"),
}
# Lines of their own only where they hold more than one thing.
_ITEMS = {"listitem", "definition", "term", "caption", "DescriptionListDetail", "DescriptionListTerm"}
_CELLS = {"cell", "gridcell", "columnheader", "rowheader"}
_TEXT = "StaticText"
_PICTURES = {"image", "img", "SvgRoot"}
# Property -> the value that goes without saying.
_STATES = {
    "checked": "",
    "pressed": "",
    "expanded": "",
    "selected": "false",
    "disabled": "false",
    "required": "false",
    "readonly": "false",
    "invalid": "false",
    "focused": "false",
}


class Element(NamedTuple):
    """What an id stands for.

    Attributes:
        node: Chromium's number of the node, valid as long as the page stays.
        role: Its role.
        name: Its name.
        frame: Chromium's number of the inner frame that it is in; 0 for the page itself.
    """

    node: int
    role: str
    name: str
    frame: int = 0


class View(NamedTuple):
    """A page as text.

    Attributes:
        text: One line a node.
        elements: What the ids that the text shows stand for.
    """

    text: str
    elements: Mapping[int, Element]


@dataclass(slots=True)
class _Node:
    element: Element
    states: str = ""
    children: list[_Node] = field(default_factory=list)
    id: int = 0


def read(
    tree: Sequence[Mapping[str, Any]],
    shown_as: Callable[[str], str],
    visible: Set[int] | None = None,
    max_chars: int = 1 << 20,
    frames: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
) -> View:
    """Write an accessibility tree as text.

    The ids count the nodes of the whole page in the order of the document, so they depend on the page alone,
    and do not change when only a part of it is shown.

    Args:
        tree: The nodes that `Accessibility.getFullAXTree` returned.
        shown_as: How names and values are shown (hosts are replaced by the names of the sites).
        visible: Chromium's numbers of the nodes that are shown, or None for all.
        max_chars: Largest length of the text; where it would be longer, it ends with a marker.
        frames: Trees of the inner frames, by Chromium's number of the node that holds each.
    """
    if not tree:
        return View("", {})
    roots = _Builder(shown_as, frames or {}).of_document(tree)
    for number, node in enumerate(_walk(roots), start=1):
        node.id = number
    lines = list(_lines(roots, visible, 0))
    elements: dict[int, Element] = {}
    kept: list[str] = []
    length = 0
    for number, (line, node) in enumerate(lines):
        length += len(line) + 1
        if length > max_chars:
            kept.append(CUT_MARKER.format(len(lines) - number))
            break
        kept.append(line)
        elements[node.id] = node.element
    return View("\n".join(kept), elements)


def is_frame(node: Mapping[str, Any]) -> bool:
    """Whether a node holds an inner frame."""
    return _value(node.get("role")) in ("Iframe", "IframePresentational")


def quote(text: str) -> str:
    """Return a text in quotes, on one line."""
    plain = " ".join(text.split())
    if "'" in plain and '"' not in plain:
        return f'"{plain}"'
    return "'" + plain.replace("\\", "\\\\").replace("'", "\\'") + "'"


class _Builder:
    """Makes of accessibility trees what is shown of them."""

    def __init__(self, shown_as: Callable[[str], str], frames: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        self._shown_as = shown_as
        self._frames = frames
        self._frame = 0
        self._by_id: Mapping[str, Mapping[str, Any]] = {}

    def of_document(self, tree: Sequence[Mapping[str, Any]], frame: int = 0, depth: int = 0) -> list[_Node]:
        """Return what is shown of a page, or of an inner frame with this number."""
        outer = self._frame, self._by_id
        self._frame, self._by_id = frame, {node["nodeId"]: node for node in tree}
        try:
            return self._of_node(tree[0], depth)
        finally:
            self._frame, self._by_id = outer

    def _of_node(self, node: Mapping[str, Any], depth: int) -> list[_Node]:
        """Return what is shown of a node: itself with its children, its children alone, or nothing."""
        role = _value(node.get("role"))
        if role in _DROPPED or depth > _MAX_DEPTH:
            return []
        name = self._shown_as(_value(node.get("name")))
        if role == "generic" and _property(node, "editable") and _property(node, "focusable"):
            role = "textbox"  # an editor of rich text
        hidden = node.get("ignored", False) or role in _LAYOUT or (role in _TRANSPARENT and not name.strip())
        children: list[_Node] = []
        if hidden or role not in _LEAVES:
            children = self._children(node, depth)
        if hidden or (role in _INLINE and not name.strip()):
            return children
        if role == _TEXT:
            return [self._node(node, role, name)] if name.strip() else []
        name = name.strip()
        if role == "row":
            name = ""
        if role in _NAMED_BY_CONTENT:
            only_text = all(child.element.role in (_TEXT, *_PICTURES) and not child.children for child in children)
            if only_text and not name:
                name = " ".join(child.element.name.strip() for child in children)
            if only_text:
                children = [child for child in children if child.element.name.strip() not in name]
            elif role in _CELLS:
                name = ""
        if (role in _PICTURES and not name) or (role in _ITEMS and not name and len(children) == 1):
            return children
        return [self._node(node, role, name, children)]

    def _children(self, node: Mapping[str, Any], depth: int) -> list[_Node]:
        children: list[_Node] = []
        inner = self._frames.get(node.get("backendDOMNodeId", 0))
        if inner:
            children = self.of_document(inner, node["backendDOMNodeId"], depth + 1)
        for key in node.get("childIds", ()):
            if key in self._by_id:
                _join(children, self._of_node(self._by_id[key], depth + 1), self._by_id[key])
        return children

    def _node(self, node: Mapping[str, Any], role: str, name: str, children: Sequence[_Node] = ()) -> _Node:
        element = Element(node.get("backendDOMNodeId", 0), role, name, self._frame)
        return _Node(element, "" if role == _TEXT else _states(node, self._shown_as), list(children))


def _join(nodes: list[_Node], more: list[_Node], source: Mapping[str, Any]) -> None:
    """Append nodes; texts of one line become one."""
    inline = _value(source.get("role")) in (_TEXT, *_INLINE) and not source.get("ignored", False)
    last = nodes[-1] if nodes else None
    if inline and last is not None and len(more) == 1 and last.element.role == more[0].element.role == _TEXT:
        before, after = last.element.name, more[0].element.name
        # "<b>18</b>orders" is shown with a distance that only the style sheet knows of.
        space = " " if before[-1:].isalnum() and after[:1].isalnum() else ""
        last.element = last.element._replace(name=f"{before}{space}{after}")
    else:
        nodes.extend(more)


def _states(node: Mapping[str, Any], shown_as: Callable[[str], str]) -> str:
    given = {item["name"]: _value(item.get("value")) for item in node.get("properties", ())}
    states = [f"{name}: {given[name]}" for name, usual in _STATES.items() if name in given and given[name] != usual]
    if "level" in given and _value(node.get("role")) == "heading":
        states.insert(0, f"level: {given['level']}")
    value = _value(node.get("value"))
    if value and _value(node.get("role")) != "RootWebArea":
        states.insert(0, f"value: {quote(shown_as(value))}")
    if _value(node.get("role")) == "RootWebArea":
        return ""
    return "".join(f" {state}" for state in states)


def _property(node: Mapping[str, Any], name: str) -> str:
    return next((_value(item.get("value")) for item in node.get("properties", ()) if item["name"] == name), "")


def _lines(nodes: Sequence[_Node], visible: Set[int] | None, depth: int) -> Iterator[tuple[str, _Node]]:
    for node in nodes:
        below = list(_lines(node.children, visible, depth + 1))
        # Options of a closed list are nowhere on the screen; they are shown with the list.
        if visible is None or node.element.node in visible or below or node.element.role == "option":
            if node.element.role == "combobox" and visible is not None and node.element.node not in visible:
                continue
            name = f" {quote(node.element.name)}" if node.element.name else ""
            yield f"{'  ' * depth}[{node.id}] {node.element.role}{name}{node.states}", node
            yield from below


def _walk(nodes: Sequence[_Node]) -> Iterator[_Node]:
    for node in nodes:
        yield node
        yield from _walk(node.children)


def _value(holder: Mapping[str, Any] | None) -> str:
    value = "" if holder is None else holder.get("value", "")
    if isinstance(value, bool):
        return str(value).lower()
    return _SPACE.sub(" ", str(value))
