"""How much of a ring's communication hides in a rolled and in an unrolled loop, on 8 virtual CPU devices.

Virtual devices share cores, so their times say nothing; but XLA on CPU runs a transfer beside compute only where the
ring's loop is unrolled, and a profile must show that.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

DEVICES, SEQ_LEN, STEPS = 8, 8192, 3


def capture_ring(unroll: int, folder: Path) -> None:
    """In a process of its own, which has virtual devices."""
    import jax

    from stripectl.core.plan import parse_plan
    from stripectl.core.workload import Workload
    from stripectl.execute.program import PlanProgram
    from stripectl.profiling.capture import capture
    from stripectl.profiling.folder import HLO

    work = Workload(seq_len=SEQ_LEN, heads=4, kv_heads=4, head_dim=64, dtype="float32", passes="forward")
    program = PlanProgram(work, parse_plan(f"ring/striped/xla@ring={DEVICES},tile=512,unroll={unroll}"), jax.devices())
    compiled, inputs = program.compile({}), program.random_inputs()
    jax.block_until_ready(compiled(*inputs))
    capture(lambda: compiled(*inputs), STEPS, folder, lambda: None)
    (folder / HLO).write_text(compiled.as_text())


def main() -> None:
    from stripectl.profiling.diagnosis import ProfiledPlan
    from stripectl.profiling.folder import profile_files
    from stripectl.profiling.profiler import Tracer

    here = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}"}
    print("unroll  overlap by device (least, median, most)")
    with tempfile.TemporaryDirectory() as folder, Tracer(Path(folder)) as tracer:
        for unroll in (1, 2, DEVICES - 1):
            kept = Path(folder) / str(unroll)
            subprocess.run([sys.executable, __file__, str(unroll), str(kept)], env=here, check=True)
            found = tracer.read(profile_files(kept), {"ring": DEVICES}, ProfiledPlan(unroll=unroll))
            shares = sorted(device.ratio or 0.0 for device in found.devices)
            print(f"{unroll:6}  {shares[0]:.0%}, {shares[len(shares) // 2]:.0%}, {shares[-1]:.0%}")


if __name__ == "__main__":
    capture_ring(int(sys.argv[1]), Path(sys.argv[2])) if len(sys.argv) > 1 else main()
