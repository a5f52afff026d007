"""Pallas kernels compiled for a TPU that is not here, and what the compiler says their tiles cost."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stripectl.compile.compiler import CompilerPool
from stripectl.core.kernel import kernels as catalogue
from stripectl.core.layout import Tile
from stripectl.core.linear_attention import CONSTANT
from stripectl.costs.shape import Heads, TileShape
from stripectl.costs.sources.entries import effective_clock_hz
from stripectl.costs.sources.small_programs import TileCycles
from stripectl.costs.sources.table import table_of
from stripectl.errors import StripectlError
from stripectl.hardware.profile import Hardware
from stripectl.hlo.llo_bundles import KernelBundles, dump_flags, kernel, kernels
from stripectl.results.tile_cost import SECONDS

AHEAD = """
import sys
from jax.experimental import topologies
from stripectl.execute.program import PlanProgram
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload

devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
work = Workload(seq_len=8192, heads=4, kv_heads=2, head_dim=128, passes="forward-backward")
program = PlanProgram(work, parse_plan(f"ring/striped/{sys.argv[1]}@ring=4,tile=512"), devices)
print(program.function.lower(*program.shapes).compile().as_text())
"""
FLOPS_A_CYCLE = 4 * 2 * 128 * 128  # of v5e: four matrix units of 128x128


@pytest.mark.compilers
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="libtpu, the TPU compiler, is not installed")
@pytest.mark.parametrize("name", ["splash", "pallas_tpu", "pallas_bounded"])
def test_a_ring_compiled_for_a_tpu_that_is_not_here(name: str, tmp_path: Path) -> None:
    """Compiled or interpreted is decided by what the program is lowered for: the default backend is a CPU here."""
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "LIBTPU_INIT_ARGS": dump_flags(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", AHEAD, name], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    found, parts = kernels(tmp_path), [part for parts in catalogue[name].costs.bundles.values() for part in parts]
    known = [each for each in found if any(part.name in each.name for part in parts)]
    for each in known:
        assert f"%{each.name} = " in done.stdout
        (part,) = (part for part in parts if part.name in each.name)
        assert each.steps == (None if part.only_live else 4 * 4 * 4)  # heads, rows and columns of tiles
        least = part.matmuls * 2 * 512 * 512 * 128 / FLOPS_A_CYCLE
        assert 0.85 < each.tile / least < 1.5 and each.tile <= each.boundary < 1.2 * each.tile
        assert each.step < each.tile / 4 and (part.only_live or each.row < each.tile)
        assert 0 < each.units["MXU"] <= each.tile and all(cycles <= each.tile for cycles in each.units.values())
    for part in parts:
        masked = {each.masked for each in found if part.name in each.name}
        assert masked == ({True} if part.only_live else {True, False})


@pytest.mark.compilers
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="libtpu, the TPU compiler, is not installed")
@pytest.mark.parametrize("machine", ["v5e", "v5p"])
@pytest.mark.parametrize(("kernel", "recurrence"), [("pallas_gated", "mamba2"), ("pallas_chunked", CONSTANT)])
def test_chunks_cost_what_the_table_says(kernel: str, recurrence: str, machine: str) -> None:
    hardware, table = Hardware.load(machine), table_of(Hardware.load(machine))
    shape = TileShape(kernel, "bfloat16", Heads(128, 128), Tile(64, 64), recurrence)
    with CompilerPool(lambda *_: None, cached=False) as compilers:
        made = compilers.small_program(shape, hardware)
    assert made and made.cycles.keys() == {"forward", "backward"}
    for passes, cycles in made.cycles.items():
        shipped = table and table.entry(shape._replace(passes=passes))
        assert shipped and cycles.whole > 0 and cycles.boundary > 0
        rounded = TileCycles(*map(round, cycles)).cost(effective_clock_hz(hardware, "bfloat16"))
        assert all(getattr(rounded, name) == pytest.approx(getattr(shipped.cost, name)) for name in SECONDS)


def test_a_folder_without_a_dump_has_a_reason(tmp_path: Path) -> None:
    with pytest.raises(StripectlError, match="no final bundles"):
        kernels(tmp_path)
    (tmp_path / "123-fusion.1-03-final_bundles.txt").write_text(
        "     0   :  {} /* entry bundle: %fusion.1 = fusion */\n"
    )
    with pytest.raises(StripectlError, match="no Pallas kernel"):
        kernels(tmp_path)


BUNDLES = """key
     0   :  { %s1 = smov 0
shape } /* entry bundle: %k.1 = custom-call(%a) */
   0x1 LB: > { %s2 = sadd.s32 1, %s3 }
   0x2   : > { %4 = sbr.rel (%p1) target = $region9 }
   0x3   : > { %v1 = vmatmul.bf16.gmra.mxu0 %v2  ;;  %v3 = vmatmul.bf16.gmra.mxu1 %v4 }
   0x4   : > { %5 = sbr.rel (%p2) target = $region7 }
   0x5   : > { %6 = vst [vmem:[%s1] sm:$0xff] %v1 }
   0x6 PF: > { %p3 = scmp.ge.s32.totalorder %s2, 18 /* loop exit test */ } /* Start/End empty region 7 */
   0x7 PF: > { %7 = sbr.rel (!%p3) target = $region20 } /* Start/End empty region 9 :: Start region 3 */
   0x8   :  {} /* exit bundle */
"""


def test_regions_are_told_apart() -> None:
    found = kernel("k.1", BUNDLES)
    assert found == KernelBundles("k.1", 16, tile=3, boundary=3, step=3, row=1, masked=False)


UNITS = """== CAPACITY:
MXU, VALU
    2     4
== UTILIZATION:
""" + "\n".join(["0 4", "1 0", "0 1", "2 2", "1 0", "0 2", "1 0", "1 1", "0 0"])


def test_the_units_of_a_whole_tile_are_read_with_its_bundles() -> None:
    assert kernel("k.1", BUNDLES, UNITS).units == {"MXU": 2.0, "VALU": 0.5}  # of bundles 3, 4 and 6


OTHER_UNITS = ["", "== CAPACITY:\nMXU\n", UNITS.replace("2 2", "2 x"), UNITS.replace("2 2", "2"), UNITS[:-12]]
OTHER_UNITS.append(UNITS.replace("    2     4", "    0     4"))


@pytest.mark.parametrize("table", OTHER_UNITS)
def test_another_table_of_units_is_left_out(table: str) -> None:
    assert kernel("k.1", BUNDLES, table).units == {}


def test_a_grid_as_long_as_the_device_says() -> None:
    """Two tiles of a step, of which the longer one masks."""
    two = BUNDLES.replace(" 18 /* loop exit test */", " %s9").replace(
        "vst [vmem", "vmatmul.x ;; %9 = vmatmul.y ;; vst [vmem"
    )
    assert kernel("k.1", two) == KernelBundles("k.1", None, tile=1, boundary=3, step=3, row=0, masked=True)


def test_a_boundary_tile_may_leave_out_matmuls() -> None:
    """Two of three; a region with fewer than half of them starts or ends a row."""
    three = BUNDLES.replace("vmatmul.bf16.gmra.mxu1 %v4", "vmatmul.x ;; %8 = vmatmul.y")
    two = kernel("k.1", three.replace("vst [vmem", "vmatmul.x ;; %9 = vmatmul.y ;; vst [vmem"))
    assert (two.tile, two.boundary, two.row, two.boundary_matmuls) == (3, 1, 0, pytest.approx(2 / 3))
    one = kernel("k.1", three.replace("vst [vmem", "vmatmul.x ;; vst [vmem"))
    assert (one.tile, one.boundary, one.row, one.boundary_matmuls) == (3, 3, 1, 1.0)


@pytest.mark.parametrize(("old", "new"), [("LB", "  "), ("vmatmul", "other"), ("0x5", "0x9")])
def test_another_format_is_not_read(old: str, new: str) -> None:
    with pytest.raises(StripectlError, match="unknown"):
        kernel("k.1", BUNDLES.replace(old, new))
