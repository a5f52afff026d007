"""Fits the two constants a device that the striped attention paper's kernel costs (`profiles/published/
striped-kernel.yaml`) to all speed-ups that were measured on it.

    python benchmarks/paper_kernel.py v3 v4 a100      # a minute each
"""

import sys
from dataclasses import replace

import numpy as np
from scipy.optimize import minimize

from stripectl.analysis.accuracy.paper import paper_kernel, speed_up
from stripectl.analysis.striped_attention_paper import published_rows

STARTS = {"tile": 1.5, "boundary": 1.1, "dead": 0.2}


def main(names: list[str]) -> None:
    for name in names:
        known = paper_kernel()[name]
        free = [constant for constant in STARTS if getattr(known, constant) is not None]
        measured = [
            (what, value) for what, (_, value) in published_rows().items() if what[0] == name and value is not None
        ]

        def errors(found: np.ndarray, name=name, known=known, free=free, measured=measured) -> np.ndarray:
            kernel = replace(known, **dict(zip(free, np.abs(found).tolist(), strict=True)))
            return np.array(
                [
                    speed_up(name, model, tensor, ring, length, kernel) - value
                    for (_, model, tensor, ring, length), value in measured
                ]
            )

        fit = minimize(
            lambda found: float((errors(found) ** 2).mean()),
            [STARTS[each] for each in free],
            method="Nelder-Mead",
            options={"maxiter": 60},
        )
        left = errors(fit.x)
        said = ", ".join(f"{each} {abs(value):.3f}" for each, value in zip(free, fit.x, strict=True))
        rmse = float(np.sqrt((left**2).mean()))
        print(f"{name}: {said}; {len(left)} rows, RMSE {rmse:.3f}, worst {np.abs(left).max():.3f}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["v3", "v4", "a100"])
