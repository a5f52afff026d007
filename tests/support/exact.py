"""How exact a plan's program is, against float64 dense attention; and the cases that the catalogue gives rise to."""

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import pytest

from stripectl.core.defaults import with_mesh
from stripectl.core.kernel import kernels
from stripectl.core.layout import MASKS, layouts
from stripectl.core.mesh import RING_AXES, factorisations, make_mesh
from stripectl.core.plan import Plan
from stripectl.core.scheme import Scheme, schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import ATTENTION_PASSES, DTYPES, Workload
from stripectl.execute.program import PlanProgram
from stripectl.execute.reference import max_relative_error, reference_attention
from stripectl.execute.verification import UNIT_ROUNDOFF, random_arrays, roundings, tolerance, with_cotangent
from tests.support.plans import reference_plan as parse_plan
from tests.support.plans import with_tile

DEVICES, ROWS, HEADS, HEAD_DIM = 8, 48, 8, 16
MASKED = (*MASKS, "sliding:37")  # a window that is no multiple of a shard or a tile
PACKED = (None, (50, 7, 20))  # documents that no shard or tile divides, longer and shorter than a shard
KV_HEADS = (HEADS, 2, 1)
TYPICAL = 0.75  # of a unit roundoff, for a rounding
BOTH = "forward-backward"
Choice = TypeVar("Choice", bound=Sequence[Hashable])
plan_of = cache(parse_plan)


class Case(NamedTuple):
    """What a program depends on: first what a user chooses, then what should change no value."""

    scheme: str
    layout: str
    mask: str
    documents: tuple[int, ...] | None
    mesh: str
    kv_heads: int
    dtype: str
    passes: str
    tile: str = ""
    unroll: int = 1

    def __str__(self) -> str:
        return "-".join(map(str, self))

    @property
    def plan(self) -> Plan:
        tile = f"tile={self.tile}" if self.tile else ""
        return plan_of(f"{self.scheme}/{self.layout}@{','.join(filter(None, (self.mesh, tile)))},unroll={self.unroll}")

    @property
    def workload(self) -> Workload:
        devices = self.plan.devices
        return Workload(
            seq_len=ROWS * max(2, devices),
            batch=2 if devices == 2 else 1,
            heads=HEADS,
            kv_heads=self.kv_heads,
            head_dim=HEAD_DIM,
            dtype=self.dtype,
            mask=self.mask,
            passes=self.passes,
            documents=self.documents,
        )


def legal(plan: Plan, workload: Workload) -> bool:
    return why_unsupported(plan, workload, "cpu", DEVICES) is None


def on_devices(scheme: str, devices: int, **others: int) -> Plan:
    """A scheme on so many devices of its own axes beside others."""
    plan = parse_plan(scheme)
    return replace(plan, mesh=make_mesh({**others, **with_mesh(plan, devices).axes}))


def meshes(scheme: Scheme) -> list[str]:
    """All factorisations of 2, 4 and 8 devices over the scheme's axes, or 1, 2, 3, 4 and 8 of the one it has."""
    if not scheme.axes:
        return [""]
    sizes = (1, 2, 3, 4, DEVICES) if len(scheme.axes) == 1 else (2, 4, DEVICES)
    found = (each for devices in sizes for each in factorisations(devices, len(scheme.axes)))
    return [",".join(f"{axis}={size}" for axis, size in zip(scheme.axes, each, strict=True)) for each in found]


def chosen(name: str) -> Iterator[Case]:
    """Every legal case of what a user chooses of a scheme, with the most of a pass that it can."""
    for mesh, layout, *rest in itertools.product(
        meshes(schemes[name]), layouts.names(), MASKED, PACKED, KV_HEADS, DTYPES
    ):
        mask, documents, kv_heads, dtype = list[Any](rest)
        cases = (Case(name, layout, mask, documents, mesh, kv_heads, dtype, each) for each in ATTENTION_PASSES[::-1])
        yield from itertools.islice((case for case in cases if legal(case.plan, case.workload)), 1)


def variations(case: Case) -> list[Case]:
    """The case with a tile and a loop of each kind. A loop of at most one round is the same rolled and unrolled."""
    plan = case.plan
    whole = str(case.workload.seq_len // plan.shards // layouts[plan.layout].pieces)
    # Divides the piece, does not, is it.
    tiles = [whole] if kernels[plan.kernel].keeps_all_scores else ["8x6", "10x7", whole]
    unrolls = [1, 9] if max(map(plan.size, RING_AXES)) > 2 else [1]
    return [case._replace(tile=tile, unroll=unroll) for tile in tiles for unroll in unrolls]


def in_turns(cases: Iterable[Any], turn: random.Random, fields: Sequence[str]) -> list[Any]:
    """One of the cases that differ in these fields alone: the more devices, the more turns."""
    alike = defaultdict[Any, list[Any]](list)
    for case in cases:
        alike[tuple(value for name, value in case._asdict().items() if name not in fields)].append(case)
    return [turn.choices(each, [case.plan.devices for case in each])[0] for each in alike.values()]


class Catalogue(NamedTuple):
    """Legal cases of schemes: a few of which programs are made (`methods_of_case`), those that complete them to every
    pair of choices that any case holds, and the product of scheme, layout, mask, documents and dtype."""

    quick: list[Case]
    cover: list[Case]
    product: list[Case]


def catalogue(names: Iterable[str]) -> Catalogue:
    """In the product meshes, key/value heads, tiles and loops take turns. An unrolled loop has a sixth of the turns:
    its programs take 2 to 5 times as long to compile."""
    turn, turn_of_product, varied = random.Random(0), random.Random(0), list[Case]()
    every = list(itertools.chain.from_iterable(map(chosen, names)))
    for case in every:
        each = variations(case)
        varied += [turn.choice(each)._replace(passes=passes) for passes in dict.fromkeys(("forward", case.passes))]
    product = list[Case]()
    for case in in_turns(every, turn_of_product, ("mesh", "kv_heads")):
        each = variations(case)
        product += turn_of_product.choices(each, [1 if option.unroll > 1 else 5 for option in each])
    quick = covering(varied, methods_of_case, compile_cost)
    cover = covering(varied, pairs_of_case, compile_cost, quick)
    return Catalogue(quick, cover, [case for case in product if case not in {*quick, *cover}])


def pairs(case: Sequence[Hashable]) -> set[Hashable]:
    return set(itertools.combinations(enumerate(case), 2))


def pairs_of_case(case: Any) -> set[Hashable]:
    """Sizes of axes meet each other in each scheme; what else meets a mesh meets as many devices."""
    axes = itertools.combinations(case.mesh.split(","), 2)
    return pairs(case._replace(mesh=str(case.plan.devices))) | {(case.scheme, *each) for each in axes}


def methods_of_case(case: Case) -> set[Hashable]:
    """What a scheme's program is made of meets each other, on several devices where it has axes; of the rest each
    choice once."""
    if case.plan.devices == 1 and schemes[case.scheme].axes:
        return set()
    return pairs((case.scheme, case.layout, case.dtype, case.passes)) | each_choice(
        case._replace(mesh=str(case.plan.devices))
    )


def covering(
    cases: Sequence[Choice],
    pairs: Callable[[Choice], set[Hashable]] = pairs,
    cost: Callable[[Choice], int] = lambda case: 0,
    first: Sequence[Choice] = (),
) -> list[Choice]:
    """Few cases that hold, with the first, every pair of choices that any case holds: greedy, of equally good cases the
    cheapest, of equally cheap ones the first of a fixed shuffle."""
    order = random.Random(0).sample(cases, len(cases))
    held = [pairs(case) for case in order]
    missing, found = set().union(*held).difference(*map(pairs, first)), list[Choice]()
    queue = [(-len(each), cost(case), at) for at, (case, each) in enumerate(zip(order, held, strict=True))]
    heapify(queue)
    while missing:
        _, price, at = heappop(queue)
        now = (-len(held[at] & missing), price, at)  # what a case adds never grows: the first true entry is the best
        if queue and now > queue[0]:
            heappush(queue, now)
        else:
            found.append(order[at])
            missing -= held[at]
    return found


def each_choice(case: Sequence[Hashable]) -> set[Hashable]:
    return set(enumerate(case))


def device_cost(case: Any) -> int:
    """A cost for `covering`: the number of devices. Two and one cost more than eight, because a ring of two has one
    direction, and a single device sends nothing."""
    devices = case.plan.devices
    return devices if devices > 2 else DEVICES + 3 - devices


def compile_cost(case: Case) -> int:
    """A cost for `covering`: an unrolled loop is compiled round by round, a backward pass doubles the program, and
    documents add half of it."""
    return device_cost(case) * case.unroll * (2 if case.passes == BOTH else 1) * (3 if case.documents else 2)


def in_parts(
    cases: Sequence[Choice],
    held: Callable[[Choice], set[Hashable]] = each_choice,
    cost: Callable[[Choice], int] = lambda case: 0,
) -> list[tuple[Choice, Any]]:
    """(case, marks of its test): a few, which hold what any case holds, are quick, the others the part `exactness`."""
    quick = set(covering(cases, held, cost))
    return [(case, () if case in quick else pytest.mark.exactness) for case in cases]


def cover_in_parts(
    cases: Sequence[Choice],
    pairs: Callable[[Choice], set[Hashable]] = pairs,
    held: Callable[[Choice], set[Hashable]] = each_choice,
    cost: Callable[[Choice], int] = lambda case: 0,
) -> list[tuple[Choice, Any]]:
    """(case, marks of its test): a few, which hold what any case holds, are quick, and those that complete them to
    every pair are the part `exactness`."""
    quick = covering(cases, held, cost)
    rest = covering(cases, pairs, cost, quick)
    return [*((case, ()) for case in quick), *((case, pytest.mark.exactness) for case in rest)]


def results(program: PlanProgram, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """(found, reference), float64 in natural order, of the output, and of the gradients under random cotangents."""
    workload, arrays = program.workload, random_arrays(program, seed)
    expected = reference_attention(workload, *with_cotangent(workload, arrays))
    values = program.with_sums(program.function(*program.place(arrays)))
    assert len(values) == (len(program.shapes) if workload.passes == BOTH else 1)
    natural = (
        np.asarray(value, np.float64)[:, :, np.argsort(order)]
        for value, order in zip(values, program.result_orders, strict=False)
    )
    return list(zip(natural, expected, strict=False))


def relative_errors(workload: Workload, plan: Plan) -> list[float]:
    """The largest relative error of the output, and of the gradients under random cotangents."""
    return [max_relative_error(*each) for each in results(PlanProgram(workload, plan, jax.devices()))]


def check(workload: Workload, plan: Plan) -> None:
    """Fail where a value or a gradient is not attention's."""
    plan = with_tile(plan, workload, "cpu")
    for found, reference in results(PlanProgram(workload, plan, jax.devices())):
        check_result(workload, plan, found, reference)


def typical_error(found: np.ndarray, reference: np.ndarray) -> float:
    """The root mean square error, relative to the root mean square of the reference."""
    return float(np.linalg.norm(found - reference) / np.linalg.norm(reference))


def typical_tolerance(workload: Workload, plan: Plan) -> float:
    """The largest typical error that a plan may have in bfloat16. Independent roundings add up by their squares, and
    each is 0.4 of the unit roundoff in the root mean square."""
    return TYPICAL * roundings(workload, plan) ** 0.5 * UNIT_ROUNDOFF


def check_result(workload: Workload, plan: Plan, found: np.ndarray, reference: np.ndarray) -> None:
    """Fail where the largest error is above the tolerance, which sees a wrong row, or in bfloat16 the typical error
    above its own, which sees 1 % of all of a result."""
    largest, typical = max_relative_error(found, reference), typical_error(found, reference)
    assert largest <= tolerance(workload, plan), f"an error of {largest:.1e}"
    if workload.dtype == "bfloat16":
        assert typical <= typical_tolerance(workload, plan), f"an error of {typical:.1e} typically"
