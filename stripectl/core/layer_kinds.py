"""The kinds of a model's layers: their attention, and the keys that their mask keeps.

The masks of a model's layers are a pattern that repeats, and that may end within a repetition: gemma3-27b has five
layers with windows and one without, ten times, and two more with windows. A pattern is written as runs of layers with
the same mask. For one layer's attention the runs only count the layers that have each mask.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stripectl.core.layout import MASKS, SLIDING, parse_mask, plain_mask
from stripectl.errors import BadInput
from stripectl.util.json import JsonObject, is_list, is_mapping

MAX_RUNS = 2**12  # of a pattern: as many as a config.json may have layers
RUN_KEYS = {"kind", "window", "count"}


class LayerKind(NamedTuple):
    """A kind of layer: `softmax` or `linear` attention, and its mask."""

    attention: str
    mask: str

    @property
    def breadth(self) -> tuple[bool, float]:
        """A key that sorts kinds: linear layers first, then the layers whose queries see the most keys."""
        left = parse_mask(self.mask).left
        return self.attention != "linear", -(float("inf") if left is None else left)


class MaskRun(NamedTuple):
    """A number of layers in a row with the same mask."""

    mask: str
    layers: int

    def to_json(self) -> JsonObject:
        """The run as in run.json: its kind of mask, its window in keys if any, and the number of its layers."""
        left = parse_mask(self.mask).left
        if left is None:
            return {"kind": self.mask, "count": self.layers}
        return {"kind": SLIDING.removesuffix(":"), "window": left + 1, "count": self.layers}


def mask_pattern(masks: Sequence[str]) -> tuple[MaskRun, ...]:
    """The shortest pattern that repeats in the masks of layers; its last repetition may be cut short."""
    periods = range(1, len(masks) + 1)
    period = next(n for n in periods if all(mask == masks[at % n] for at, mask in enumerate(masks)))
    runs = list[MaskRun]()
    for mask in masks[:period]:
        last = runs.pop() if runs and runs[-1].mask == mask else MaskRun(mask, 0)
        runs.append(last._replace(layers=last.layers + 1))
    return tuple(runs)


def masks_of_layers(runs: Iterable[MaskRun], layers: int) -> list[str]:
    """The mask of each layer, from a pattern that repeats."""
    once = [run.mask for run in runs for _ in range(min(run.layers, layers))]
    return [once[at % len(once)] for at in range(layers)]


def mask_counts(masks: Iterable[str]) -> tuple[MaskRun, ...]:
    """The number of layers with each mask, the masks that keep the most keys first."""
    counts = Counter(masks)
    ordered = sorted(counts, key=lambda mask: LayerKind("softmax", mask).breadth)
    return tuple(MaskRun(mask, counts[mask]) for mask in ordered)


def masks_text(masks: Sequence[str]) -> str:
    """The masks of layers in words: `causal`, or `sliding:1k in 52 of 62 layers, causal in the others`."""
    (most, _), *others = mask_counts(masks)
    found = (f"{run.mask} in {run.layers} of {len(masks)} layers" for run in others)
    return ", ".join([*found, f"{most} in the others"]) if others else most


def read_mask_runs(content: object) -> tuple[MaskRun, ...]:
    """Runs of layers from a list of mappings, the form of run.json and of a model's file.

    Raises:
        BadInput: not a list of runs, each with a kind of mask, its window if it has one, and a count.
    """
    if not is_list(content) or len(content) > MAX_RUNS:
        raise BadInput(f"layer_masks must be a list of at most {MAX_RUNS} runs of layers, not {content!r:.60}.")
    return tuple(map(_read_run, content))


def _read_run(content: object) -> MaskRun:
    if not is_mapping(content) or not {"kind", "count"} <= content.keys() <= RUN_KEYS:
        raise BadInput(f"a run of layer_masks has the keys kind and count, and may have window, not {content!r:.60}.")
    kind, count, window = content["kind"], content["count"], content.get("window")
    if type(count) is not int or not 1 <= count <= MAX_RUNS:
        raise BadInput(f"the count of a run of layer_masks is an integer from 1 to {MAX_RUNS}, not {count!r:.60}.")
    if kind == SLIDING.removesuffix(":") and type(window) is int:
        mask = f"{SLIDING}{window}"
    elif isinstance(kind, str) and kind in MASKS and window is None:
        mask = kind
    else:
        known = ", ".join([*MASKS, "sliding"])
        raise BadInput(
            f"a run of layer_masks has the kind {kind!r:.30} and the window {window!r:.30}. Known kinds: {known}; only "
            "sliding has a window."
        )
    return MaskRun(plain_mask(mask), count)
