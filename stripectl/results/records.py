"""Typed records and their JSON, by cattrs. A record is read once, where it enters the program; all later code can rely
on its types.

Plans, targets, tiles and workloads are values in a record, and text or a mapping in JSON. A field that JSON does not
have takes its default. A field that the record does not have is ignored, so an older stripectl reads newer files. The
field `passes` of a record is `pass` in JSON, which no Python name can be. A reason is its text, followed by `kind` and
`advice`.
"""

import functools
import itertools
import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args, get_origin

from stripectl.core.layout import Tile, parse_tile
from stripectl.core.linear_attention import PER_HEAD
from stripectl.core.plan import Plan, read_plan
from stripectl.core.reason import Reason, ReasonKind
from stripectl.core.workload import Workload
from stripectl.hardware.target import TargetName, read_target
from stripectl.results.schema import is_number
from stripectl.util.json import Json, JsonObject, is_mapping, is_sequence

if TYPE_CHECKING:
    from cattrs import Converter

Record = TypeVar("Record")
Amount = Annotated[float, "zero or more"]
Count = Annotated[int, "zero or more"]
Error = Annotated[float, "may be infinite or no number"]
INLINE = "its fields are written into the JSON of the record that has it"


class Sparse:
    """A record whose JSON omits fields with their default values."""


def read_record(kind: type[Record], content: object) -> Record:
    """A record from its JSON.

    Raises:
        TypeError: it is not a record of this kind; the message names the field.
    """
    try:
        return converter().structure(content, kind)
    except Exception as error:  # read again, by a converter that is slower and knows where it is
        raise TypeError(_why_unread(kind, content) or str(error)) from error


def _why_unread(kind: type[Any], content: object) -> str:
    from cattrs import BaseValidationError, transform_error

    try:
        converter(says_where=True).structure(content, kind)
    except BaseValidationError as error:
        return transform_error(error, format_exception=lambda reason, _: _reason(reason))[0]
    except Exception as error:  # of a record as a whole
        return _reason(error)
    return ""


def _reason(error: BaseException) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def record_json(record: object) -> JsonObject:
    """The JSON of a record."""
    return converter().unstructure(record)


@functools.cache
def converter(says_where: bool = False) -> "Converter":
    """The converter of all records."""
    from cattrs import Converter  # only where a record is read or written
    from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

    made = Converter(detailed_validation=says_where)

    def names(kind: type[Any]) -> dict[str, Any]:
        return {"passes": override(rename="pass")} if any(each.name == "passes" for each in fields(kind)) else {}

    def structured(kind: type[Any]) -> Any:
        read = make_dict_structure_fn(kind, made, **names(kind))
        if inline := inline_fields(kind):
            read = functools.partial(_read_inline, read, inline)
        return functools.partial(_read_with_reason, read) if _has_reason(kind) else read

    def unstructured(kind: type[Any]) -> Any:
        sparse = issubclass(kind, Sparse)
        write = make_dict_unstructure_fn(kind, made, _cattrs_omit_if_default=sparse, **names(kind))
        if inline := inline_fields(kind):
            write = functools.partial(_write_inline, write, inline)
        return functools.partial(_write_with_reason, write) if _has_reason(kind) else write

    made.register_structure_hook_factory(_is_list_type, functools.partial(_list_reader, made))
    made.register_structure_hook_factory(_is_mapping_type, functools.partial(_mapping_reader, made))
    for kind, reader in {float: number, int: whole_number, str: text, bool: truth}.items():
        made.register_structure_hook(kind, reader)
    for kind, reader in {Amount: amount, Count: count, Error: error_figure}.items():
        made.register_structure_hook_func(functools.partial(_is_kind, kind), reader)
    made.register_structure_hook_factory(is_dataclass, structured)
    made.register_unstructure_hook_factory(is_dataclass, unstructured)
    for kind, reader in {Plan: read_plan, TargetName: read_target, Tile: parse_tile}.items():
        made.register_structure_hook(kind, lambda value, _, reader=reader: reader(text(value)))
        made.register_unstructure_hook(kind, str)
    made.register_structure_hook(Reason, lambda value, _: value if isinstance(value, Reason) else read_reason(value))
    made.register_unstructure_hook(Reason, str)
    made.register_structure_hook(Workload, lambda value, _: read_workload(json.dumps(value)))
    made.register_unstructure_hook(Workload, lambda value: dict(workload_json(value)))
    return made


def inline_fields(kind: type[Any]) -> frozenset[str]:
    """The fields of a record that are records whose fields are written into its JSON."""
    return frozenset(each.name for each in fields(kind) if INLINE in getattr(each.type, "__metadata__", ()))


def _read_inline(read: Callable[[Any, Any], Any], inline: frozenset[str], content: Any, kind: Any) -> Any:
    return read({**content, **dict.fromkeys(inline, content)} if is_mapping(content) else content, kind)


def _write_inline(write: Callable[[Any], JsonObject], inline: frozenset[str], record: Any) -> JsonObject:
    found = dict[str, Json]()
    for name, value in write(record).items():
        found |= cast(JsonObject, value) if name in inline else {name: value}
    return found


def _has_reason(kind: type[Any]) -> bool:
    return any(each.type == Reason | None for each in fields(kind))


def _read_with_reason(read: Callable[[Any, Any], Any], content: Any, kind: Any) -> Any:
    """A record whose `reason`, `kind` and `advice` are one value."""
    if is_mapping(content) and content.get("reason") is not None:
        said = (content.get(name) for name in ("reason", "kind", "advice"))
        content = {**content, "reason": read_reason(*said)}
    return read(content, kind)


def _write_with_reason(write: Callable[[Any], JsonObject], record: Any) -> JsonObject:
    """The JSON of a record, with `kind` and `advice` after `reason`."""
    why: Reason | None = record.reason
    found = dict[str, Json]()
    for name, value in write(record).items():
        found[name] = value
        if name == "reason":
            found |= {"kind": why and why.kind.value, "advice": why and (why.advice or None)}
    return found


def read_reason(said: Any, kind: Any = None, advice: Any = None) -> Reason:
    """A reason from its text, and its kind and advice, which runs of older schemas do not have. A kind of a newer
    stripectl is not known."""
    known = next((each for each in ReasonKind if each == kind), ReasonKind.UNKNOWN)
    fact, end = text(said), f". {text(advice or '')}"
    return Reason(known, fact.removesuffix(end), advice) if advice and fact.endswith(end) else Reason(known, fact)


def _is_list_type(kind: object) -> bool:
    return get_origin(kind) in (tuple, list)


def _is_mapping_type(kind: object) -> bool:
    return get_origin(kind) is Mapping


def _list_reader(made: "Converter", kind: Any) -> Callable[[object, object], object]:
    """The reader of a list type: it ends at the first wrong part, and a text is no list of characters, because a file
    of a stranger may have a million of either."""
    parts = get_args(kind)
    whole = cast(Callable[[list[Any]], object], get_origin(kind))
    repeated = whole is list or parts[-1] is Ellipsis

    def read(value: object, _: object) -> object:
        if not is_sequence(value):
            raise TypeError(f"{reprlib.repr(value)} is not a list")
        if not repeated and len(value) != len(parts):
            raise TypeError(f"a list has {len(value)} parts, not {len(parts)}")
        readers = [(made.get_structure_hook(part), part) for part in parts if part is not Ellipsis]
        return whole(_read_parts(kind, value, itertools.cycle(readers) if repeated else readers, range(len(value))))

    return read


def _mapping_reader(made: "Converter", kind: Any) -> Callable[[object, object], object]:
    """The reader of a mapping type with texts as names; it ends at the first wrong part."""
    _, part = get_args(kind)

    def read(value: object, _: object) -> Any:
        if not is_mapping(value):
            raise TypeError(f"{reprlib.repr(value)} is not a mapping")
        names = list(map(text, value))
        readers = itertools.repeat((made.get_structure_hook(part), part))
        return dict(zip(names, _read_parts(kind, value.values(), readers, names), strict=True))

    return read


def _read_parts(
    kind: Any, parts: Iterable[object], readers: Iterable[tuple[Any, Any]], names: Sequence[int | str]
) -> list[Any]:
    """The parts as records, up to the first wrong one, which is an error that cattrs can locate."""
    found = list[Any]()
    try:
        for part, (reader, own) in zip(parts, readers, strict=False):
            found.append(reader(part, own))
    except Exception as error:
        from cattrs.errors import IterableValidationError, IterableValidationNote

        error.add_note(IterableValidationNote("", names[len(found)], kind))
        raise IterableValidationError("", [error], kind) from None  # pyright: ignore[reportCallIssue]
    return found


def _is_kind(kind: object, other: object) -> bool:
    return kind == other


def number(value: Any, _: object = None) -> float:
    if isinstance(value, int | float) and is_number(abs(value)):
        return value
    raise TypeError(f"{reprlib.repr(value)} is not a number")


def amount(value: Any, _: object = None) -> float:
    if is_number(value):
        return value
    raise TypeError(f"{reprlib.repr(value)} is not a number of zero or more")


def whole_number(value: Any, _: object = None) -> int:
    if isinstance(value, int | float) and is_number(abs(value)) and value == int(value):
        return int(value)
    raise TypeError(f"{reprlib.repr(value)} is not a whole number")


def count(value: Any, _: object = None) -> int:
    return whole_number(amount(value))


def error_figure(value: Any, _: object = None) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise TypeError(f"{reprlib.repr(value)} is not an error")


def text(value: Any, kind: type[str] = str) -> str:
    """A text, or the member of an enumeration of texts."""
    if isinstance(value, str):
        return value if kind is str else kind(value)
    raise TypeError(f"{reprlib.repr(value)} is not a string")


def truth(value: Any, _: object = None) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError(f"{reprlib.repr(value)} is not true or false")


@functools.lru_cache(4096)  # measurements of a run share their workloads
def read_workload(text: str) -> Workload:
    """A workload from the text of its JSON, in this schema or an older one.

    Raises:
        BadInput, KeyError, TypeError, ValueError: it is not one.
    """
    content = json.loads(text)
    if content.get("decay") == "tnl":  # in schema `stripectl.run/1`
        content["decay"] = PER_HEAD
    return Workload.from_json(content)


@functools.lru_cache(4096)
def workload_json(workload: Workload) -> JsonObject:
    """The JSON of a workload; callers must not change it."""
    return workload.to_json()
