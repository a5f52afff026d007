"""Documents that are packed in the sequences of a batch, written as lengths, as starts, or as the document of each
token; NumPy only, so that a data loader can use it.

Letters: B sequences, D documents of a sequence, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stripectl.errors import BadInput


@dataclass(frozen=True, eq=False)
class Packing:
    """The documents of every sequence of a batch. Make it by `from_lengths`, `from_starts` or `from_segment_ids`.

    `starts` is what `sequence_parallel_attention` takes as `documents`: int32 (batch, documents), the position at which
    each document begins, ascending from 0. Sequences with fewer documents than others are padded with `seq_len`.
    """

    starts: np.ndarray
    seq_len: int

    @classmethod
    def from_lengths(cls, lengths: Sequence[Sequence[int]] | np.ndarray, seq_len: int | None = None) -> "Packing":
        """From the number of tokens of each document: a list per sequence, or int (batch, documents) padded with 0.

        `seq_len` is the number of tokens of a sequence, by default of the longest. Tokens behind the last document,
        which are padding, are one more document.

        Raises:
            BadInput: a length is not a positive integer, or a sequence has more than seq_len tokens.
        """
        rows = [_without_padding(_integers("lengths", each)) for each in lengths]
        if not rows or any(not each.size or each.min() < 1 for each in rows):
            shown = [each.tolist() for each in rows]
            raise BadInput(
                f"cannot pack documents because lengths must be positive, with zeros only behind them, not {shown}. "
                f"Try lengths=[[4, 2], [6]] for two sequences of 6 tokens."
            )
        longest = max(int(each.sum()) for each in rows)
        seq_len = longest if seq_len is None else seq_len
        if longest > seq_len:
            raise BadInput(
                f"cannot pack documents because they have {longest} tokens and a sequence has {seq_len}. Try "
                f"seq_len={longest}."
            )
        ends = [np.cumsum(each) for each in rows]
        starts = [np.concatenate([[0], each[each < seq_len]]) for each in ends]
        most = max(map(len, starts))
        return cls(np.stack([_padded(each, most, seq_len) for each in starts]), seq_len)

    @classmethod
    def from_starts(cls, starts: Sequence[Sequence[int]] | np.ndarray, seq_len: int) -> "Packing":
        """From int (batch, documents), where documents begin: ascending from 0, padded with seq_len.

        Raises:
            BadInput: starts do not ascend from 0 to less than seq_len.
        """
        found = np.stack([_integers("starts", each) for each in starts])
        check_starts(found, seq_len, "starts")
        return cls(found.astype(np.int32), seq_len)

    @classmethod
    def from_segment_ids(cls, segment_ids: Sequence[Sequence[int]] | np.ndarray) -> "Packing":
        """From int (batch, positions), the document of each token in the order of the text. Equal numbers are adjacent.

        Raises:
            BadInput: a number comes back after another one.
        """
        ids_BT = np.stack([_integers("segment_ids", each) for each in segment_ids])
        check_segment_ids(ids_BT)
        length = ids_BT.shape[1]
        starts = [np.concatenate([[0], 1 + np.flatnonzero(np.diff(each))]) for each in ids_BT]
        most = max(map(len, starts))
        return cls(np.stack([_padded(each, most, length) for each in starts]), length)

    @property
    def lengths(self) -> np.ndarray:
        """int32 (batch, documents): the number of tokens of each document, padded with 0."""
        return np.diff(self.starts, axis=1, append=np.int32(self.seq_len))

    @property
    def segment_ids(self) -> np.ndarray:
        """int32 (batch, positions): the document of each token, counted from 1, in the order of the text. For a plan,
        `segment_ids[:, positions(plan, seq_len)]`."""
        tokens = np.arange(self.seq_len)
        return np.stack([np.searchsorted(each, tokens, "right") for each in self.starts]).astype(np.int32)


def check_starts(starts_BD: np.ndarray, seq_len: int, name: str) -> None:
    """Do nothing where each sequence's starts ascend from 0 and are padded with its length.

    Raises:
        BadInput: they do not; the advice is for what they may be instead.
    """
    before, after = starts_BD[:, :-1], starts_BD[:, 1:]
    ascends = (after > before) | ((before == seq_len) & (after == seq_len))
    wrong = (starts_BD[:, 0] != 0) | ~ascends.all(1) | (starts_BD > seq_len).any(1)
    if not wrong.any():
        return
    at = int(np.flatnonzero(wrong)[0])
    row = starts_BD[at]
    first_fall = int(np.argmax(~ascends[at])) + 1 if not ascends[at].all() else len(row)
    shown = f"[{', '.join(map(str, row[:6]))}{', ...' * (len(row) > 6)}]"
    if len(row) == seq_len:
        advice = f"For the document of each token, try segment_ids={name}."
    elif row[0] == 0 and (row[first_fall:] <= 0).all():
        advice = f"Try {seq_len} in place of the padding {row[-1]}, or stripectl.Packing."
    elif row[0] == 0:
        advice = f"Try numpy.sort({name}, axis=1), with padding of {seq_len}."
    elif (row >= 0).all() and row.sum() <= seq_len:
        advice = f"For lengths, try Packing.from_lengths({name}, {seq_len}).starts; for starts, put 0 before them."
    else:
        advice = "Try 0 before them."
    raise BadInput(
        f"cannot read {name} because sequence {at} has {shown}, and starts ascend from 0 to less than "
        f"{seq_len}, padded with {seq_len}. {advice}"
    )


def check_segment_ids(ids_BT: np.ndarray) -> None:
    """Do nothing where equal numbers are adjacent in each sequence, in the order of the text.

    Raises:
        BadInput: a number comes back after another one.
    """
    for at, ids_T in enumerate(ids_BT):
        begins = np.concatenate([[True], ids_T[1:] != ids_T[:-1]])
        runs = ids_T[begins]
        if len(np.unique(runs)) < len(runs):
            numbers, counts = np.unique(runs, return_counts=True)
            back = numbers[counts > 1][0]
            raise BadInput(
                f"cannot read segment_ids because document {back} of sequence {at} comes back after another one, in "
                f"the order of the text. Try a number of its own for each run of tokens, and "
                f"segment_ids[:, positions(plan, seq_len)] for the order of a plan."
            )


def _integers(name: str, values: Any) -> np.ndarray:
    """One sequence's integers.

    Raises:
        BadInput: something else.
    """
    try:
        found = np.asarray(values)
    except ValueError:  # a list of lists of several lengths
        found = np.zeros((0, 0))
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
        raise BadInput(
            f"cannot read {name} because each sequence of the batch needs a list of integers, and one has "
            f"{values!r:.60}. Try {name}=[[...]] with one list for each sequence."
        )
    return found


def _without_padding(lengths_D: np.ndarray) -> np.ndarray:
    return np.trim_zeros(lengths_D, "b")


def _padded(starts: np.ndarray, most: int, seq_len: int) -> np.ndarray:
    return np.pad(starts, (0, most - len(starts)), constant_values=seq_len).astype(np.int32)
