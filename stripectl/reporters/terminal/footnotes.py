"""Notes below the tables of a terminal: the sentences of the analysis under their labels, and the comparison with a
paper as a table."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from stripectl.analysis.cost_sentences import cost_sentences
from stripectl.analysis.distortions import MARK, distortion_sentences
from stripectl.analysis.explanation import gathers_sentence
from stripectl.analysis.lasp_or_lasp2 import chain_and_gather
from stripectl.analysis.length_limit import length_limits
from stripectl.analysis.memory_shortage import memory_shortages
from stripectl.analysis.packing import packing_sentences
from stripectl.analysis.pass_kv_or_q import pass_comparisons
from stripectl.analysis.plan_search import refusal_sentences, search_sentence
from stripectl.analysis.plausibility import fast_sentences, implausible_sentences
from stripectl.analysis.state_exchanges import state_exchanges
from stripectl.analysis.striped_attention_paper import PublishedComparison, error_sentence, published_comparisons
from stripectl.core.workload import format_length
from stripectl.reporters.terminal.tables import fitted_table
from stripectl.results.fit import limit_sentences
from stripectl.results.labels import plan_label
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import MeasurementSet
from stripectl.results.search_table import SearchTable
from stripectl.util.units import NOTHING, times

LABEL = 8  # columns of a label
MAX_NOTES = 3  # lines of a kind below a table
PUBLISHED_TITLE = "training steps: striped over contiguous, compared with Brandon et al. 2023"
PUBLISHED_COLUMNS = "TMS: the paper's bound; bound: of a layer, in whole tiles"
PUBLISHED_WORDS = ("hardware", "model", "mesh", "method")


def labelled(label: str, sentences: Iterable[str]) -> list[Text]:
    """A line for each sentence; the label is empty where the sentences belong to the line above."""
    return [Text(f"{label:{LABEL}}{each}") for each in sentences]


def cost_source_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """The tile and hop costs behind simulated times."""
    return labelled("costs", cost_sentences(measurements))


def distortion_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """The parts of an answer that are not as asked, which marked figures depend on."""
    said = distortion_sentences(m for m in measurements if m.status == "ok")
    return [*labelled(MARK, said[:MAX_NOTES]), *_and_more(said)]


def gather_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """The plans whose all-gathers are compiled as sums."""
    said = dict.fromkeys(sentence for m in measurements if (sentence := gathers_sentence(m)))
    return labelled("note", [*said][:MAX_NOTES])


def plausibility_notes(run: MeasurementSet) -> list[Text]:
    """The first predictions that break a bound, and the first plans that are faster than a reader expects."""
    broken, fast = implausible_sentences(run), fast_sentences(run)
    marked = [Text(f"implausible  {each}") for each in broken[:MAX_NOTES]]
    return [*marked, *_and_more(broken), *labelled("note", fast[:MAX_NOTES]), *_and_more(fast)]


def _and_more(said: Sequence[str]) -> list[Text]:
    more = len(said) - MAX_NOTES
    return labelled("", [f"and {more} more, each with its reason in the report"] * (more > 0))


def memory_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """The workloads that fit with no plan, and how many plans nearly fill the memory."""
    known = list(measurements)
    near = limit_sentences(m for m in known if m.status == "ok")
    return labelled("memory", [*(each.sentences for each in memory_shortages(known)), *near])


def search_notes(found: Iterable[SearchTable]) -> list[Text]:
    """The searches over simulated plans, each followed by the reasons of its refusals."""
    lines = list[Text]()
    for each in found:
        lines += [*labelled("search", [search_sentence(each)]), *labelled("", refusal_sentences(each))]
    return lines


def pass_rule_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """The published choice between passing queries and passing K/V, and the comparison here."""
    return labelled("rule", [each.sentence for each in pass_comparisons(measurements)])


def exchange_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """The better way to exchange states of linear attention, by length."""
    found = list(measurements)
    return labelled("states", [*chain_and_gather(found), *state_exchanges(found)])


def packing_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """How unevenly packed documents load the devices."""
    return labelled("packing", packing_sentences(measurements))


def max_length_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """The longest sequence of each plan for which it was searched."""
    lines = list[Text]()
    for each in length_limits(measurements):
        m = each.measurement
        lines.append(Text(f"{'longest':{LABEL}}{each.answer}", style="bold"))
        lines[-1] += Text(f": {plan_label(m)} {m.workload.passes}")
        lines += labelled("", each.notes)
    return lines


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
