"""The plans of a request: named as texts with `--plan`, or a grid of schemes, layouts, kernels, meshes and tiles.

A part of a plan comes from its text, else from an option, else it stays open for the machine's default. A part that the
text and an option both name must be equal in both.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile, layouts, parse_tile
from stripectl.core.layout_switch import BASE
from stripectl.core.linear_attention import ATTENTIONS, CONSTANT, kernel_family
from stripectl.core.mesh import make_mesh, parse_mesh
from stripectl.core.plan import HYBRID_SOFTMAX_SCHEME, LayerPlan, Plan, PlanParts, plan_parts
from stripectl.core.scheme import Scheme, schemes
from stripectl.core.workload import STEP, Workload
from stripectl.errors import BadInput
from stripectl.runner.names import ALL, expand_grid, parse_names
from stripectl.runner.options import RequestOptions, TileSides
from stripectl.util.several import Several, several, split_commas

AUTO = "auto"  # a mesh: every mesh
# Parts of a plan that only a training step has, and parts that only a backward pass has, with their defaults.
OF_STEPS = {"chunk": None, "remat": "full", "offload": "", "zero": "3", "softmax": None}
OF_BACKWARD = {"backward": None, "states": "kept"}


def parse_plans(options: RequestOptions, linear: Mapping[str, str]) -> list[Plan]:
    """Parse the plans that are named one by one, or the grid of the other options. With `all`, layouts and kernels that
    a scheme does not support are skipped, and schemes are the schemes of inference, or the others.

    Raises:
        BadInput: a value is unknown, a plan and an option contradict each other, or `auto` stands with another mesh.
    """
    if wants_every_mesh(options) and len(several(options.mesh)) > 1:
        raise BadInput("--mesh auto means every mesh. Omit the other meshes.")
    if named := several(options.plan):
        return list(dict.fromkeys(plan for each in named for plan in plans_of(each, options)))
    attention, inference = linear.get("attention", ATTENTIONS[0]), bool(options.query_len)
    hybrid, family = attention not in ATTENTIONS, kernel_family(attention, linear.get("recurrence", CONSTANT))
    scheme = default_scheme(inference, family) if options.scheme is None else options.scheme
    grid = [
        plan
        for name in scheme_names(scheme, inference, family)
        for plan in plans_of_parts({"scheme": name}, options, options.layout or ALL, hybrid and family == "gated")
    ]
    every_layout = hybrid and split_commas(options.layout) in ([], [ALL])
    return [each for plan in grid for each in softmax_layouts(plan, every_layout)]


def wants_every_mesh(options: RequestOptions) -> bool:
    return AUTO in several(options.mesh)


def plans_of(plan: str | Plan, options: RequestOptions) -> Iterator[Plan]:
    """A plan, with every value of the options for each part that its text omits, or that has its default.

    Raises:
        BadInput: the text and an option name different values of a part.
    """
    parts = plan_parts(str(plan))
    named = Plan(**parts)
    for option, part, asked in asked_values(schemes[named.scheme], options):
        if part in parts and list(asked) != [getattr(named, part)]:
            raise BadInput(
                f"--{option} contradicts the plan {plan}, which names its own {part}. Omit --{option}, or omit the "
                f"{part} in the plan."
            )
    return plans_of_parts(parts, options, options.layout)


def asked_values(scheme: Scheme, options: RequestOptions) -> Iterator[tuple[str, str, Sequence[object]]]:
    """(option, part of a plan, values) of each option that the user named; `all` and `auto` are no values."""
    if options.scheme is not None:
        yield "scheme", "scheme", parse_names(options.scheme, "scheme", schemes.names())
    if meshes := several(options.mesh):
        axes = [parse_mesh(each) if isinstance(each, str) else make_mesh(each) for each in meshes if each != AUTO]
        yield "mesh", "mesh", axes
    if options.kernel is not None:
        yield "kernel", "kernel", asked_kernels(options.kernel, scheme)
    if options.tile is not None:
        yield "tile", "tile", [] if options.tile == ALL else parse_tiles(options.tile)
    if options.unroll is not None:
        yield "unroll", "unroll", parse_turns(options.unroll)
    if options.layout is not None:
        yield "layout", "layout", asked_layouts(options.layout, scheme)


def plans_of_parts(
    parts: PlanParts, options: RequestOptions, layout: Several[str], every_layout: bool = False
) -> Iterator[Plan]:
    """Plans with these parts, and with every value of the options for the others; `layout` is the option's, and
    `every_layout` says that a scheme that sends states may gain from layouts other than the contiguous layout."""
    named = Plan(**parts)
    scheme = schemes[named.scheme]
    asked = {part: values for _, part, values in asked_values(scheme, options)}
    if layout is not None:
        asked["layout"] = asked_layouts(layout, scheme, every_layout)
    free = {part: values for part, values in asked.items() if values and part not in parts}
    return (replace(named, **dict(zip(free, values, strict=True))) for values in expand_grid(*free.values()))


def asked_layouts(text: Several[str], scheme: Scheme, every_layout: bool = True) -> list[str]:
    """A list of layouts; `all` are the layouts of the scheme that are worth trying: of states only the contiguous
    layout, unless `every_layout` says that a hybrid model's softmax layers may gain from another."""
    names = parse_names(text, "layout", layouts.names())
    if ALL not in split_commas(text):
        return names
    return [BASE] if scheme.sends_states and not every_layout else list(scheme.layouts or layouts.names())


def asked_kernels(text: Several[str], scheme: Scheme) -> list[str]:
    """A list of kernels; `all` are the kernels of the scheme's families that can run."""
    names = parse_names(text, "kernel", kernels.names())
    if ALL not in split_commas(text):
        return names
    able = (name for name in names if kernels[name].family in scheme.kernel_families)
    return [name for name in able if not kernels[name].table_only]


def softmax_layouts(plan: Plan, every_layout: bool) -> list[Plan]:
    """The plan. Where its scheme needs contiguous layers, `every_layout` adds plans with every balanced layout for the
    softmax layers of a hybrid model."""
    if not every_layout or not schemes[plan.scheme].sends_states or plan.layout != BASE:
        return [plan]
    others = (name for name in layouts.names() if name != plan.layout)
    return [plan, *(replace(plan, softmax=LayerPlan(HYBRID_SOFTMAX_SCHEME, layout=name)) for name in others)]


def default_scheme(inference: bool, family: str) -> str:
    """The scheme where none is named: of a recurrence, a gather of maps."""
    return ALL if inference else "lasp2" if family == "gated" else "ring"


def scheme_names(text: Several[str], inference: bool, family: str) -> list[str]:
    """A list of schemes, or all schemes of training, or of inference, that use this family of
    kernels."""
    names = parse_names(text, "scheme", schemes.names())
    if ALL not in split_commas(text):
        return names
    families = {"softmax", "scores"} if family == "softmax" else {family}
    able = [name for name in names if families & {*schemes[name].kernel_families}]
    return [name for name in able if (schemes[name].query_sharding != "all") == inference]


def parse_tiles(tiles: Several[TileSides]) -> list[Tile]:
    """A list of tiles; a tuple of numbers is one tile."""
    if isinstance(tiles, tuple) and all(isinstance(side, int | None) for side in tiles):
        tiles = [cast(TileSides, tiles)]
    return list(map(parse_tile, split_commas(tiles)))


def parse_turns(unroll: Several[int | str]) -> list[int]:
    """A list of rounds to unroll.

    Raises:
        BadInput: not such a list.
    """
    turns = split_commas(unroll)
    if not all(re.fullmatch(r"0*[1-9]\d{0,5}", str(each)) for each in turns):
        raise BadInput(f"--unroll {unroll!r} is not a list of numbers from 1. Write 1 or 1,2,7.")
    return list(map(int, turns))


def check_parts_are_used(plans: Sequence[Plan], workloads: Sequence[Workload]) -> None:
    """Check that some workload uses each part that a plan names.

    Raises:
        BadInput: a part of a plan has no effect.
    """
    passes = {workload.passes for workload in workloads}
    unused = dict[str, tuple[Mapping[str, object], str]]()
    if STEP not in passes:
        unused["training steps"] = OF_STEPS, f"--pass {STEP}"
    if passes == {"forward"}:
        unused["backward passes"] = OF_BACKWARD, "--pass forward-backward"
    for (where, (parts, remedy)), plan in itertools.product(unused.items(), plans):
        for name, default in parts.items():
            if (value := getattr(plan, name)) != default:
                raise BadInput(
                    f"{name}={value} in the plan {plan} has no effect, because it is for {where} and this run has "
                    f"none. Add {remedy}, or omit {name}."
                )
