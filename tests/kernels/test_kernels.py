"""Kernels on bands of any kind, against dense attention differentiated by JAX, log-sum-exp included."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stripectl.core.kernel import kernels
from stripectl.core.layout import UNBOUNDED, MaskBlock, Tile
from stripectl.kernels.xla.power_of_two import power_of_two
from tests.support.kernels import COLS, ROWS, check_rectangles

BANDS = {
    "whole": (-UNBOUNDED, UNBOUNDED),
    "causal": (-UNBOUNDED, 0),
    "below the diagonal": (-UNBOUNDED, -1),
    "window": (-5, 0),
    "both sides": (-3, 4),
    "offset": (-UNBOUNDED, 9),
    "far": (8, UNBOUNDED),
}
SOFTMAX = [name for name in kernels.names() if kernels[name].family == "softmax"]
ANY_BAND = [name for name in SOFTMAX if kernels[name].tile_multiple == 1 and not kernels[name].counting_tile]


RAGGED = Tile(7, 5)  # divides neither rows nor columns, so it has tiles of every kind


def bands_and_tiles() -> list:
    """Every band with a ragged tile, and some with tiles that divide the block, or are all of it."""
    return [
        pytest.param(band, tile, marks=() if tile == RAGGED or band in ("causal", "window") else pytest.mark.exactness)
        for band, tile in itertools.product(BANDS, (Tile(8, 12), RAGGED, Tile(24, 36)))
    ]


@pytest.mark.parametrize("name", ANY_BAND)
@pytest.mark.parametrize(("band", "tile"), bands_and_tiles())
def test_values_and_gradients_of_any_band(name: str, band: str, tile: Tile) -> None:
    check_rectangles(name, [MaskBlock(0, 0, ROWS, COLS, *BANDS[band])], tile)


def test_values_and_gradients_where_memory_has_tiles(monkeypatch) -> None:
    """As for a TPU, whose memory is no line."""
    monkeypatch.setattr(kernels["xla"].load(), "compiled_platform", lambda: "tpu")
    check_rectangles("xla", [MaskBlock(0, 0, ROWS, COLS, *BANDS["causal"])], Tile(7, 5))


@pytest.mark.parametrize("name", ANY_BAND)
@pytest.mark.parametrize("band", ["whole", "causal", "window"])
@pytest.mark.parametrize("tile", [Tile(8, 12), Tile(7, 5)])
def test_values_and_gradients_of_packed_documents(name: str, band: str, tile: Tile) -> None:
    """Each sequence of a batch has documents of its own; a query of one here meets columns before or behind it."""
    rows = np.arange(ROWS)
    firsts = np.stack([rows // 10 * 13 - 4, np.where(rows < 5, -3, 2)])
    ends = np.stack([rows // 10 * 13 + 9, np.where(rows < 5, 2, COLS + 7)])
    check_rectangles(name, [MaskBlock(0, 0, ROWS, COLS, *BANDS[band], (jnp.asarray(firsts), jnp.asarray(ends)))], tile)


def test_a_state_carries_on_where_another_block_left_off() -> None:
    """Two blocks of keys, one after the other, are both at once."""
    module = kernels["xla"].load()
    rng = np.random.default_rng(1)
    q, k, v = (jnp.asarray(rng.standard_normal((1, 2, 16, 8), np.float32)) for _ in range(3))
    empty = jnp.zeros(q.shape), jnp.full(q.shape[:3], module.EMPTY), jnp.zeros(q.shape[:3])

    def attend(k, v, state):
        return module.forward(q, k, v, state, [MaskBlock(0, 0, 16, k.shape[2], -UNBOUNDED, UNBOUNDED)], Tile(4, 4))

    once = attend(k, v, empty)
    twice = attend(k[:, :, 8:], v[:, :, 8:], attend(k[:, :, :8], v[:, :, :8], empty))
    for one, two in zip(once, twice, strict=True):
        assert np.allclose(one, two, rtol=1e-6, atol=1e-6)


def test_a_power_of_two() -> None:
    """To within what its docstring says; a dropped score's is nothing, and what is no number stays so."""
    x = np.linspace(-126, 127, 1_000_003).astype(np.float32)
    found = np.asarray(jax.jit(power_of_two)(x), np.float64)
    assert np.all(np.abs(found / np.exp2(x.astype(np.float64)) - 1) <= 3e-7)
    assert (
        power_of_two(jnp.float32(-127)) == power_of_two(jnp.float32(-1e30)) == power_of_two(jnp.float32(-jnp.inf)) == 0
    )
    assert jnp.isnan(power_of_two(jnp.float32(jnp.nan)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_a_tile_are_computed_once(dtype: str) -> None:
    """For the sum and the matmul that read them: in the loop of whole tiles and in the two of boundary ones."""
    x, state = jnp.ones((1, 1, 512, 64), dtype), (jnp.zeros((1, 1, 512, 64)), *[jnp.zeros((1, 1, 512))] * 2)
    bands = [MaskBlock(0, 0, 512, 512, *BANDS["causal"])]
    forward = jax.jit(lambda x, state: kernels["xla"].load().forward(x, x, x, state, bands, Tile(128, 128)))
    text = forward.lower(x, state).compile().as_text()
    assert text and text.count(" round-nearest-even(") == 3


def test_rows_are_read_and_written_where_their_start_says() -> None:
    """Without the operations by which a start could count from the end."""
    module, x = kernels["xla"].load(), jnp.arange(2 * 3 * 8 * 4, dtype=jnp.float32).reshape(2, 3, 8, 4)
    double = jax.jit(lambda x, at: module.accumulate(x, at, module.read_rows(x, at, 3)))
    found = double(x, (jnp.int32(1), jnp.int32(2), jnp.int32(4)))
    assert jnp.array_equal(found, x.at[1, 2, 4:7].multiply(2))
    assert "stablehlo.select" not in double.lower(x, (jnp.int32(0),) * 3).as_text()


def test_no_matmul_of_a_cpu_reads_its_first_factor_turned() -> None:
    """Of keys in several pieces, the last of them short."""
    module = kernels["xla"].load()
    keys = jnp.asarray(np.random.default_rng(0).normal(size=(300, 64)), jnp.float32)
    assert jnp.array_equal(module.transpose_keys(keys), keys.T)
    x, row, bands = jnp.ones((1, 1, 600, 64)), jnp.ones((1, 1, 600)), [MaskBlock(0, 0, 600, 600, *BANDS["causal"])]
    backward = jax.jit(lambda x, row: module.backward(x, x, x, x, row, row, x, bands, Tile(300, 300)))
    text = backward.lower(x, row).compile().as_text() or ""
    assert text.count("lhs_contracting_dims={1}") == 15  # five of a whole tile and of each of two boundary loops
    assert "lhs_contracting_dims={0}" not in text
