"""A plan says how a workload is computed: scheme/layout/kernel@mesh,tile,options.

    ring/striped/xla@ring=8,tensor=2,tile=2048x4096,unroll=2

Plans print and parse. A text may omit the layout and the kernel, which are then still to be chosen (`costs.defaults`);
omitted options have defaults. `backward=512x1024` is the tile of the backward pass where it differs from the tile of
the forward pass. `chunk`, `remat`, `offload`, `zero` and `softmax` apply only to a training step. `chunk` is the number
of a device's rows that feed-forward and loss compute at once; `remat` says which values are kept for the backward pass,
by a word or by names (`remat=query+context`); `offload` names values that wait in the host's memory
(`offload=inputs+query`); `zero` says which parts of a parameter the devices of `fsdp` and of the sequence share. For a
model with linear and softmax layers, the plan's own scheme, kernel and tiles are for the linear layers, and `softmax`
gives the softmax layers theirs (`softmax=all_gather/xla/512x1024`), or also another layout (`softmax=ring/zigzag/xla`):
hidden states then move between layers of the two kinds. `states` says whether linear attention keeps the states that
shards exchanged for its backward pass, or exchanges them again. `parts` applies to schemes that can gather K/V in
parts. `validation.why_unsupported` says whether a plan can compute a workload, and if not, why.

The grammar has parts that nothing computes yet (`UNBUILT`): `sliding` and `chunked` for the layers with such a mask, as
`softmax`; `message`, the form in which latent attention sends keys and values; and `expert`, the devices that share
experts: an axis of its own (`expert=8`), or the devices of other axes (`expert=fsdp+ring`).
"""

import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypedDict, cast

from stripectl.core.kept import Kept
from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile, layouts, parse_tile
from stripectl.core.mesh import AXES, RING_AXES, SEQUENCE_AXES, STORED_AXES, make_mesh
from stripectl.core.scheme import Scheme, schemes
from stripectl.errors import BadInput
from stripectl.util.files import unknown_name

MAX_TILE_ROWS_COUNTED = 2**22
MAX_SHARDS = 2**10  # of a plan, because every pair of shards is counted
GRAMMAR = "scheme/layout/kernel@ring=8,tile=2048x4096,unroll=2"
DEFAULT_KERNELS = {"softmax": "xla", "scores": "dense", "linear": "chunked", "gated": "gated"}  # by family
DEFAULT_CHUNK = 1024  # rows: enough for a matrix unit, and their logits are 0.5 GiB at a vocabulary of 128k
WINDOW_SCHEME = "halo"  # of layers with shorter windows than others
HYBRID_SOFTMAX_SCHEME = "all_gather"  # of the softmax layers in a hybrid model (LASP-2H, arXiv:2502.07563)
# Values that a layer keeps for its backward pass: only its input; also the output of attention; also the results of
# matmuls with parameters; everything. Where parameters are sharded, gathered parameters are never kept.
REMAT = ("full", "attention", "dots", "none")
REMAT_NAMES = tuple(name for name in Kept if name != Kept.INPUTS)  # in place of a word of REMAT
STATE_OFFLOADED = ("optimizer", "parameters")  # between steps; nothing computes this yet
OFFLOADED = (*Kept, *STATE_OFFLOADED)
# The stage of ZeRO (Rajbhandari et al. 2020): parameters, gradients and the optimizer's state are sharded; only the
# optimizer's state is; nothing is.
ZERO = ("3", "1", "0")
STATES = ("kept", "recomputed")
# Options whose value is a word; the first word is the default.
WORD_OPTIONS = {"remat": REMAT, "zero": ZERO, "states": STATES}
DEFAULTS = {"unroll": 1, "parts": 1, "chunk": None, "offload": ""} | {
    key: words[0] for key, words in WORD_OPTIONS.items()
}
UNSHARDED = "unsharded"  # in place of a scheme
LAYER_OPTIONS = ("sliding", "chunked", "softmax")  # options whose value is the computation of some layers
LAYERS_APART = {"softmax": "softmax layers", "sliding": "layers with shorter windows"}  # the options in words
MESSAGES = ("heads", "latent", "absorbed")
UNBUILT = ("chunked", "message", "expert")  # parts that are parsed, printed and refused
TILE_OF_PASS = {"forward": "tile", "backward": "backward"}  # options whose value is a tile
TILE_OPTIONS = tuple(TILE_OF_PASS.values())
NUMBER_OPTIONS = {"unroll": 1, "chunk": 0, "parts": 1}  # options whose value is a number, and the smallest value


@dataclass(frozen=True)
class LayerPlan:
    """The computation of some layers of a model, on the mesh of its other layers: a hybrid model's softmax layers, or
    layers with windows. `layout` is None where they share the other layers' layout; with another layout, hidden states
    move between layers of the two kinds. `kernel` is empty where it is still to be chosen."""

    scheme: str
    kernel: str = ""
    tile: Tile | None = None
    backward: Tile | None = None
    layout: str | None = None

    def __str__(self) -> str:
        tiles = (str(tile) for tile in (self.tile, self.backward) if tile)
        return "/".join(filter(None, [self.scheme, self.layout, self.kernel, *tiles]))


@dataclass(frozen=True)
class Plan:
    """`layout` and `kernel` are empty, and `mesh` and `tile` None, where they are still to be chosen. `mesh` holds the
    axes with more than one device, in the order of AXES. `backward` None is the tile of the forward pass, `chunk` None
    the largest divisor of a shard's rows up to DEFAULT_CHUNK, and `chunk` 0 all rows."""

    scheme: str
    layout: str = ""
    kernel: str = ""
    mesh: tuple[tuple[str, int], ...] | None = None
    tile: Tile | None = None
    unroll: int = 1  # rounds per iteration of a rolled loop; with all rounds in one iteration no loop is left
    chunk: int | None = None
    remat: str = REMAT[0]  # a word of REMAT, or names of REMAT_NAMES
    offload: str = ""  # names of OFFLOADED
    zero: str = ZERO[0]
    states: str = STATES[0]
    backward: Tile | None = None
    parts: int = 1  # the number of parts in which K/V are gathered
    softmax: LayerPlan | None = None  # of the softmax layers of a model with linear layers
    sliding: LayerPlan | None = None  # of layers with a shorter window than other softmax layers
    unbuilt: tuple[str, ...] = ()  # parts that nothing computes yet, as texts, in the order of UNBUILT

    def __str__(self) -> str:
        one = [(axis, 1) for axis in schemes[self.scheme].axes[:1]] if self.mesh == () else []
        options = [f"{axis}={size}" for axis, size in [*(self.mesh or ()), *one]]
        if self.tile:
            options.append(f"tile={self.tile}")
        if self.backward and self.backward != self.tile:
            options.append(f"backward={self.backward}")
        options += self.changed_options
        if self.softmax:
            options.append(f"softmax={self.softmax}")
        if self.sliding:
            options.append(f"sliding={self.sliding}")
        options += self.unbuilt
        names = "/".join(filter(None, [self.scheme, self.layout, self.kernel]))
        return names + ("@" + ",".join(options) if options else "")

    @property
    def not_built(self) -> list[str]:
        """The parts of the plan that nothing computes yet, as texts."""
        return [*self.unbuilt, *(f"offload={name}" for name in STATE_OFFLOADED if name in self.offloaded)]

    @property
    def changed_options(self) -> list[str]:
        """The options with a number or a word other than the default, as texts."""
        return [f"{key}={value}" for key, usual in DEFAULTS.items() if (value := getattr(self, key)) != usual]

    @functools.cached_property
    def offloaded(self) -> frozenset[str]:
        """The names of the values that wait in the host's memory."""
        return frozenset(filter(None, self.offload.split("+")))

    @functools.cached_property
    def kept_by_name(self) -> frozenset[str]:
        """The names of a layer's values that are kept for its backward pass, on the device or the host."""
        kept = {"attention": [Kept.CONTEXT]}.get(self.remat, [] if self.remat in REMAT else self.remat.split("+"))
        return (self.offloaded | {*kept}) & {*Kept}

    @property
    def keeps_context(self) -> bool:
        """Whether the backward pass finds the output of attention."""
        return self.remat in ("dots", "none") or Kept.CONTEXT in self.kept_by_name

    @property
    def axes(self) -> dict[str, int]:
        return dict(self.mesh or ())

    def size(self, axis: str) -> int:
        return self.axes.get(axis, 1)

    def product(self, axes: Iterable[str]) -> int:
        sizes = self.axes
        return math.prod(sizes.get(axis, 1) for axis in axes)

    @functools.cached_property
    def devices(self) -> int:
        return self.product(AXES)

    @property
    def shards(self) -> int:
        """The number of shards into which the layout divides the sequence."""
        return self.product(RING_AXES)

    @property
    def sequence_devices(self) -> int:
        """The number of devices that hold a sequence."""
        return self.product((*SEQUENCE_AXES, *schemes[self.scheme].row_axes))

    @property
    def parameter_axes(self) -> tuple[str, ...]:
        """The axes whose devices store a parameter together, in addition to `tensor`."""
        return STORED_AXES if self.zero == "3" else ()

    @property
    def optimizer_axes(self) -> tuple[str, ...]:
        """The axes whose devices store the optimizer's state of a parameter together."""
        return () if self.zero == "0" else STORED_AXES

    def for_attention(self, family: str) -> "Plan":
        """The plan of a hybrid model's layers that this family of kernels computes; its kernel is still to be chosen
        where the plan names a kernel of the other family only. Where the plan does not name softmax layers, they use
        its own scheme if that supports them, else HYBRID_SOFTMAX_SCHEME."""
        linear = bool(self.kernel) and kernels[self.kernel].attention == "linear"
        if family != "softmax":
            return replace(self, kernel=self.kernel if linear else "", softmax=None, sliding=None)
        scheme = HYBRID_SOFTMAX_SCHEME if schemes[self.scheme].sends_states else self.scheme
        usual = LayerPlan(scheme, "" if linear else self.kernel)
        own = replace(self, states=STATES[0], softmax=None)
        return own.with_layer_plan(self.softmax or usual)

    def for_windows(self) -> "Plan":
        """The plan of the layers with shorter windows than other softmax layers, from the plan of these:
        the same where they are still to be chosen."""
        own = replace(self, sliding=None)
        return own.with_layer_plan(self.sliding) if self.sliding else own

    def with_layer_plan(self, layers: LayerPlan) -> "Plan":
        """The plan with the computation of some layers."""
        parts = self.parts if layers.scheme == self.scheme else 1
        return replace(self, **vars(layers) | {"layout": layers.layout or self.layout}, parts=parts)

    def without_tiles(self) -> "Plan":
        """The plan with all its tiles still to be chosen."""
        softmax, sliding = (
            layers and replace(layers, tile=None, backward=None) for layers in (self.softmax, self.sliding)
        )
        return replace(self, tile=None, backward=None, softmax=softmax, sliding=sliding)

    @property
    def softmax_layout(self) -> str | None:
        """The layout of softmax layers, where it differs from the layout of linear layers."""
        own = self.softmax.layout if self.softmax else None
        return own if own != self.layout else None

    @property
    def sequence_scheme(self) -> str:
        """The scheme that shards the sequence; UNSHARDED where each sequence stays on one device."""
        return self.scheme if self.mesh is None or self.sequence_devices > 1 else UNSHARDED

    @property
    def tiles(self) -> dict[str, Tile]:
        """The tile of each pass, for a plan that names its tile."""
        if self.tile is None:
            raise ValueError(f"{self} has no tile")
        return {"forward": self.tile, "backward": self.backward or self.tile}

    def with_tile_of_pass(self, passes: str, tile: Tile) -> "Plan":
        """Replace the tile of the `forward` or the `backward` pass."""
        return replace(self, **{TILE_OF_PASS[passes]: tile})

    @property
    def chunk_or_default(self) -> int | None:
        """The plan's chunk, or else its scheme's."""
        return schemes[self.scheme].chunk if self.chunk is None else self.chunk

    def chunk_rows(self, rows: int) -> int:
        """Rows that feed-forward and loss compute at once, on a device with `rows` rows."""
        if self.chunk_or_default is not None:
            return min(self.chunk_or_default, rows) or rows
        return next(size for size in range(min(rows, DEFAULT_CHUNK), 0, -1) if rows % size == 0)


def parse_layers(option: str, text: str) -> LayerPlan:
    """The value of an option of LAYER_OPTIONS: `all_gather/xla/512x1024`. A layout may follow the scheme, and a
    backward tile the tile; layout, kernel and tiles may be omitted.

    Raises:
        BadInput: not a scheme and kernel of softmax attention, or too many parts.
    """
    name, *rest = text.split("/")
    scheme: Scheme = schemes[name]
    layout, kernel = layout_and_kernel(rest)
    if len(rest) > 2 or scheme.sends_states or (kernel and kernels[kernel].attention == "linear"):
        raise BadInput(f"{option}={text} does not describe such layers. Write {option}=all_gather/xla/512x1024.")
    tile, backward = [*map(parse_tile, rest), None, None][:2]
    return LayerPlan(scheme.name, kernel, tile, backward if backward != tile else None, layout or None)


def layout_and_kernel(names: list[str]) -> tuple[str, str]:
    """The layout and the kernel at the beginning of names, which are removed there; empty where they are omitted.

    Raises:
        BadInput: the first name is neither a layout, a kernel nor a tile.
    """
    layout = names.pop(0) if names and names[0] in layouts.names() else ""
    kernel = names.pop(0) if names and not names[0][:1].isdigit() else ""
    if kernel and kernel not in kernels.names():
        raise unknown_name("kernel" if layout else "layout or kernel", kernel, (*layouts.names(), *kernels.names()))
    return layout, kernels[kernel].name if kernel else ""


@functools.lru_cache(2**14)
def parse_plan(text: str) -> Plan:
    """A plan from its printed form. Layout and kernel may be omitted (`ring@ring=4`).

    Raises:
        BadInput: not a plan, or a scheme, layout, kernel, axis or option is unknown.
    """
    return Plan(**plan_parts(text))


class PlanParts(TypedDict, total=False):
    """Some fields of a `Plan`."""

    scheme: str
    layout: str
    kernel: str
    mesh: tuple[tuple[str, int], ...]
    tile: Tile
    unroll: int
    chunk: int
    remat: str
    offload: str
    zero: str
    states: str
    backward: Tile
    parts: int
    softmax: LayerPlan
    sliding: LayerPlan
    unbuilt: tuple[str, ...]


def plan_parts(text: str) -> PlanParts:
    """The parts of a plan that a text names.

    Raises:
        BadInput: not a plan, or a scheme, layout, kernel, axis or option is unknown.
    """
    names, _, options = text.strip().partition("@")
    parts = names.split("/")
    if len(parts) > 3 or not all(re.fullmatch(r"\w+", part) for part in parts):
        raise BadInput(f"{text!r} is not a plan. Write {GRAMMAR}.")
    scheme: Scheme = schemes[parts.pop(0)]
    layout, kernel = layout_and_kernel(parts)
    if parts:
        raise BadInput(f"{text!r} is not a plan. Write {GRAMMAR}.")
    found = {"scheme": scheme.name, "layout": layout, "kernel": kernel}
    named: dict[str, object] = {name: value for name, value in found.items() if value}
    axes, unbuilt = dict[str, int](), dict[str, str]()
    for option in filter(None, options.split(",")):
        key, value = parse_option(option, text)
        if key in (*axes, *named, *unbuilt):
            raise BadInput(f"{option!r} occurs twice in the plan {text!r}.")
        if key in AXES:
            axes[key] = cast(int, value)
        elif key in UNBUILT:
            unbuilt[key] = f"{key}={value}"
        else:
            named[key] = value
    if unbuilt:
        named["unbuilt"] = tuple(unbuilt[key] for key in UNBUILT if key in unbuilt)
    if axes or not scheme.axes:
        named["mesh"] = make_mesh(axes)
    if named.get("backward") == named.get("tile"):
        named.pop("backward", None)
    return cast(PlanParts, named)


def parse_option(option: str, text: str) -> tuple[str, object]:
    """(name, value) of an option or an axis of the plan `text`.

    Raises:
        BadInput: not an option.
    """
    key, equals, value = option.partition("=")
    if key in (*TILE_OPTIONS, *WORD_OPTIONS, *LAYER_OPTIONS, "offload", *UNBUILT):
        return key, _option_value(key, value)
    if not equals or not re.fullmatch(r"\d{1,6}", value):
        raise BadInput(f"{option!r} in the plan {text!r} is not name=number. Write {GRAMMAR}.")
    if key not in (*AXES, *NUMBER_OPTIONS):
        known = (*AXES, *TILE_OPTIONS, *NUMBER_OPTIONS, *WORD_OPTIONS, *LAYER_OPTIONS, "offload", *UNBUILT)
        raise unknown_name("axis or option in the plan:", key, known)
    if int(value) < NUMBER_OPTIONS.get(key, 0):
        raise BadInput(f"{option!r} in the plan {text!r} is less than {NUMBER_OPTIONS[key]}.")
    return key, int(value)


def _option_value(key: str, text: str) -> Tile | LayerPlan | str:
    """The value of an option of a plan that is not a number."""
    if key in TILE_OPTIONS:
        return parse_tile(text)
    if key in LAYER_OPTIONS:
        return parse_layers(key, text)
    if key == "offload":
        return _parse_set(key, text, OFFLOADED)
    if key == "expert":
        return str(int(text)) if re.fullmatch(r"0*[1-9]\d{0,5}", text) else _parse_set(key, text, STORED_AXES)
    if key == "remat" and text not in REMAT:
        return _parse_remat(text)
    words = MESSAGES if key == "message" else WORD_OPTIONS[key]
    if text not in words:
        raise unknown_name(f"{key} in the plan:", text, words)
    return text


def _parse_remat(text: str) -> str:
    """The values that a layer keeps in addition to its input, by name; `attention` for attention's output alone."""
    if not {*text.split("+")} <= {*REMAT_NAMES}:
        raise unknown_name("remat in the plan:", text, (*REMAT, *REMAT_NAMES))
    found = _parse_set("remat", text, REMAT_NAMES)
    return "attention" if found == Kept.CONTEXT else found


def _parse_set(key: str, text: str, known: Iterable[str]) -> str:
    """Names joined by `+`, in the order of the known names."""
    names = text.split("+")
    for name in names:
        if name not in known:
            raise unknown_name(f"{key} in the plan:", name, known)
    return "+".join(name for name in known if name in names)


@dataclass(frozen=True)
class UnreadablePlan(Plan):
    """A plan from a file of another version that this stripectl cannot read: its text, and the reason."""

    text: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return self.text


def read_plan(text: str) -> Plan:
    """Parse a plan that a file holds; give an `UnreadablePlan` where this stripectl cannot read it."""
    try:
        return parse_plan(text)
    except (BadInput, ValueError) as error:
        return UnreadablePlan("", "", "", text=text, reason=str(error))
