"""Below the tables of a terminal: the notes of the analysis, and the comparison with a paper as a table."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from stripectl.analysis.note import note_lines
from stripectl.analysis.striped_attention_paper import PublishedComparison, error_sentence, published_comparisons
from stripectl.core.lengths import format_length
from stripectl.reporters.terminal.tables import fitted_table
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.util.units import NOTHING, times

PUBLISHED_TITLE = "training steps: striped over contiguous, compared with Brandon et al. 2023"
PUBLISHED_COLUMNS = "TMS: the paper's bound; bound: of a layer, in whole tiles"
PUBLISHED_WORDS = ("hardware", "model", "mesh", "method")


def note_texts(run: Run, shown: Run) -> list[Text]:
    """The notes of a run, of which the table shows a part."""
    return [Text(str(line), style="bold" if line.stands_out else "") for line in note_lines(run, shown)]


def published_comparison_rows(found: Iterable[PublishedComparison]) -> list[dict[str, str]]:
    """Speed-ups of whole training steps compared with a paper's, by column."""
    return [
        {
            **{"hardware": each.hardware, "model": each.model, "mesh": each.mesh},
            "tokens": format_length(each.seq_len),
            "paper": times(each.published),
            "here": times(each.ours),
            "method": each.method,
            "off by": NOTHING if each.error is None else f"{each.error:+.0%}",
            "TMS": times(each.tms),
            "bound": times(each.bound),
        }
        for each in found
    ]


def beside_published(measurements: Iterable[Measurement], width: int) -> list[Table | Text]:
    """The comparison as a table, where there is any."""
    found = published_comparisons(measurements)
    if not found:
        return []
    cells = published_comparison_rows(found)
    table = fitted_table(list(cells[0]), cells, width, least=8, words=PUBLISHED_WORDS)
    below = "; ".join(filter(None, (error_sentence(found), PUBLISHED_COLUMNS)))
    return [Text(PUBLISHED_TITLE, style="bold"), table, Text(below), Text("")]
