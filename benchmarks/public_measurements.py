"""Distils `profiles/distilled/` from NVIDIA's public measurements: collectives, matrices, attention, recurrences and
grouped matrices on A100 to GB300, L40S and RTX PRO 6000.

    pip install polars
    python benchmarks/public_measurements.py [--wheel PATH]

It reads one wheel, `aiconfigurator-core` (82 MB, Apache-2.0), which pip downloads at the pinned version and hash unless
`--wheel` names it. `polars` reads its Parquet files; stripectl needs neither. It is run by hand, never in CI.

Each table holds values at nodes of a grid. Linear interpolation of their logarithms, by the logarithms of the
coordinates, gives the value of any shape between; a rate beyond the outermost node is that node's (`grid_fit`). The
nodes are fitted to all rows that the table stands for, with the least sum of absolute relative errors. The errors
against those rows are printed and stand in each file. No outlier is left out: rows that are off by more than a factor
of 2 count in the errors and are counted by themselves. What else is left out stands in each file.
"""

import argparse
import csv
import hashlib
import io
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl  # pyright: ignore[reportMissingImports]
from grid_fit import Floats, fit, fit_curve, hats, interpolate
from scipy.optimize import minimize_scalar

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
OPERATIONS = {"alltoall": "all_to_all"}  # names that are not ours
REDUCTIONS = ("reduce_scatter", "all_reduce")

EXCHANGED, EXCHANGE_SMS = "0.5.6.post2", 20

MATRIX_ROWS = (1024, 2048, 4096, 8192, 32768)
MATRIX_SIDES = (256, 512, 1024, 2048, 4096, 8192, 16384, 65536)

CHUNK = 8192  # of Llama 4
QUERY_ROWS = (2**9, 2**11, 2**13, 2**14, 2**15, 2**17, 2**20)
TOKENS = (512, 1024, 2048, 4096, 16384, 65536)
LEAST_REST = 0.3  # of a call, which storing keys leaves
LEAST_SHARED = 4  # numbers of query heads of a KV head, with which rows tell the time of a key from that of a query
KERNELS = {  # by the names of the rows
    "fa3": "fa3",
    "vllm_flash_attn_fa3": "fa3",
    "vllm_vit_flash_attn_fa3": "fa3",
    "flash_attention_v3": "fa3",
    "vllm_flash_attn": "fa2",  # on A100, for which vLLM has no other
    "vllm_flash_attn_fa2": "fa2",
    "vllm_vit_flash_attn_fa2": "fa2",
    "vllm_flash_attn_fa4": "fa4",
    "vllm_vit_flash_attn_fa4": "fa4",
    "flash_attention_v4": "fa4",
    "flash_attention": "fa",
    "flashinfer": "flashinfer",
    "torch_flow_flashinfer": "flashinfer",
    "torch_flow": "trtllm",
    "default": "trtllm",
    "trtllm_mha": "trtllm",
    "trtllm_mla": "trtllm",
    "vllm_flashinfer_trtllmprefill": "trtllm",
}

RECURRENT_TABLES = (("kda", "kda"), ("linear_attention", "gdn"))
SEQUENCES = (512, 2048, 8192, 32768)
RECURRENT_HEADS = (2, 8, 32, 128, 512, 4096)
RECURRENCES = {
    "chunk_kda": "kda",
    "chunk_kda_with_fused_gate": "kda",
    "flashkda_fwd": "kda",
    "causal_conv1d_fn": "conv1d",
    "causal_conv1d_fn_qkv3": "conv1d_qkv",
    "chunk_gated_delta_rule": "gdn",
    "chunk_gated_delta_rule_flashinfer": "gdn",
    "chunk_gated_delta_rule_triton": "gdn",
}

EXPERT_ROWS = (4, 16, 64, 256, 1024)
EXPERTS, INNER = (8, 128, 512), (128, 512, 2048, 8192)
NEMOTRON = ((2688, 6), (1024, 22), (2048, 22), (4096, 22), (8192, 22))  # hidden size, chosen experts
UNGATED = [{"hidden_size": hidden, "topk": chosen} for hidden, chosen in NEMOTRON]
GROUPED = {
    "moe_torch_flow": "cutlass",
    "moe_torch_flow_cutlass": "cutlass",
    "sglang_flashinfer_cutlass_moe": "cutlass",
    "sglang_flashinfer_trtllm_moe": "trtllm",
    "sglang_fused_moe_triton": "triton",
    "vllm_fused_moe": "triton",
    "vllm_unquantizedfusedmoe_flashinfer_cutlass_flashinferexperts": "cutlass",
    "vllm_unquantizedfusedmoe_flashinfer_trtllm_trtllmbf16experts": "trtllm",
    "vllm_unquantizedfusedmoe_triton_tritonexperts": "triton",
}


@dataclass
class Table:
    """A file: its columns and lines, the rows that it was fitted to, and factors of errors by target."""

    name: str
    title: str
    columns: Sequence[str]
    notes: Mapping[str, str]
    lines: list[Sequence[Any]] = field(default_factory=list)
    measured_with: set[str] = field(default_factory=set)
    errors: dict[str, list[Floats]] = field(default_factory=dict)

    def add_errors(self, rows: pl.DataFrame, target: str, predicted: Floats, measured: Floats) -> None:
        """Counts rows, with the logarithms of what was predicted and measured."""
        self.errors.setdefault(target, []).append(np.exp(np.abs(predicted - measured)))
        self.measured_with |= set((rows["library"] + " " + rows["version"]).unique())

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
            "between nodes": "logarithms are interpolated linearly, by the logarithms of coordinates",
            "measured with": ", ".join(sorted(self.measured_with)),
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
    return np.format_float_positional(value, DIGITS, fractional=False, trim="-")


def download(folder: Path) -> Path:
    """The wheel, as pip downloads it where its hash is the pinned one."""
    pinned = folder / "pinned.txt"
    pinned.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
    options = ["--no-deps", "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64", "--python-version", "3.11"]
    command = [sys.executable, "-m", "pip", "download", *options, "--require-hashes", "-r", pinned, "-d", folder]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def read(wheel: zipfile.ZipFile, part: str, name: str) -> pl.DataFrame:
    """All rows of a table of a part of the package, with `target`, `library` (a framework or NCCL) and `version`."""
    frames = []
    for file in wheel.namelist():
        place = file.removeprefix(DATA).split("/")
        if place[0] in TARGETS and place[1] == part and place[-1] == f"{name}_perf.parquet":
            target, _, library, version, _ = place
            known = {"target": TARGETS[target], "library": library, "version": version}
            rows = pl.read_parquet(io.BytesIO(wheel.read(file)))
            if "latency" in rows.columns:
                rows = rows.with_columns(us=pl.col("latency") * 1e3)
            frames.append(rows.with_columns(**{column: pl.lit(each) for column, each in known.items()}))
    return pl.concat(frames, how="diagonal_relaxed")


def newest(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the newest version of each library on each target."""
    return pl.concat(
        each.filter(pl.col("version") == max(each["version"].unique(), key=ordered))
        for _, each in groups(rows, "target", "library")
    )


def ordered(version: str) -> list[int]:
    """A version as a key that sorts: 1.3.0rc9 before 1.3.0rc20."""
    return [int(each) for each in re.findall(r"\d+", version)]


def groups(rows: pl.DataFrame, *names: str) -> Iterator[tuple[tuple[Any, ...], pl.DataFrame]]:
    """The rows with the same values in columns, in order."""
    yield from sorted(rows.partition_by(*names, as_dict=True).items())


def logs(rows: pl.DataFrame, *names: str) -> list[Floats]:
    return [np.log(rows[name].to_numpy().astype(float)) for name in names]


def add_curve(table: Table, what: tuple[Any, ...], rows: pl.DataFrame, along: str, time: str) -> None:
    """Adds the nodes of a curve of times, one a line, and its errors."""
    at, times = logs(rows, along, time)
    nodes, found = fit_curve(at, times, WORST, MOST_NODES)
    table.add_errors(rows, what[0], np.interp(at, nodes, found), times)
    points = zip(np.exp(nodes), np.exp(found), strict=True)
    table.lines += [(*what, round(place), rounded(value)) for place, value in points]


def collectives(wheel: zipfile.ZipFile) -> Table:
    """Microseconds of NCCL's collectives by bytes."""
    table = Table(
        "collectives",
        "NCCL's collectives in a node (nccl-tests): microseconds by bytes",
        ("target", "operation", "devices", "bytes", "us"),
        {
            "fields": "bytes: of the array that a device has after an all_gather, or before another operation; us:"
            " of the operation",
            "left out": "reductions of int8, which are slower; older versions of NCCL; collectives of frameworks",
        },
    )
    width = pl.when(pl.col("nccl_dtype") == "half").then(2).otherwise(1)
    rows = newest(read(wheel, "comm", "nccl").filter(pl.col("library") == "nccl"))
    rows = rows.filter((pl.col("nccl_dtype") == "half") | ~pl.col("op_name").is_in(REDUCTIONS))
    rows = rows.with_columns(bytes=pl.col("message_size") * width)
    for (target, operation, devices), each in groups(rows, "target", "op_name", "num_gpus"):
        add_curve(table, (target, OPERATIONS.get(operation, operation), devices), each, "bytes", "us")
    return table


def exchanges(wheel: zipfile.ZipFile) -> Table:
    """Microseconds of DeepEP's exchanges of tokens between nodes."""
    table = Table(
        "exchanges",
        "DeepEP's exchanges between nodes of 8 GPUs, 20 SMs: microseconds by tokens of a GPU",
        ("target", "operation", "nodes", "tokens", "us"),
        {
            "fields": "dispatch sends a token of 7168 float8 values to 8 of 256 experts, once to a node at most;"
            " combine returns bfloat16; us: of the transfer, without the notice before it",
            "left out": "other numbers of SMs; rows said to be of H200, which are those of H100 to the last digit",
        },
    )
    rows = read(wheel, "comm", "wideep_deepep_normal").filter(
        (pl.col("target") == "h100") & (pl.col("version") == EXCHANGED)
    )
    rows = rows.filter((pl.col("dispatch_sms") == EXCHANGE_SMS) & (pl.col("combine_sms") == EXCHANGE_SMS))
    for (target, nodes), each in groups(rows, "target", "node_num"):
        for operation in ("dispatch", "combine"):
            add_curve(table, (target, operation, nodes), each, "num_token", f"{operation}_transmit_us")
    return table


Nodes = Mapping[str, Sequence[int]]  # of a grid, by the column of their coordinate


def fitted(rows: pl.DataFrame, values: Floats, grid: Nodes, rising: str, sign: int = -1) -> tuple[Floats, Floats]:
    """The logarithms at the nodes of a grid that explain those of rows, and what interpolation gives for the rows. The
    time, a coordinate `rising` over the value (over its inverse where `sign` is 1), does not fall along it."""
    points, nodes = logs(rows, *grid), [np.log(each) for each in grid.values()]
    axis, found = list(grid).index(rising), fit(points, values, nodes)
    work = nodes[axis].reshape([-1 if each == axis else 1 for each in range(found.ndim)])
    found = sign * (np.maximum.accumulate(work + sign * found, axis=axis) - work)
    return found, interpolate(points, found, nodes)


def add_lines(table: Table, what: Sequence[Any], rows: pl.DataFrame, found: Floats, grid: Nodes) -> None:
    """Adds a line for each node of all coordinates but the last, whose nodes are columns. Nodes without rows around
    them stay empty."""
    basis = hats(logs(rows, *grid), [np.log(each) for each in grid.values()])
    near = (basis.sum(axis=0) > 0).reshape(found.shape)
    *outer, _ = grid.values()
    for place in np.ndindex(*found.shape[:-1]):
        if near[place].any():
            cells = [
                rounded(np.exp(value)) if has else "" for value, has in zip(found[place], near[place], strict=True)
            ]
            table.lines.append((*what, *(nodes[at] for nodes, at in zip(outer, place, strict=True)), *cells))


def add_groups(
    table: Table, rows: pl.DataFrame, names: Sequence[str], value: str, grid: Nodes, rising: str, sign: int = -1
) -> None:
    """Fits the rows of each group, by the columns `names`, the target first, and adds their lines and errors."""
    for what, each in groups(rows, *names):
        (values,) = logs(each, value)
        found, predicted = fitted(each, values, grid, rising, sign)
        table.add_errors(each, what[0], predicted, values)
        add_lines(table, what, each, found, grid)


def matrices(wheel: zipfile.ZipFile) -> Table:
    """Rates of matrices by shape."""
    table = Table(
        "matrices",
        "one product of matrices, m x k by k x n: TFLOP/s, by m in the columns",
        ("target", "dtype", "n", "k", *(f"tflops_{m}" for m in MATRIX_ROWS)),
        {
            "fields": "2 m n k FLOPs over the time of the call; bfloat16 by the libraries of all frameworks"
            " together, float8 (E4M3, one scale a matrix) by TensorRT-LLM",
            "left out": "m below 1024, n and k below 256; float8 of SGLang and vLLM, by other kernels; float8 with a"
            " scale a block, float4, int8 and int4",
        },
    )
    rows = newest(read(wheel, "gemm", "gemm"))
    clean = (pl.col("gemm_dtype") == "fp8") & (pl.col("library") == "trtllm")
    rows = rows.filter((pl.col("gemm_dtype") == "bfloat16") | clean)
    rows = rows.filter((pl.col("m") >= MATRIX_ROWS[0]) & (pl.min_horizontal("n", "k") >= MATRIX_SIDES[0]))
    rows = rows.with_columns(
        dtype=pl.col("gemm_dtype").replace("fp8", "float8"),
        tflops=2e-6 * pl.col("m") * pl.col("n") * pl.col("k") / pl.col("us"),
    )
    grid = {"n": MATRIX_SIDES, "k": MATRIX_SIDES, "m": MATRIX_ROWS}
    add_groups(table, rows, ("target", "dtype"), "tflops", grid, "m")
    return table


def attention_rows(wheel: zipfile.ZipFile) -> pl.DataFrame:
    """The calls of attention in bfloat16: `tflop_us` of live scores (microseconds at one TFLOP/s), `query_rows` of all
    heads, and `keys`, counted for each KV head, 0 where the rows do not say how many there are."""
    stored = (pl.col("attn_dtype") == "bfloat16") & (pl.col("kv_cache_dtype") == "bfloat16")
    causal = read(wheel, "attention", "context_attention").filter(stored)
    causal = causal.with_columns(mask=pl.lit("causal"), window=pl.col("window_size").fill_null(0), v_dim="head_dim")
    full = read(wheel, "encoder_attention", "encoder_attention").filter(pl.col("attn_dtype") == "bfloat16")
    full = full.with_columns(mask=pl.lit("full"), window=pl.lit(0), v_dim="head_dim")
    stored = (pl.col("mla_dtype") == "bfloat16") & (pl.col("kv_cache_dtype") == "bfloat16")
    latent = read(wheel, "mla", "context_mla").filter(stored)
    latent = latent.with_columns(mask=pl.lit("causal"), window=pl.lit(0), head_dim=pl.lit(192), v_dim=pl.lit(128))
    rows = pl.concat([newest(each) for each in (causal, full, latent)], how="diagonal_relaxed").with_columns(
        kernel=pl.col("kernel_source").replace_strict(KERNELS, default=None),
        tokens="isl",
        query_rows=pl.col("batch_size") * pl.col("num_heads") * pl.col("isl"),
        keys=pl.col("batch_size") * pl.col("num_key_value_heads").fill_null(0) * pl.col("isl"),
    )
    other = (pl.col("library") == "sglang") & (pl.col("window") > 0)
    chunked = other & (pl.col("kernel") == "fa3") & (pl.col("window") == CHUNK)
    whole = other & ((pl.col("kernel") == "flashinfer") | (pl.col("window") == CHUNK)) & ~chunked
    known = pl.col("kernel").is_not_null() & ~pl.col("head_dim").is_in([72, 80]) & ~whole
    rows = rows.with_columns(mask=pl.when(chunked).then(pl.lit("chunks")).otherwise("mask"))
    return rows.filter((pl.col("tokens") >= TOKENS[0]) & known).with_columns(
        tflop_us=2e-6 * pl.col("query_rows") * live_keys() * (pl.col("head_dim") + pl.col("v_dim"))
    )


def live_keys() -> pl.Expr:
    """The mean number of keys that a query sees."""
    tokens = pl.col("tokens")
    window = pl.when(pl.col("window") > 0).then(pl.min_horizontal("window", "tokens")).otherwise("tokens")
    in_chunks = (window**2 * (tokens // window) + (tokens % window) ** 2) / 2 / tokens
    in_window = window - window * (window - 1) / 2 / tokens
    full, chunks = pl.col("mask") == "full", pl.col("mask") == "chunks"
    return pl.when(full).then(tokens).when(chunks).then(in_chunks).otherwise(in_window)


def attention(wheel: zipfile.ZipFile) -> Table:
    """Rates of attention, forward, by kernel, heads, mask and length, beside what a stored key takes."""
    what = ("target", "kernel", "library", "head_dim", "v_dim", "mask", "window")
    table = Table(
        "attention",
        "attention, forward, bfloat16: TFLOP/s of live scores, by tokens of a sequence in the columns",
        (*what, "kv_ns", "query_rows", *(f"tflops_{tokens}" for tokens in TOKENS)),
        {
            "fields": "a call takes 2 (head_dim + v_dim) FLOPs for each live score at the rate, and kv_ns"
            " nanoseconds for each key of each KV head, which it stores in the cache and reads; query_rows:"
            " sequences x query heads x tokens of the call, at few of which the rate is that of the call's"
            " latency; window: keys that a query sees, or keys of a chunk, 0 for all; heads of 192: values of 192"
            " are assumed; 192/128: latent attention after its up-projections; fa: FlashAttention of a version"
            " that rows do not say",
            "left out": "fewer than 512 tokens; float8; Triton; heads of 72 and 80; SGLang's windows by FlashInfer,"
            " and of 8192 by others than FlashAttention-3, whose times are those of the whole mask",
        },
    )
    grid = {"query_rows": QUERY_ROWS, "tokens": TOKENS}
    for (target, *shape), each in groups(attention_rows(wheel), *what):
        us, flops, keys = (each[name].to_numpy().astype(float) for name in ("us", "tflop_us", "keys"))

        def predict(key_us: float, each=each, us=us, flops=flops, keys=keys) -> tuple[Floats, Floats]:
            rest = np.maximum(us - key_us * keys, LEAST_REST * us)
            found, predicted = fitted(each, np.log(flops / rest), grid, "query_rows")
            return found, np.log(flops / np.exp(predicted) + key_us * keys)

        def error(key_us: float, us=us, predict=predict) -> float:
            return float(np.abs(predict(key_us)[1] - np.log(us)).mean())

        key_us = 0.0
        shared = (each["query_rows"] / each["keys"]).n_unique()
        if keys.all() and shared >= LEAST_SHARED:
            most = float(np.quantile(us / keys, 0.05))
            key_us = float(minimize_scalar(error, bounds=(0, most), method="bounded", options={"xatol": most / 100}).x)
        found, predicted = predict(key_us)
        table.add_errors(each, target, predicted, np.log(us))
        add_lines(table, (target, *shape, rounded(1e3 * key_us) if key_us else 0), each, found, grid)
    return table


def recurrences(wheel: zipfile.ZipFile) -> Table:
    """Times of recurrent layers' kernels, forward, by heads and length."""
    table = Table(
        "recurrences",
        "recurrences, forward, heads of 128: ns for each token of each head, by tokens of a sequence in the columns",
        ("target", "kernel", "library", "heads", *(f"ns_{tokens}" for tokens in SEQUENCES)),
        {
            "fields": "the time of a call over sequences x value heads x tokens; heads: sequences x value heads of"
            " a call; conv1d, and conv1d_qkv in three calls: the short convolution before a recurrence, whose"
            " heads are those of queries, keys and values",
            "left out": "fewer than 512 tokens; generation; Mamba-2, of which only convolutions were measured;"
            " convolutions of TensorRT-LLM and on A100, whose times are the same for all numbers of heads, and"
            " vLLM's for KDA, whose times hardly depend on tokens",
        },
    )
    rows = pl.concat([newest(read(wheel, *each)) for each in RECURRENT_TABLES], how="diagonal_relaxed")
    rows = rows.filter((pl.col("phase") == "context") & (pl.col("seq_len") >= SEQUENCES[0]))
    convolved = 2 * pl.col("num_k_heads") + pl.col("num_v_heads")
    rows = rows.with_columns(
        kernel=pl.col("kernel_source").replace_strict(RECURRENCES),
        tokens="seq_len",
    ).with_columns(
        heads=pl.col("batch_size")
        * pl.when(pl.col("kernel").str.starts_with("conv1d")).then(convolved).otherwise("num_v_heads")
    )
    one_width = (pl.col("kernel") == "conv1d") & ((pl.col("library") == "trtllm") | (pl.col("target") == "a100"))
    unlike = (pl.col("kernel") == "conv1d_qkv") & (pl.col("library") == "vllm")
    rows = rows.filter(~one_width & ~unlike).with_columns(ns=1e3 * pl.col("us") / pl.col("heads") / pl.col("tokens"))
    grid = {"heads": RECURRENT_HEADS, "tokens": SEQUENCES}
    add_groups(table, rows, ("target", "kernel", "library"), "ns", grid, "tokens", sign=1)
    return table


def experts(wheel: zipfile.ZipFile) -> Table:
    """Rates of a layer of experts by the rows of an expert and its sizes."""
    table = Table(
        "experts",
        "experts of a layer on one device, forward, bfloat16: TFLOP/s, by rows of an expert in the columns",
        ("target", "kernel", "library", "experts", "inner", *(f"tflops_{rows}" for rows in EXPERT_ROWS)),
        {
            "fields": "6 x hidden x inner FLOPs for each token of each of its experts over the time of the call,"
            " which sorts tokens, runs the grouped products and adds results; hidden is 2048 to 7168; rows of an"
            " expert: tokens x chosen experts / experts; inner: the part of an expert that the device has",
            "left out": "layers without a gate; uneven choices of experts; experts of several devices; other dtypes;"
            " fewer than 4 rows an expert",
        },
    )
    rows = read(wheel, "moe", "moe").filter(
        (pl.col("moe_dtype") == "bfloat16") & (pl.col("moe_ep_size") == 1) & (pl.col("distribution") == "balanced")
    )
    gated = ~pl.col("kernel_source").str.contains("nongated") & ~pl.struct("hidden_size", "topk").is_in(UNGATED)
    rows = newest(rows.filter(gated)).with_columns(
        kernel=pl.col("kernel_source").replace_strict(GROUPED),
        experts="num_experts",
        hidden="hidden_size",
        inner=pl.col("inter_size") / pl.col("moe_tp_size"),
        rows=pl.col("num_tokens") * pl.col("topk") / pl.col("num_experts"),
    )
    rows = rows.filter((pl.col("rows") >= EXPERT_ROWS[0]) & (pl.col("inner") >= INNER[0])).with_columns(
        tflops=6e-6 * pl.col("num_tokens") * pl.col("topk") * pl.col("hidden") * pl.col("inner") / pl.col("us")
    )
    grid = {"experts": EXPERTS, "inner": INNER, "rows": EXPERT_ROWS}
    add_groups(table, rows, ("target", "kernel", "library"), "tflops", grid, "rows")
    return table


TABLES = (collectives, exchanges, matrices, attention, recurrences, experts)


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
