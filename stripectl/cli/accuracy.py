"""`stripectl accuracy`: predictions compared with every published measurement that ships."""

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table


@click.command("accuracy")
@click.option("--rows", is_flag=True, help="Every row of attention on one device, not only their errors.")
@click.option("--json", "as_json", is_flag=True, help="As JSON on stdout.")
def command(rows: bool, as_json: bool) -> None:
    """Compare predictions with published measurements: how far off they are.

    Attention on one device is predicted from the tables of profiles/kernels; training steps are simulated. Rows that
    constants were fitted to are marked: their errors show the quality of the fit, not of a prediction.

    \b
    Examples:
      stripectl accuracy
      stripectl accuracy --rows
      stripectl accuracy --json | jq .attention
    """
    from stripectl.analysis.accuracy.attention import attention, groups
    from stripectl.analysis.accuracy.meshes import cells, orders
    from stripectl.analysis.accuracy.paper import paper_kernel, speed_ups

    found: dict[str, Any] = {
        "attention": [each._asdict() | {"error": each.error._asdict()} for each in groups()],
        "paper": by_device([each._asdict() for each in speed_ups()]),
        "paper_constants": paper_kernel(),
        "meshes": [each._asdict() for each in orders()],
        "mesh_steps": [each._asdict() for each in cells()],
    }
    if rows:
        found["rows"] = [
            each.row._asdict() | {"tile": str(each.row.tile), "predicted": each.predicted} for each in attention()
        ]
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    from stripectl.console import console

    screen = console()
    for table in tables(found):
        screen.print(table)
        screen.print()


def by_device(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows, root mean square error and worst error of the speed-ups of each device."""
    found = []
    for hardware in dict.fromkeys(each["hardware"] for each in members):
        errors = [each["simulated"] - each["measured"] for each in members if each["hardware"] == hardware]
        rmse = (sum(error**2 for error in errors) / len(errors)) ** 0.5
        found.append({"hardware": hardware, "rows": len(errors), "rmse": rmse, "worst": max(map(abs, errors))})
    return found


def tables(found: dict[str, Any]) -> list["Table"]:
    known = [
        table("attention on one device, beside published times", ("device", "measured kernel", "predicted by", "pass"))
    ]
    for name in ("rows", "mean error", "worst", "predicted / measured"):
        known[0].add_column(name, justify="right")
    for each in found["attention"]:
        error = each["error"]
        fitted = " (fitted to them)" * each["fitted"]
        known[0].add_row(
            each["hardware"],
            each["measured"],
            each["ours"] + fitted,
            each["passes"],
            str(error["rows"]),
            f"{error['mean']:.1%}",
            f"{error['worst']:.1%}",
            f"{error['ratio']:.2f}",
        )
    if "rows" in found:
        known.append(table("each row", ("device", "kernel", "pass", "mask", "shape", "tile")))
        for name in ("measured", "predicted", "ratio"):
            known[-1].add_column(name, justify="right")
        for each in found["rows"]:
            shape = "x".join(
                str(each[n]) for n in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "v_dim")
            )
            names = (
                each["hardware"],
                each["kernel"].partition(" (")[0],
                each["passes"],
                each["mask"],
                shape,
                each["tile"],
            )
            ms = f"{each['seconds'] * 1e3:.3f} ms", f"{each['predicted'] * 1e3:.3f} ms"
            known[-1].add_row(*names, *ms, f"{each['predicted'] / each['seconds']:.2f}")
    known.append(table("training steps, striped over contiguous, beside Brandon et al. 2023", ("device", "constants")))
    for name in ("rows (fitted to them)", "RMSE of the speed-up", "worst"):
        known[-1].add_column(name, justify="right")
    for each in found["paper"]:
        constants = found["paper_constants"][each["hardware"]]
        said = ", ".join(f"{name} {constants[name]:g}" for name in ("tile", "boundary", "dead") if name in constants)
        known[-1].add_row(each["hardware"], said, str(each["rows"]), f"{each['rmse']:.3f}", f"{each['worst']:.3f}")
    known.append(table("meshes of a training step, beside MaxText (v5p-64, llama3-8b, contiguous)", ("tokens",)))
    for name in ("pairs 3 % apart", "in the right order", "Kendall's tau", "pick over best", "simulated / measured"):
        known[-1].add_column(name, justify="right")
    for each in found["meshes"]:
        alike = [cell for cell in found["mesh_steps"] if cell["seq_len"] == each["seq_len"]]
        ratios = sorted(cell["simulated"] / cell["measured"] for cell in alike)
        known[-1].add_row(
            f"{each['seq_len'] // 1024}k",
            str(each["pairs"]),
            str(each["right"]),
            f"{each['tau']:.2f}",
            f"{each['lost']:+.1%}",
            f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        )
    return known


def table(title: str, columns: tuple[str, ...]) -> "Table":
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column)
    return made
