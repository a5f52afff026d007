"""The default tile of a plan is the best of the machine's table, as the simulator ranks tiles, for every command."""

import datetime
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile, layouts
from stripectl.core.lengths import parse_length
from stripectl.core.mesh import make_mesh
from stripectl.core.plan import Plan
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.costs.default_tiles import tiles_for, with_tile
from stripectl.costs.defaults import with_defaults, with_names
from stripectl.costs.sources.table import machine_table
from stripectl.hardware.profile import Hardware, hardware_names
from stripectl.hardware.target import parse_target, target_of
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.local_workers import LocalWorkers
from stripectl.measure.machine_timings import MachineTimings
from stripectl.results.measurement import Measurement
from stripectl.runner.cases import bench_cases, make_case
from stripectl.runner.options import RequestOptions
from stripectl.runner.parse import parse_request
from stripectl.runner.time_plans import time_plans
from stripectl.runner.tuning.candidates import TileSearch, backward_cases, forward_cases
from stripectl.runner.tuning.search import tile_searches
from stripectl.util.progress import quiet

DEVICES, TENTHS = 8, 10
BEHIND = 1.05  # the most that a default may take of the time of the best tile


class Question(NamedTuple):
    """A ring on a machine, for which a default tile is chosen."""

    hardware: str
    kernel: str
    head_dim: int
    seq_len: int
    mask: str
    passes: str
    layout: str

    @property
    def workload(self) -> Workload:
        own = {"seq_len": self.seq_len, "head_dim": self.head_dim, "mask": self.mask, "passes": self.passes}
        return Workload(heads=32, kv_heads=8, **own)  # type: ignore[arg-type]


def tabled(hardware: Hardware) -> Iterator[str]:
    """The softmax kernels that the table of a machine has."""
    for name in kernels.names():
        table = machine_table(hardware, kernels[name])
        if (
            kernels[name].family == "softmax"
            and table
            and any(kernels[name].computes("forward") in key for key in table.costs)
        ):
            yield name


def questions() -> list[Question]:
    """Every machine, kernel, size of heads, length, mask and pass; layouts take turns."""
    machines = [Hardware.load(name) for name in hardware_names() if Hardware.load(name).kind != "cpu"]
    rest = list(
        itertools.product(
            (64, 128, 256),
            map(parse_length, ("8k", "32k", "128k", "1M")),
            ("causal", "full", "sliding:4k"),
            ("forward", "forward-backward"),
        )
    )
    turns = itertools.cycle(layouts.names())
    return [
        Question(hardware.name, kernel, *each, next(turns))
        for hardware in machines
        for kernel in tabled(hardware)
        for each in rest
    ]


def is_far(m: Measurement) -> bool:
    """Whether the table does not tell the cost of a tile."""
    costs = (m.cost_source.entry, m.cost_source.backward_costs) if m.cost_source else ()
    return any(each is not None and each.is_far for each in costs)


def check(chosen: list[Question]) -> int:
    """Compare the default of each question with every tile; return the number of questions with a time."""
    timed = 0
    with LocalWorkers(quiet) as workers:
        for question in chosen:
            hardware, work = Hardware.load(question.hardware), question.workload
            place = LocalTarget(target_of(hardware, DEVICES))
            mesh = make_mesh({"ring": place.target.devices})
            plan = Plan("ring", question.layout, question.kernel, mesh)
            if why_unsupported(plan, work, hardware.kind, None, hardware.capability):
                continue
            tiles = [None, *tiles_for(plan, work, hardware)]
            cases = [
                make_case(work, replace(plan, tile=tile), {}, place, "simulated", describe=False) for tile in tiles
            ]
            default, *others = time_plans(cases, place, MachineTimings(workers))
            best = min((m.median_s for m in others if m.median_s and not is_far(m)), default=None)
            assert default.median_s or not best, f"{question}: {default.reason}"
            if best and default.median_s:
                timed += 1
                assert default.median_s <= BEHIND * best, f"{question}: {default.plan}"
    return timed


def test_a_tenth_of_the_defaults_is_within_5_percent_of_the_best_tile() -> None:
    turn = datetime.date.today().toordinal() % TENTHS
    print(f"tenth {turn}")
    assert check(questions()[turn::TENTHS][::2]) > 50


@pytest.mark.exactness
def test_every_default_is_within_5_percent_of_the_best_tile() -> None:
    assert check(questions()) > 1500


WORK = Workload(seq_len=2**17, heads=32, kv_heads=8, head_dim=128, passes="forward-backward")


def asked(**named: object) -> RequestOptions:
    own = {"target": "v6e:4x4", "seqlen": "128k", "heads": 32, "kv_heads": 8, "head_dim": 128}
    return RequestOptions(method="simulated", pass_="forward-backward", **own, **named)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", layouts.names())
def test_every_command_resolves_the_same_default(layout: str) -> None:
    place = LocalTarget(parse_target("v6e:4x4"))
    whole = with_defaults(Plan("ring", layout), WORK, place.target.hardware, place.target.devices)
    assert whole.kernel == "splash" and whole.mesh == (("ring", 16),) and whole.tile
    grid = bench_cases(parse_request(asked(layout=layout)), place)
    named = bench_cases(parse_request(asked(plan=f"ring/{layout}")), place)
    whole_text = bench_cases(parse_request(asked(plan=whole)), place)
    assert [case.plan for case in (*grid, *named, *whole_text)] == 3 * [whole]
    tuning = TileSearch.of(asked(layout=layout), "race")
    ((wanted, _),) = tile_searches(tuning.request, place)
    forward = forward_cases(tuning, wanted, place)
    assert forward[0].plan.tiles["forward"] == whole.tiles["forward"]
    backward = backward_cases(tuning, wanted, place, whole.tiles["forward"])
    assert backward[0].plan == whole


def test_a_raised_limit_of_a_core_allows_larger_default_tiles() -> None:
    machine, raised = Hardware.load("tpu7x"), {"xla_tpu_scoped_vmem_limit_kib": "65536"}
    work = replace(WORK, head_dim=256, seq_len=2**20)
    plan = with_names(Plan("ring", "zigzag", "tokamax"), work, machine, 8)
    usual, larger = (with_tile(plan, work, machine, flags).tiles for flags in ({}, raised))
    assert larger["backward"].scores > usual["backward"].scores, (usual, larger)


def test_a_kernel_without_a_table_has_the_tile_of_its_description() -> None:
    machine = Hardware.load("v5p")
    plan = Plan("ring", "zigzag", "xla", make_mesh({"ring": 8}))
    assert with_tile(plan, replace(WORK, dtype="float32"), machine).tile == Tile(1024, 1024)
