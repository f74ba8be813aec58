"""Plain data, as YAML and JSON hold it, and the typed records that are built from it."""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml


class ConfigError(ValueError):
    """A configuration is not accepted; the message names the key, what was given and what is accepted."""


_MOST_LEVELS = 32  # of a value inside another


def parse_yaml(text: str) -> Any:
    """Read plain data, which an anchor may not make endless.

    Raises:
        ValueError: If it cannot be read; the message is one line.
    """
    try:
        data = yaml.safe_load(text)
        _check_levels(data, _MOST_LEVELS)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: such as a date that does not exist
        raise ValueError(f"is not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ValueError(f"has more than {_MOST_LEVELS} levels, or an anchor that holds itself") from error
    return data


def _check_levels(value: Any, left: int) -> None:
    if not left:
        raise RecursionError
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_levels(entry, left - 1)


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        ConfigError: If its content is not accepted.
        OSError: If it cannot be read.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error}).") from error
    except ValueError as error:
        raise ConfigError(f"{path} {error}.") from error


def json_lines(path: Path) -> Iterator[Mapping[str, Any] | None]:
    """The objects of a JSON-lines file, None for a line that is none; a last line cut short is left out."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                yield row
            elif line.endswith(b"\n"):
                yield None


def build(kind: Any, value: Any, where: str, default: Any = None) -> Any:
    """Check plain data against a type and turn it into an instance.

    Args:
        kind: A dataclass whose fields all have defaults, or the type of one.
        value: Plain data.
        where: What it is called in errors.
        default: For a dataclass, the instance that keys which are not given are taken from.

    Raises:
        ConfigError: If it is not accepted.
    """
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise ConfigError(f"{where or 'the configuration'} must be a mapping, not {value!r}.")
        hints = typing.get_type_hints(kind)
        names = [entry.name for entry in dataclasses.fields(kind)]
        prefix = f"{where}." if where else ""
        for key in value:
            if key not in names:
                near = difflib.get_close_matches(str(key), names, n=1)
                hint = f" Did you mean {prefix}{near[0]}?" if near else ""
                raise ConfigError(f"unknown key {prefix}{key}; accepted are {', '.join(names)}.{hint}")
        start = kind() if default is None else default
        given = {key: build(hints[key], entry, f"{prefix}{key}", getattr(start, key)) for key, entry in value.items()}
        return dataclasses.replace(start, **given)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for option in args:
            try:
                return build(option, value, where)
            except ConfigError:
                continue
        raise ConfigError(f"{where}={value!r} is not accepted; give one of: {_named(kind)}.")
    if origin is Literal:
        if value in args:
            return value
        raise ConfigError(f"{where}={value!r} is not accepted; give one of: {', '.join(map(str, args))}.")
    if origin is tuple and isinstance(value, list | tuple):
        kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
        if len(kinds) != len(value):
            raise ConfigError(f"{where} takes {len(kinds)} values, not {value!r}.")
        return tuple(build(kind, entry, where) for kind, entry in zip(kinds, value, strict=True))
    if origin is list and isinstance(value, list):
        return [build(args[0], entry, where) for entry in value]
    if origin is dict and isinstance(value, dict):
        return value
    if kind is float and isinstance(value, str):  # YAML reads 5e-5 as a string
        try:
            return float(value)
        except ValueError:
            pass
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise ConfigError(f"{where}={value!r} is not accepted; give {_named(kind)}.")


def _named(kind: Any) -> str:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(map(_named, typing.get_args(kind)))
    return getattr(kind, "__name__", str(kind))


def plain(value: Any) -> Any:
    """Return the same as mappings and lists, as YAML and `build` take them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value
