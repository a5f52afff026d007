"""Short convolutions across shards: values, gradients, and the bytes of their halos."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stripectl.core.layout import layouts
from stripectl.core.plan import REMAT
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import STEP, Workload
from stripectl.errors import BadInput
from stripectl.execute.comm import JaxComm
from stripectl.execute.convolution import convolved
from stripectl.execute.ops import JaxOps
from stripectl.execute.program import mesh_of, partition
from stripectl.hlo.module import collectives, parse_module
from stripectl.layers.short_convolution import short_convolution
from stripectl.simulate.step_program import run_step
from tests.support.jaxprs import transfers
from tests.support.plans import reference_plan as parse_plan
from tests.support.training import BATCH, LINEAR, LOSS, RECURRENT_GRADIENTS, errors, trained, training

MODEL = replace(LINEAR, decay="1", kv_heads=4, recurrence="gdn", key_heads=2, d_conv=4)
HALO = "collective-permute"


def convolution(x_BNTH, weight_NHD):
    """The same by XLA's convolution, with a group per head and element."""
    batch, heads, rows, size = x_BNTH.shape
    wide = x_BNTH.transpose(0, 1, 3, 2).reshape(batch, heads * size, rows)
    tokens = weight_NHD.shape[-1]
    kernel = weight_NHD.reshape(heads * size, 1, tokens)
    found = lax.conv_general_dilated(wide, kernel, (1,), [(tokens - 1, 0)], feature_group_count=heads * size)
    return jax.nn.silu(found).reshape(batch, heads, size, rows).transpose(0, 1, 3, 2)


@pytest.mark.parametrize(
    "plan",
    ["lasp@ring=4,data=2", "lasp2/zigzag/gated@ring=4", "ulysses/contiguous/gated@ulysses=2,tensor=2", "lasp@ring=1"],
)
def test_shards_convolve_like_the_whole_sequence(plan: str) -> None:
    parsed, rng = parse_plan(plan), np.random.default_rng(0)
    shapes, tokens = [(2, 2, 32, 8), (2, 2, 32, 8), (2, 4, 32, 12)], 4
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
    weights = [rng.standard_normal((shape[1], shape[3], tokens), np.float32) for shape in shapes]
    cotangents = [rng.standard_normal(shape, np.float32) for shape in shapes]
    order = layouts[parsed.layout].permutation(parsed.shards, 32)
    rows = partition(parsed)
    specs = [rows] * 3, [jax.sharding.PartitionSpec(rows[1])] * 3

    def of_shard(arrays, weights):
        return short_convolution(arrays, weights, parsed, JaxOps(parsed, "float32"), JaxComm(parsed))

    @jax.jit
    def sharded(arrays, weights):
        mesh = mesh_of(parsed, jax.devices())
        mapped = jax.shard_map(of_shard, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)
        return [x[:, :, np.argsort(order)] for x in mapped([x[:, :, order] for x in arrays], weights)]

    def whole(arrays, weights):
        return [convolution(x, weight) for x, weight in zip(arrays, weights, strict=True)]

    for compute in (lambda f: f(arrays, weights), lambda f: jax.vjp(f, arrays, weights)[1](cotangents)):
        for found, expected in zip(jax.tree.leaves(compute(sharded)), jax.tree.leaves(compute(whole)), strict=True):
            assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-6


def test_gradients_hold_few_arrays() -> None:
    """Four float32 arrays, where JAX's transpose of the same sums holds seven."""
    shapes = (1, 4, 1024, 64), (1, 4, 3, 64), (4, 64, 4), (1, 4, 1024, 64)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    gradients = jax.jit(lambda *given: jax.vjp(convolved, *given[:-1])[1](given[-1]))
    memory = gradients.lower(*arrays).compile().memory_analysis()
    assert memory and memory.temp_size_in_bytes < 5 * 4 * math.prod(shapes[0])


@pytest.mark.training
@pytest.mark.parametrize(
    "plan",
    [
        "linear_scan/contiguous/gated@data=2,ring=4,chunk=4,remat=attention",
        "ulysses/contiguous/gated@fsdp=2,ulysses=2,tensor=1,chunk=0",
        "lasp2/zigzag/gated@data=2,ring=4,chunk=4",
    ],
)
def test_a_step_with_short_convolutions_is_the_single_devices_step(plan: str) -> None:
    """The losses of three steps, and the gradients of the first. Adam divides the gradients of weights by their size,
    so weights whose gradient is nearly 0 move by rounding."""
    one = trained("lasp/contiguous/gated@ring=1,chunk=0,remat=none", model=MODEL)
    found = trained(plan, model=MODEL)
    assert np.allclose(found["losses"], one["losses"], rtol=LOSS, atol=0)
    assert max(errors(found["gradients"], one["gradients"])) < RECURRENT_GRADIENTS


@pytest.mark.training
@pytest.mark.parametrize(("layout", "remat"), [("zigzag", "full"), *(("contiguous", remat) for remat in REMAT)])
def test_a_halo_sends_what_its_arithmetic_says(layout: str, remat: str) -> None:
    """One permute per layer, pass and run of tokens, of d_conv - 1 rows of queries, keys and values; in the jaxpr, and
    compiled."""
    run = training(f"lasp2/{layout}/gated@data=2,ring=4,chunk=4,remat={remat}", model=MODEL)
    given = run.abstract_parameters, run.abstract_batch
    traced = [each for each in transfers(jax.make_jaxpr(run.gradients)(*given).jaxpr, run.plan) if each[0] == HALO]
    wanted = sum(each.nbytes * each.times for each in run_step(run.workload, run.plan).sent if each.opcode == HALO)
    row = (2 * 2 * MODEL.head_dim + 4 * MODEL.head_dim) * 4  # bytes of its queries, keys and values
    assert wanted == layouts[layout].pieces * MODEL.layers * (2 if remat == "none" else 3) * 3 * BATCH // 2 * row
    assert sum(nbytes * times for _, _, nbytes, times in traced) == wanted
    module = parse_module(run.gradients.lower(*given).compile().as_text() or "")
    assert sum(each.sent_bytes * each.times for each in collectives(module) if each.opcode == HALO) == wanted


def test_a_halo_comes_from_the_next_shard_alone() -> None:
    work = Workload(seq_len=16, batch=1, dtype="float32", passes=STEP, model="tiny", **MODEL.step_sizes)
    reason = why_unsupported(parse_plan("lasp2/contiguous/gated@ring=8"), work, "cpu", 8)
    assert "needs 3 adjacent rows; a device has 2" in str(reason)
    with pytest.raises(BadInput, match="from 2 to 64"):
        replace(work, d_conv=1)
    with pytest.raises(BadInput, match="Omit d_conv"):
        replace(work, recurrence="decay", key_heads=None)
