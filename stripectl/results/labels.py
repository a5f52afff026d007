"""Workloads and plans in one line, for people."""

from stripectl.core.lengths import format_length
from stripectl.core.linear_attention import ATTENTIONS, CONSTANT, FEATURES
from stripectl.core.model import Model
from stripectl.core.workload import Workload
from stripectl.results.case import flags_text
from stripectl.results.measurement import Measurement
from stripectl.util.units import plural

METHOD_WORDS = {  # a compiler gives no time
    "measured": "measured",
    "compiled": "compiled, predicted",
    "simulated": "simulated",
}


def workload_label(workload: Workload, tokens: str | None = None) -> str:
    """A workload in one line; `tokens` replaces its length."""
    layers = f" of {workload.layers} layers" if workload.layers else ""
    model = f"model {workload.model}{layers}, " if workload.model else ""
    batch = f", batch {workload.batch}" if workload.batch > 1 else ""
    count = workload.query_len
    queries = f"{format_length(count)} {'query' if count == 1 else 'queries'} of " if count else ""
    lengths = ",".join(map(format_length, workload.documents or ()))
    documents = f", documents of {lengths}" if lengths else ""
    length = f"{queries}{tokens or format_length(workload.seq_len)} tokens"
    attention = f"{heads_label(workload)}, {attention_label(workload)}{workload.dtype}, {workload.masks_text}"
    return f"{model}{length}, {attention}{documents}{batch}"


def heads_label(of: Workload | Model) -> str:
    """The number of heads, and their size: `32 heads (8 kv) of 128`, `16 heads of 192/128` with smaller values."""
    shared = "" if of.kv_heads == of.heads else f" ({of.kv_heads} kv)"
    values = f"/{of.v_head_dim}" if of.v_head_dim else ""
    return f"{plural(of.heads, 'head')}{shared} of {of.head_dim}{values}"


def attention_label(of: Workload | Model) -> str:
    """The kind of attention, before other words; empty for plain softmax."""
    if of.attention == ATTENTIONS[0]:
        return softmax_label(of)
    if of.recurrence != CONSTANT:
        keys = f" with {plural(of.key_heads, 'head')} of keys" if of.key_heads else ""
        kind = "" if of.attention == "linear" else f"{of.attention} with "
        return f"{kind}{of.recurrence}{keys}, "
    decay = f", decay {of.decay}" if of.decay != "1" else ""
    features = f", {of.features}" if of.features != FEATURES[0] else ""
    return f"{of.attention} attention{decay}{features}, "


def softmax_label(of: Workload | Model) -> str:
    """Sinks and a soft cap of scores, before other words."""
    return "sinks, " * of.sinks + (f"scores capped at {of.soft_cap:g}, " if of.soft_cap else "")


def plan_label(m: Measurement) -> str:
    """The plan, and the other properties that distinguish two rows."""
    return f"{m.plan}{flags_text(m.flags)}" + " (one device)" * (m.devices == 1)
