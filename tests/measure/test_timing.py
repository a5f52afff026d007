"""How often a worker runs what it times."""

import time

from stripectl.measure import timing


def test_an_accelerator_gets_short_runs_in_a_queue(monkeypatch) -> None:
    """So that the host's time to start a program counts once per sample and not once per run."""
    started = []

    def run() -> None:
        started.append(time.perf_counter())
        time.sleep(1e-3)

    assert timing.runs_of_sample(run) == 1 and started == []
    monkeypatch.setattr(timing.jax, "default_backend", lambda: "gpu")
    assert 1 < timing.runs_of_sample(run) <= timing.MIN_SAMPLE_S / 1e-3
    assert timing.runs_of_sample(lambda: None) == timing.MAX_QUEUED_RUNS
    started.clear()
    each = timing.seconds(run, runs=5)
    assert len(started) == 5 and each >= 1e-3
