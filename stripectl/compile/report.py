"""The report of a compiler about a plan: the answer of its worker, also kept on disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stripectl.results.compiled_program import CompiledProgram
from stripectl.results.records import Sparse


@dataclass(frozen=True, kw_only=True)
class CompilerReport(Sparse):
    """How long it compiled, and of the program its peak memory and what a device sends, by opcode; or the compiler's
    words where it refuses the program. `by_kind` are programs of a layer of each kind where a model has several: in
    the whole program their tiles cannot be separated."""

    compile_s: float
    refused: str | None = None
    peak_bytes: int | None = None
    bytes: Mapping[str, int] | None = None
    program: CompiledProgram = field(default_factory=CompiledProgram)
    by_kind: tuple[CompiledProgram, ...] = ()

    @property
    def kinds(self) -> tuple[CompiledProgram, ...]:
        """The program of a layer of each kind."""
        return self.by_kind or (self.program,)
