"""Calls of the Python interface, which pyright checks (`make lint`) and nobody runs: what an editor knows of arguments.

A comment on each wrong call says which error pyright reports; without the error the comment itself is one.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from pathlib import Path
from typing import assert_type

import stripectl
from stripectl.core.plan import Plan, parse_plan
from stripectl.results.run import Run


def right_calls(plan: Plan) -> None:
    assert_type(stripectl.bench(), Run)
    stripectl.bench(tile=(1024, 512), mesh={"ring": 8}, seqlen=262144, plan=plan)
    stripectl.bench(tile=[(1024, 512), 256, "512x1024"], mesh=["auto"], seqlen=["64k", 4096], plan=[plan, "ring"])
    stripectl.bench(tile="1024x512", mesh="ring=8,tensor=2", pass_="step", model=Path("config.json"), time_budget=90)
    stripectl.tune_tiles(strategy="exhaustive", output="run", resume=True)
    assert_type(stripectl.trace(parse_plan("ring@ring=4"), steps=5), Run)
    stripectl.trace(plan="ring@ring=4")


def wrong_calls() -> None:
    stripectl.bench(sequence="64k")  # pyright: ignore[reportCallIssue]
    stripectl.bench("64k")  # pyright: ignore[reportCallIssue]
    stripectl.bench(tile="x", heads="many")  # pyright: ignore[reportArgumentType]
    stripectl.bench(tile=3.5)  # pyright: ignore[reportArgumentType]
    stripectl.bench(mesh={"ring": "8"})  # pyright: ignore[reportArgumentType]
    stripectl.bench(method="simulate")  # pyright: ignore[reportArgumentType]
    stripectl.tune_tiles(strategy="rase")  # pyright: ignore[reportArgumentType]
    stripectl.trace()  # pyright: ignore[reportCallIssue]
    stripectl.trace("ring@ring=4", resume=True)  # pyright: ignore[reportCallIssue]
