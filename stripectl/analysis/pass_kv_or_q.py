"""pass-KV or pass-Q, by the rule of Yang et al. 2024 (arXiv:2411.01783, Algorithm 1).

Some of the keys that queries attend to are new, the others cached. The rule chooses passing K/V where it sends
fewer bytes than passing queries, T / (T + P) >= 2 K / H, or where enough queries attend to hide its transfers,
T >= N C K e / (2 H B): T new tokens and P cached tokens, K key/value heads of H heads, N
devices of C FLOP/s with links of B bytes/s, and e bytes per element.
"""

from dataclasses import dataclass

from stripectl.core.workload import DTYPE_BYTES, Workload

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
