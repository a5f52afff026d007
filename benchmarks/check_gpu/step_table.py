"""A step's division among its operations, as rows and as a table for a terminal: what is predicted of each part, what
the profile shows, and what its operations need at least by their FLOPs and bytes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.check_gpu.command import command
from benchmarks.check_gpu.program_work import Work
from stripectl.core.scopes import ATTENTION, SECTIONS
from stripectl.hardware.profile import Hardware
from stripectl.util.units import duration

DTYPES = {"bf16": "bfloat16", "f32": "float32"}  # HLO's names, and ours
WAIT, GAPS = "wait for the first operation", "gaps between operations"
Rows = Sequence[Mapping[str, Any]]


def prediction(plan: str, model: str, layers: int, tokens: int, dtype: str, target: str) -> dict[str, Any]:
    """What stripectl predicts of a step without any measurement of it: seconds by part, and what they leave out."""
    shape = ("--model", model, "--layers", str(layers), "--seqlen", str(tokens), "--dtype", dtype, "--pass", "step")
    (one,) = command("bench", *shape, "--plan", plan, "--target", target, "--method", "simulated")["measurements"]
    left_out = (one["cost_source"] or {}).get("left_out")
    found = {"seconds": one["median_s"], "parts": one["step_parts"], "left_out": left_out}
    return found | {name: one[name] for name in ("plan", "workload")}


def operation_row(
    name: str, work: Work, times: int, hardware: Hardware, seconds: float | None = None, kernels: Sequence[str] = ()
) -> dict[str, Any]:
    """An operation that runs so many times, with its seconds in a profile, and the seconds that it needs at least: None
    where the machine's rates are not known."""
    figures = {"count": times, "seconds": seconds, "least_s": least_s(work, times, hardware)}
    return {"operation": name, **work._asdict(), **figures, "kernels": list(kernels)}


def least_s(work: Work, times: int, hardware: Hardware) -> float | None:
    """Seconds at the peak rate of the dtype, or at the memory's rate, whichever is longer."""
    memory = hardware.figure("hbm_bytes_per_s")
    rate = hardware.flops_per_s(DTYPES.get(work.dtype, ""))
    if not memory or (work.flops and not rate):
        return None
    return times * max(work.nbytes / memory, work.flops / rate if rate else 0.0)


def table(rows: Rows) -> list[str]:
    """The division of a profiled step."""
    by = {name: each for row in rows if "operation" not in row for name, each in row.items()}
    operations = [row for row in rows if "operation" in row]
    if "step" not in by:
        return []
    predicted, step, measured = by["predicted"], by["step"], by["times"]
    ratio = measured["bench_s"] / predicted["seconds"]
    shape = "{model}, {layers} layers, {tokens} tokens".format_map(measured)
    return [
        f"{duration(measured['bench_s'])} measured, {duration(predicted['seconds'])} predicted, {ratio:.2f} times: "
        f"{shape}, {predicted['plan']}",
        *(
            f"{name}: {duration(each['bench_s'])} in a bench, {duration(each['waited_for_s'])} waited for one by one, "
            f"of which the host needs {duration(each['host_s'])} to start one"
            for name, each in by.items()
            if name.startswith("times")
        ),
        "",
        *part_lines(operations, predicted["parts"]),
        line(WAIT, "", "", duration(step["wait_s"]), "", ""),
        line(GAPS, "", "", duration(step["gaps_s"]), "", ""),
        total("step", "", predicted["seconds"], operations, step["seconds"]),
        *beyond_prediction(operations, predicted, step),
    ]


def part_lines(operations: Rows, parts: Mapping[str, float]) -> list[str]:
    """The head of the table, and a line for each part and each of its kinds of operations."""
    said = [line("part", "operations", "predicted", "profiled", "at least", "run")]
    for part in dict.fromkeys((*SECTIONS, *(row["part"] for row in operations))):
        own = [row for row in operations if row["part"] == part]
        if own or part in parts:
            said.append(total(part, "", parts.get(part), own))
            kinds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
            for row in own:
                kinds[row["kind"]].append(row)
            longest = sorted(kinds.items(), key=lambda one: -summed(one[1], "seconds", "least_s"))
            said += [total("", kind, None, each) for kind, each in longest]
    return said


def beyond_prediction(operations: Rows, predicted: Mapping[str, Any], step: Mapping[str, float]) -> list[str]:
    """What the time of a profiled step beyond its prediction consists of, where the machine's rates are known. The text
    of a program does not have the FLOPs of a library's attention, so attention needs at least what is predicted."""
    if any(row["least_s"] is None for row in operations):
        return []
    attention = summed([row for row in operations if row["part"] == ATTENTION], "least_s")
    least = summed(operations, "least_s") + max(0.0, predicted["parts"].get(ATTENTION, 0.0) - attention)
    waits = step["wait_s"] + step["gaps_s"]
    return [
        f"{duration(step['seconds'] - predicted['seconds'])} beyond the prediction: "
        f"{duration(least - predicted['seconds'])} of work that it leaves out, "
        f"{duration(summed(operations, 'seconds') - least)} because operations are slower than the machine's rates, "
        f"{duration(waits)} of waits and gaps"
    ]


def summed(rows: Iterable[Mapping[str, Any]], *figures: str) -> float:
    """The sum of the first of these figures that each row has."""
    return sum(next((row[name] for name in figures if row[name] is not None), 0.0) for row in rows)


def total(part: str, kind: str, predicted_s: float | None, rows: Rows, profiled_s: float | None = None) -> str:
    """A line of the table: the sums of operations."""
    if profiled_s is None and any(row["seconds"] is not None for row in rows):
        profiled_s = summed(rows, "seconds")
    known = all(row["least_s"] is not None for row in rows)
    times = [duration(each) if each is not None else "" for each in (predicted_s, profiled_s)]
    least = duration(summed(rows, "least_s")) if known else "n/a"
    return line(part, kind, *times, least, str(sum(row["count"] for row in rows)))


def line(part: str, kind: str, *figures: str) -> str:
    return (f"{part:<29}{kind:<20}" + "".join(f"{each:>11}" for each in figures)).rstrip()
