"""The compiler's report on a plan: the answer of its worker, and the part that is kept on disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stripectl.results.compiled_program import CompiledProgram
from stripectl.results.records import Sparse


@dataclass(frozen=True, kw_only=True)
class CompilerReport(Sparse):
    """The compile time, the peak memory of the program on a device and its part of the host's memory, and the bytes
    that a device sends, by opcode; or the compiler's message where it refuses the program. `by_kind` are the programs
    of a layer of each kind where a model has several kinds: in the whole program their tiles are not distinguished."""

    compile_s: float
    refused: str | None = None
    peak_bytes: int | None = None
    host_bytes: int | None = None
    bytes: Mapping[str, int] | None = None
    program: CompiledProgram = field(default_factory=CompiledProgram)
    by_kind: tuple[CompiledProgram, ...] = ()

    @property
    def kinds(self) -> tuple[CompiledProgram, ...]:
        """The program of a layer of each kind."""
        return self.by_kind or (self.program,)
