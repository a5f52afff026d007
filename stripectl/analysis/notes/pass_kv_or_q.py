"""pass-KV or pass-Q, by the rule of Yang et al. 2024 (arXiv:2411.01783, Algorithm 1).

Some of the keys that queries attend to are new, the others cached. The rule chooses passing K/V where it sends
fewer bytes than passing queries, T / (T + P) >= 2 K / H, or where enough queries attend to hide its transfers,
T >= N C K e / (2 H B): T new tokens and P cached tokens, K key/value heads of H heads, N
devices of C FLOP/s with links of B bytes/s, and e bytes per element.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from stripectl.analysis.fastest_of_schemes import fastest_alike
from stripectl.analysis.note import Note
from stripectl.core.workload import DTYPE_BYTES, Workload
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.util.units import rate, times

PASS_KV, PASS_Q = "pass_kv", "pass_q"


@dataclass(frozen=True)
class PassRule:
    """The rule's inputs and its choice. Without known rates its second condition is not used."""

    workload: Workload
    devices: int
    flops_per_s: float | None
    bytes_per_s: float | None

    @property
    def miss_rate(self) -> float:
        """The share of keys that are not cached."""
        return self.workload.queries / self.workload.seq_len

    @property
    def enough_misses(self) -> float:
        return 2 * self.workload.kv_heads / self.workload.heads

    @property
    def enough_queries(self) -> float | None:
        work = self.workload
        if not self.flops_per_s or not self.bytes_per_s:
            return None
        element = DTYPE_BYTES[work.dtype]
        return self.devices * self.flops_per_s * work.kv_heads * element / (2 * work.heads * self.bytes_per_s)

    @property
    def scheme(self) -> str:
        hides = self.enough_queries is not None and self.workload.queries >= self.enough_queries
        return PASS_KV if hides or self.miss_rate >= self.enough_misses else PASS_Q


@dataclass(frozen=True)
class PassComparison:
    """The fastest plan that passes K/V and the fastest that passes queries, on the fastest mesh that has both."""

    pass_kv: Measurement
    pass_q: Measurement

    @property
    def rule(self) -> PassRule:
        """The rule with the rates behind the time of the plan that passes queries."""
        m, work = self.pass_q, self.pass_q.workload
        return PassRule(work, m.plan.shards, compute_rate(m), m.slowest_bytes_per_s)

    @property
    def sentence(self) -> str:
        """The choice of the rule, its inputs, and the comparison of the two here."""
        rule, m, queries = self.rule, self.pass_q, self.pass_q.workload.queries
        many = f"{rule.enough_queries:,.0f}" if rule.enough_queries else "n/a (no rates)"
        ratio = (self.pass_kv.median_s or 0.0) / (m.median_s or 1.0)
        misses = f"KV cache miss rate {rule.miss_rate:.2g} (pass_kv from 2 kv_heads / heads = {rule.enough_misses:.2g})"
        links = rate(rule.bytes_per_s, "B/s")
        machine = f"{rule.devices} devices of {rate(rule.flops_per_s, 'FLOP/s')} and links of {links}"
        return (
            f"{rule.scheme} by arXiv:2411.01783, Algorithm 1: {misses}, queries {queries:,} (pass_kv from {many} on "
            f"{machine}); here pass_q is {times(ratio)} as fast ({m.method})"
        )


def compute_rate(m: Measurement) -> float | None:
    """FLOP/s of a device, as its datasheet gives it, or as it computes whole tiles."""
    known, tile, work = m.cost_source, m.plan.tile, m.workload
    if known and known.rates.flops_per_s:
        return known.rates.flops_per_s
    if tile is None or known is None or known.forward is None or not known.forward.whole_s:
        return None
    return 2 * tile.block_q * tile.block_kv * (work.head_dim + work.value_dim) / known.forward.whole_s


def pass_comparisons(run: Run) -> list[PassComparison]:
    """One for each inference and method with both kinds of plans."""
    groups: dict[Hashable, list[Measurement]] = {}
    for m in sorted((m for m in run.results if m.median_s), key=lambda m: m.median_s or 0.0):
        if m.workload.query_len:
            groups.setdefault((m.workload, m.target, m.method), []).append(m)
    pairs = (fastest_alike(members, (PASS_KV, PASS_Q), lambda m: m.plan.mesh) for members in groups.values())
    return [PassComparison(each[PASS_KV], each[PASS_Q]) for each in pairs if each]


note = Note(label="rule", find=lambda run: [each.sentence for each in pass_comparisons(run)], order=30)
