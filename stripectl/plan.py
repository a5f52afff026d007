"""A plan says how a workload is computed: scheme/layout/kernel@mesh,tile,options.

    ring/striped/xla@ring=8,tensor=2,tile=2048x4096,unroll=2

Plans print and parse; options left out take defaults. `backward=512x1024` is the tile of the backward pass where that
is not the tile of the forward pass. `chunk`, `remat` and `params` matter to a training step only: how
many rows of a shard feed-forward and loss take at once, what the backward pass finds kept, and whether the sequence's
devices share the parameters. Whether a plan can compute a workload is one question,
`unsupported`, answered with a reason.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from stripectl import BadInput
from stripectl.files import unknown
from stripectl.kernels import Kernel, kernels
from stripectl.layout import Layout, Tile, layouts
from stripectl.scheme import Scheme, schemes
from stripectl.workload import STEP, Model, Workload

BATCH_AXES = ("data", "fsdp")
HEAD_AXES = ("tensor",)
SEQUENCE_AXES = ("ring", "ulysses", "outer", "inner")
AXES = (*BATCH_AXES, *SEQUENCE_AXES, *HEAD_AXES)
STORED_AXES = ("fsdp", *SEQUENCE_AXES)  # the devices that store a parameter together, beside those of `tensor`
TILES_A_SIDE = 16  # with so many a balanced layout keeps 1.77 of its 1.88 on 8 shards; with four, 1.52
MOST_ROWS_OF_TILES = 2**22
SMALLEST_SIDE = 128  # of a default tile: the width of a TPU's matrix unit
GRAMMAR = "scheme/layout/kernel@ring=8,tile=2048x4096,unroll=2"
DEFAULT_CHUNK = 1024  # rows: enough for a matrix unit, and their logits are 0.5 GiB at a vocabulary of 128k
# What a layer keeps for its backward pass: its input alone; also what attention gives; also the results of matmuls with
# parameters; everything. Where parameters are sharded, gathered ones are never kept.
REMAT = ("full", "attention", "dots", "none")
PARAMS = ("sharded", "replicated")
WORDS = {"remat": REMAT, "params": PARAMS}  # options whose value is a word; the first is the default
TILES = ("tile", "backward")  # options whose value is a tile
NUMBERS = {"unroll": 1, "chunk": 0}  # options whose value is a number, and the least


@dataclass(frozen=True)
class Plan:
    """`mesh` holds the axes of more than one device, in the order of AXES, and None is a mesh to be chosen; `tile` None
    is the kernel's default, `backward` None the tile of the forward pass, `chunk` None the largest divisor of a shard's
    rows up to DEFAULT_CHUNK, 0 all of them."""

    scheme: str
    layout: str
    kernel: str
    mesh: tuple[tuple[str, int], ...] | None = None
    tile: Tile | None = None
    unroll: int = 1  # rounds of a rolled loop computed in one turn; as many as there are: no loop is left
    chunk: int | None = None
    remat: str = REMAT[0]
    params: str = PARAMS[0]
    backward: Tile | None = None

    def __str__(self) -> str:
        one = [(schemes[self.scheme].axes[0], 1)] if self.mesh == () else []
        options = [f"{axis}={size}" for axis, size in [*(self.mesh or ()), *one]]
        if self.tile:
            options.append(f"tile={self.tile}")
        if self.backward and self.backward != self.tile:
            options.append(f"backward={self.backward}")
        if self.unroll != 1:
            options.append(f"unroll={self.unroll}")
        if self.chunk is not None:
            options.append(f"chunk={self.chunk}")
        options += [f"{key}={value}" for key in WORDS if (value := getattr(self, key)) != WORDS[key][0]]
        return f"{self.scheme}/{self.layout}/{self.kernel}" + ("@" + ",".join(options) if options else "")

    @property
    def axes(self) -> dict[str, int]:
        return dict(self.mesh or ())

    def size(self, axis: str) -> int:
        return self.axes.get(axis, 1)

    def product(self, axes: Iterable[str]) -> int:
        return math.prod(self.size(axis) for axis in axes)

    @property
    def devices(self) -> int:
        return self.product(AXES)

    @property
    def shards(self) -> int:
        """How many shards the sequence is cut into."""
        return self.product(SEQUENCE_AXES)

    @property
    def tiles(self) -> dict[str, Tile]:
        """The tile of each pass, of a plan that names its tile."""
        if self.tile is None:
            raise ValueError(f"{self} has no tile")
        return {"forward": self.tile, "backward": self.backward or self.tile}

    def chunk_rows(self, rows: int) -> int:
        """Rows that feed-forward and loss take at once, of a shard of so many."""
        if self.chunk is not None:
            return min(self.chunk, rows) or rows
        return next(size for size in range(min(rows, DEFAULT_CHUNK), 0, -1) if rows % size == 0)


def make_mesh(axes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The mesh of a plan: known axes in their order, those of one device left out.

    Raises:
        BadInput: an unknown axis, or a size below 1.
    """
    for axis, size in axes.items():
        if axis not in AXES:
            raise unknown("mesh axis", axis, AXES)
        if size < 1:
            raise BadInput(f"the mesh axis {axis} must have at least 1 device, not {size}.")
    return tuple((axis, axes[axis]) for axis in AXES if axes.get(axis, 1) > 1)


def parse_tile(text: str) -> Tile:
    """`2048x4096`, or `1024` for `1024x1024`.

    Raises:
        BadInput: not a tile.
    """
    match = re.fullmatch(r"(\d{1,7})(?:x(\d{1,7}))?", text.strip())
    if (
        not match
        or not 1 <= min(int(match[1]), int(match[2] or match[1])) <= max(map(int, match.groups(match[1]))) <= 2**20
    ):
        raise BadInput(f"{text!r} is not a tile. Write 1024, or 2048x4096 (queries x keys).")
    return Tile(int(match[1]), int(match[2] or match[1]))


def parse_mesh(text: str) -> tuple[tuple[str, int], ...]:
    """`ring=4,tensor=2`.

    Raises:
        BadInput: not a mesh.
    """
    axes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)=(\d{1,6})\s*", part)
        if not match or match[1] in axes:
            raise BadInput(f"{text!r} is not a mesh. Write ring=4,tensor=2.")
        axes[match[1]] = int(match[2])
    return make_mesh(axes)


def parse_plan(text: str) -> Plan:
    """A plan by its printed form; layout and kernel may be left out (`ring@ring=4`).

    Raises:
        BadInput: not a plan, or a scheme, layout, kernel, axis or option that is not known.
    """
    names, _, options = text.strip().partition("@")
    parts = names.split("/")
    if len(parts) > 3 or not all(re.fullmatch(r"\w+", part) for part in parts):
        raise BadInput(f"{text!r} is not a plan. Write {GRAMMAR}.")
    scheme: Scheme = schemes[parts[0]]
    layout: Layout = layouts[parts[1] if len(parts) > 1 else scheme.default_layout]
    kernel: Kernel = kernels[parts[2] if len(parts) > 2 else "xla"]
    axes, seen = dict[str, int](), set[str]()
    plan = Plan(scheme.name, layout.name, kernel.name)
    for option in filter(None, options.split(",")):
        key, equals, value = option.partition("=")
        if key in seen:
            raise BadInput(f"{option!r} in the plan {text!r} is there twice.")
        if key in TILES:
            plan = replace(plan, **{key: parse_tile(value)})
        elif key in WORDS:
            if value not in WORDS[key]:
                raise unknown(f"{key} in the plan:", value, WORDS[key])
            plan = replace(plan, **{key: value})
        elif not equals or not re.fullmatch(r"\d{1,6}", value):
            raise BadInput(f"{option!r} in the plan {text!r} is not name=number. Write {GRAMMAR}.")
        elif int(value) < NUMBERS.get(key, 0):
            raise BadInput(f"{option!r} in the plan {text!r} is less than {NUMBERS[key]}.")
        elif key in NUMBERS:
            plan = replace(plan, **{key: int(value)})
        elif key not in AXES:
            raise unknown("axis or option in the plan:", key, (*AXES, *TILES, *NUMBERS, *WORDS))
        else:
            axes[key] = int(value)
        seen.add(key)
    own = plan.backward if plan.backward != plan.tile else None
    return replace(plan, mesh=make_mesh(axes) if axes else None, backward=own)


def factorisations(devices: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Every way to write `devices` as a product of `axes` sizes."""
    if axes == 1:
        yield (devices,)
        return
    for first in (size for size in range(1, devices + 1) if devices % size == 0):
        yield from ((first, *rest) for rest in factorisations(devices // first, axes - 1))


def with_mesh(plan: Plan, devices: int) -> Plan:
    """The plan with its mesh named: every device on the scheme's own axes, as evenly as they go, larger axes first."""
    if plan.mesh is not None:
        return plan
    axes = schemes[plan.scheme].axes
    sizes = min(factorisations(devices, len(axes)), key=lambda each: (max(each) - min(each), [-size for size in each]))
    return replace(plan, mesh=make_mesh(dict(zip(axes, sizes, strict=True))))


def with_tile(plan: Plan, workload: Workload, kind: str) -> Plan:
    """The plan with its tile named: the kernel's default for such hardware, but at least TILES_A_SIDE of them a shard
    where that leaves SMALLEST_SIDE, and no larger than a piece of the shard."""
    if plan.tile:
        return plan
    rows, kernel = workload.seq_len // plan.shards, kernels[plan.kernel]
    most, tile = max(SMALLEST_SIDE, rows // TILES_A_SIDE), kernel.default_tile(kind)
    smaller = Tile(min(tile.block_q, most), min(tile.block_kv, most))
    return replace(plan, tile=kernel.fitting(smaller, rows // layouts[plan.layout].pieces))


def unsupported(plan: Plan, workload: Workload, kind: str, devices: int | None = None) -> str | None:
    """Why the plan cannot compute the workload on `devices` devices (None: any number), or None."""
    return next(_reasons(plan, workload, kind, devices), None)


def _reasons(plan: Plan, workload: Workload, kind: str, devices: int | None) -> Iterator[str]:
    scheme, layout, kernel = schemes[plan.scheme], layouts[plan.layout], kernels[plan.kernel]
    if scheme.layouts is not None and plan.layout not in scheme.layouts:
        yield f"{plan.scheme} does not run on the {plan.layout} layout. Try {' or '.join(scheme.layouts)}."
    if scheme.kernels != kernel.family:
        yield f"{plan.scheme} needs a {scheme.kernels} kernel; {plan.kernel} is a {kernel.family} one."
    for axis in SEQUENCE_AXES:
        if plan.size(axis) > 1 and axis not in scheme.axes:
            yield f"{plan.scheme} has no axis {axis}; it uses {', '.join(scheme.axes)}."
    if devices is not None and plan.devices > devices:
        yield f"the mesh needs {plan.devices} devices and the target has {devices}. Try another --mesh or --target."
    for axes, name, size in (
        (BATCH_AXES, "batch", workload.batch),
        (HEAD_AXES, "heads", workload.heads),
        (HEAD_AXES, "kv_heads", workload.kv_heads),
    ):
        over = plan.product(axes)
        if size % over:
            axis = next(axis for axis in axes if plan.size(axis) > 1)
            yield f"{size} {name} do not divide over {axis}={over}. Try {axis}={math.gcd(size, over)}."
    if reason := layout.unsupported(workload.seq_len, plan.shards):
        yield reason
    piece = workload.seq_len // plan.shards // layout.pieces
    yield from _tile_reasons(plan, layout, piece)
    rows = workload.seq_len // plan.shards
    if plan.chunk and rows % min(plan.chunk, rows):
        near = next(size for size in range(plan.chunk, 0, -1) if rows % size == 0)
        yield f"chunk={plan.chunk} does not divide the {rows} rows of a shard. Try chunk={near}."
    for reason in (
        misfit(plan, workload.sizes) if workload.passes == STEP else None,
        scheme.unsupported(workload, plan.axes),
        kernel.unsupported(workload, plan, kind),
        kernel.misfit(plan.tile or kernel.fitting(kernel.default_tile(kind), piece), piece),
        plan.backward and kernel.misfit(plan.backward, piece, "backward"),
    ):
        if reason:
            yield reason


def misfit(plan: Plan, model: Model) -> str | None:
    """Why a model's parameters cannot be sharded as the plan says, or None."""
    tensor, shared = plan.size("tensor"), plan.product(STORED_AXES) if plan.params == "sharded" else 1
    for name, size, over in (
        ("feed_forward", model.feed_forward, tensor),
        ("vocabulary", model.vocabulary, tensor),
        ("hidden", model.hidden, tensor * shared),
    ):
        if size % over:
            hint = "" if over == tensor else " Try params=replicated."
            return f"{name} {size} does not divide over {over} devices; {math.gcd(size, over)} would do.{hint}"
    return "rotary positions need an even head_dim." if model.head_dim % 2 else None


def _tile_reasons(plan: Plan, layout: Layout, piece: int) -> Iterator[str]:
    for name, tile in (("tile", plan.tile), ("backward tile", plan.backward)):
        if tile and max(tile) > piece:
            where = "shard" if layout.pieces == 1 else f"piece of a {layout.name} shard"
            yield f"the {name} {tile} is larger than the {piece} rows of a {where}. Try a tile of at most {piece}."
        if tile and piece // tile.block_q * plan.shards > MOST_ROWS_OF_TILES:
            yield f"the {name} {tile} cuts the sequence into too many rows of tiles to count. Try a larger tile."
