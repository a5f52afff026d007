"""`stripectl accuracy`: predictions compared with every published measurement that ships."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from stripectl.core.lengths import format_length
from stripectl.util.units import NOTHING, duration

if TYPE_CHECKING:
    from rich.table import Table

    from stripectl.analysis.accuracy.attention import AttentionGroup, Prediction
    from stripectl.analysis.accuracy.collectives import CollectiveGroup
    from stripectl.analysis.accuracy.compiled_steps import CompiledSpeedUpAccuracy
    from stripectl.analysis.accuracy.framework_steps import FrameworkStepTime
    from stripectl.analysis.accuracy.memory import MemoryAccuracy
    from stripectl.analysis.accuracy.meshes import MeshOrder, MeshTime
    from stripectl.analysis.accuracy.paper import PaperKernel, SpeedUpAccuracy
    from stripectl.analysis.accuracy.ratio_error import RatioError
    from stripectl.analysis.accuracy.recurrences import RecurrenceGroup
    from stripectl.analysis.accuracy.tables import Accuracy

ERROR = ("rows", "error", "ratio", "spread", "worst", "worst row")
OWN = "attention on one device, predicted / measured (fitted: these rows set a constant, so they are no evidence)"
OTHERS = "the same, for FlashAttention-2 and versions that rows do not say, predicted with the costs of cudnn"


@click.command("accuracy")
@click.option("--rows", is_flag=True, help="Show every row of attention on one device, not only the errors.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def command(rows: bool, as_json: bool) -> None:
    """Compare predictions with published measurements: how far off they are.

    Memory predicted without a compiler is compared with the compilers' reports. Attention on one device is predicted
    from the tables in profiles/kernels; training steps are simulated. Rows to which constants were fitted are marked:
    their errors show the quality of the fit, not of a prediction.

    \b
    Examples:
      stripectl accuracy
      stripectl accuracy --rows
      stripectl accuracy --json | jq .attention
    """
    from stripectl.analysis.accuracy.tables import compute_accuracy

    found = compute_accuracy(rows)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
        return
    from stripectl.reporters.terminal.screen import console

    screen = console()
    for table in accuracy_tables(found):
        screen.print(table)
        screen.print()


def accuracy_tables(found: "Accuracy") -> list["Table"]:
    return [
        attention_table([each for each in found.attention if not each.stands_in], OWN),
        attention_table([each for each in found.attention if each.stands_in], OTHERS),
        recurrence_table(found.recurrences),
        collective_table(found.collectives),
        framework_step_table(found.framework_steps),
        *([] if found.rows is None else [each_row(found.rows)]),
        paper_table(found.paper, found.paper_constants),
        compiled_table(found.paper_compiled, found.paper_constants["v4"]),
        mesh_table(found.meshes, found.mesh_steps),
        memory_table(found.memory),
    ]


def attention_table(groups: "Sequence[AttentionGroup]", title: str) -> "Table":
    made = number_table(title, ("device", "kernel", "heads", "pass", "mask"), (*ERROR, "as a plan"))
    for each in groups:
        names = each.hardware, each.measured, each.heads, each.passes, each.mask
        rows, *error = error_cells(each.error)
        plan = NOTHING if each.as_a_plan is None else f"{each.as_a_plan:.2f}"
        made.add_row(*names, f"{rows}{' fitted' if each.fitted else ''}", *error, plan)
    return made


def error_cells(error: "RatioError") -> tuple[str, ...]:
    """The cells of the columns ERROR."""
    far = f"{error.spread:.0%}", f"{error.worst:.0%}"
    return str(error.rows), f"{error.mean:.1%}", f"{error.ratio:.2f}", *far, error.worst_row


def recurrence_table(groups: "Sequence[RecurrenceGroup]") -> "Table":
    title = "recurrences on one GPU, predicted / measured, in rows that set no figure (rows: tokens x heads)"
    made = number_table(title, ("device", "recurrence", "kernel", "pass"), ERROR)
    for each in groups:
        kernel = f"{each.kernel}{', other rows fitted' if each.same_kernel else ''}"
        made.add_row(each.hardware, each.recurrence, kernel, each.passes, *error_cells(each.error))
    return made


def collective_table(groups: "Sequence[CollectiveGroup]") -> "Table":
    title = "collectives in a node of GPUs, predicted / measured"
    made = number_table(title, ("device", "operation", "devices"), ERROR)
    for each in groups:
        made.add_row(each.hardware, each.operation, str(each.devices), *error_cells(each.error))
    return made


def framework_step_table(rows: "Sequence[FrameworkStepTime]") -> "Table":
    title = "rings and training steps of frameworks"
    made = number_table(title, ("target", "computes", "tokens", "batch", "plan"), ("measured", "predicted", "ratio"))
    for each in rows:
        plan, tokens = each.plan.partition(",tile")[0], format_length(each.seq_len)
        times = duration(each.seconds), duration(each.predicted)
        made.add_row(each.target, each.computes, tokens, str(each.batch), plan, *times, f"{each.ratio:.2f}")
    return made


def each_row(rows: "Sequence[Prediction]") -> "Table":
    made = number_table(
        "each row", ("device", "kernel", "pass", "mask", "shape", "tile"), ("measured", "predicted", "ratio")
    )
    for each in rows:
        row = each.row
        sizes = (row.batch, row.q_len, row.kv_len, row.heads, row.kv_heads, row.head_dim, row.v_dim)
        shape, kernel = "x".join(map(str, sizes)), row.kernel.partition(" (")[0]
        ms = f"{row.seconds * 1e3:.3f} ms", f"{each.predicted * 1e3:.3f} ms"
        made.add_row(row.hardware, kernel, row.passes, row.mask, shape, str(row.tile), *ms, f"{each.ratio:.2f}")
    return made


def paper_table(errors: "Sequence[SpeedUpAccuracy]", constants: "Mapping[str, PaperKernel]") -> "Table":
    title = "training steps, striped over contiguous (Brandon et al. 2023)"
    made = number_table(title, ("device", "constants"), ("rows (fitted to them)", "RMSE of the speed-up", "worst"))
    for each in errors:
        own = constants[each.hardware]
        known = {"tile": own.tile, "boundary": own.boundary, "dead": own.dead}
        said = ", ".join(f"{name} {value:g}" for name, value in known.items() if value is not None)
        made.add_row(each.hardware, said, str(each.rows), f"{each.rmse:.3f}", f"{each.worst:.3f}")
    return made


def compiled_table(errors: "Sequence[CompiledSpeedUpAccuracy]", constants: "PaperKernel") -> "Table":
    title = "training steps, compiled: striped over contiguous on v4 (Brandon et al. 2023)"
    made = number_table(title, ("tiles of", "constants"), ("rows", "RMSE of the speed-up", "mean", "worst"))
    fitted = f"tile {constants.tile:g}, dead {constants.dead:g} (fitted to the same rows, simulated)"
    for each in errors:
        figures = f"{each.rmse:.3f}", f"{each.mean:+.3f}", f"{each.worst:.3f}"
        made.add_row(each.tiles, fitted if each.fitted else "none", str(each.rows), *figures)
    return made


def mesh_table(orders: "Sequence[MeshOrder]", cells: "Sequence[MeshTime]") -> "Table":
    from stripectl.analysis.accuracy.meshes import rank_correlation

    numbers = (
        *("pairs 3 % apart", "in the right order", "nearer pairs", "predicted within 10 %"),
        *("Kendall's tau", "pick over best", "simulated / measured"),
    )
    title = "meshes of a training step (MaxText, v5p-64, llama3-8b, contiguous; exposed dK/dV chosen by these rows)"
    made = number_table(title, ("tokens",), numbers)
    for each in orders:
        ratios = sorted(cell.ratio for cell in cells if cell.seq_len == each.seq_len)
        counts = f"{each.seq_len // 1024}k", *map(str, (each.pairs, each.right, each.ties, each.near))
        tau, ends = f"{rank_correlation(each.seq_len):.2f}", f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        made.add_row(*counts, tau, f"{each.lost:+.1%}", ends)
    return made


def memory_table(errors: "Sequence[MemoryAccuracy]") -> "Table":
    numbers = ("plans", "mean error", "worst, predicted / compiled", "within 10 %")
    made = number_table("memory of a device, predicted without a compiler and compiled", ("program", "device"), numbers)
    for each in errors:
        figures = str(each.rows), f"{each.mean:.1%}", f"{each.worst:.2f}", str(each.near)
        made.add_row(each.what, each.hardware, *figures)
    return made


def number_table(title: str, names: tuple[str, ...], numbers: tuple[str, ...]) -> "Table":
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in names:
        made.add_column(name)
    for name in numbers:
        made.add_column(name, justify="right")
    return made
