"""Input that nobody means well: values, words of the command line, and ways to spoil what is sound.

What is random comes from a `random.Random`, or from hypothesis' likeness of one, so that a fuzzer and a test may draw
alike.
"""

import gzip
import json
import re
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import click
import yaml

from stripectl.cli.app import COMMANDS, group

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path for name in ("profiles", "examples") for path in (ROOT / name).rglob("*.yaml"))
EXAMPLES = sorted((ROOT / "examples" / "runs").glob("*.json.gz"))
TEXTS = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "\x1b]0;owned\x07",
        "\u202e",
        "\ud800",
        "٣",
        "é" * 60,
        "x" * 5000,
        "9" * 5000,
        "-1",
        "0",
        "1",
    ),
    *("1e400", "nan", "inf", "1_0", "0x10", "1e15", "1..1000000000000", "16k..1e15", "1,1,1", "all", "auto", "max"),
    *("../../escape", "/etc/passwd", "~", "..", "a/b", "C:\\x", "$(touch owned)", "; touch owned", "`touch owned`"),
    "__import__('os').system('touch owned')",
    "{{ 7*7 }}{% for _ in range(10**9) %}{% endfor %}",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "!!python/object/apply:os.system ['touch owned']",
    *(
        "[/bold][link=https://example.com]",
        "%s%n{0.__class__}",
        "\r\x9b2J",
        "=1+1",
        "<<",
        "*a",
        "&a [*a]",
        "2001-99-99",
    ),
    "cos\nsystem\n(S'touch owned'\ntR.",
)
NUMBERS = (0, -1, 1, 2, 7, 2**30, 2**31, 2**63, 10**9, 10**30, 10**400, 1e-320, 1e-99, 1e99, 1e300, -1e300, 0.5, -0.0)
ODD = (None, True, False, [], {}, [[]], [[], {}], {"a": {}}, [None], float("nan"), float("inf"), [0] * 1000, ["x", 1])
DIGEST = "%DIGEST%"  # stands for the digest of the run.json that a journal continues
PIECES = (
    *("ring", "ulysses", "usp", "tree", "lasp", "all_gather", "striped", "zigzag", "contiguous", "xla", "splash"),
    *("@", "/", "=", ",", "x", ":", "*", "-", "..", "ring=", "tensor=2", "data=", "tile=", "backward=", "unroll=", "k"),
    *(
        "chunk=",
        "remat=",
        "zero=",
        "states=",
        "softmax=",
        "parts=",
        "v5e",
        "h100",
        "cpu",
        "4x4",
        "8",
        "1024",
        "sliding:",
    ),
    *("1000000", "1000000000", "9" * 20, "0", "per-head", "LLLS", "0.99", "%", "m", "s", "G"),
)
# What options may be given, by the name of their values, so that some of a random command line is sound.
SOUND = {
    "plans": ("ring", "ring/striped/xla@ring=4,tile=64", "ulysses@ulysses=4", "lasp/contiguous/chunked", "usp", "tree"),
    "plan": ("ring/striped/xla@ring=4,tile=64", "ring@ring=2", "garbage"),
    "scheme": ("ring", "all", "ring,ulysses", "lasp", "vanilla", "tree"),
    "layout": ("all", "striped", "zigzag,striped"),
    "kernel": ("xla", "splash", "pallas_tpu", "all", "dense"),
    "tile": ("128", "64x128", "1,2,4,8", "1000000"),
    "unroll": ("1", "1,2,1000000", "999999"),
    "meshes": ("ring=4", "auto", "ring=2,tensor=2", "data=1000000"),
    "mesh": ("ring=4", "ring=2,tensor=2", "ring=999999,tensor=999999"),
    "target": ("v5e:2x2", "h100:4", "2*v5e:2x2", "v4-8", "v3:1x1", "2*h100:8", "v5e:4x4"),
    "hardware": ("v5e", "h100", "model.yaml", "hardware.yaml", "/dev/null", "."),
    "model": ("1b", "7b", "llama3-8b", "model.yaml", "hardware.yaml", "tnl-1b", "/dev/null", "."),
    "seqlen": ("4k", "1k,8k", "1k..1M", "1G", "max", "1"),
    "query_len": ("1", "1,16", "4k"),
    "documents": ("1k", "1,2,3", "1G"),
    "heads": ("8", "1", "1000000000"),
    "kv_heads": ("8", "1", "1000000000"),
    "head_dim": ("64", "1", "1000000000"),
    "v_head_dim": ("64", "1", "1000000000"),
    "batch": ("1", "8", "1000000000"),
    "layers": ("1", "2", "1000000000"),
    "dtype": ("float32", "bfloat16", "all"),
    "mask": ("causal", "full", "sliding:4k", "all", "sliding:1"),
    "attention": ("linear", "softmax", "LLLS", "L" * 99 + "S"),
    "decay": ("per-head", "0.9", "1e-300", "1"),
    "features": ("none", "elu"),
    "passes": ("forward", "step", "all", "forward-backward"),
    "xla_flags": ("a=1,2", "b=true", "=", "c="),
    "method": ("auto", "simulated", "compiled", "measured"),
    "time_budget": ("1s", "3m", "1e9", "9" * 400),
    "compile_timeout": ("1s", "9" * 400),
    "refine": ("1", "1000000"),
    "min_samples": ("1", "1000000000"),
    "warmup": ("1", "1000000000"),
    "save": ("mine.yaml", "link/mine.yaml"),
    "output": ("run", "deep/er/run", "../beside", "link", "a-file/run", ".", "page.html", "link.html", "../page.html"),
    "runs": ("run.json", "page.html", "nothing", ".", "link"),
    "base": ("run.json", "nothing"),
    "new": ("run.json", "page.html"),
    "suite": ("suite.yaml", "model.yaml", "run.json", "."),
    "claims": ("claims.yaml", "model.yaml", "nothing"),
    "history": ("history", "deep/er/history", "link/history", "a-file/history"),
    "folder": ("history", ".", "nothing"),
    **dict.fromkeys(("junit", "markdown", "github_benchmark", "bencher"), ("new.txt", "link/new.txt", "a-file/x", ".")),
    "compare": ("times", "schedule"),
    "metric": ("time", "memory"),
    "num_processes": ("1", "2"),
    "max_regression": ("5%", "0.05", "1e400%", "nan"),
    "read": ("run.json", "nothing", "."),
    "kind": ("schemes", "models", "targets"),
}


def mutated(tree: Any, random: Random, times: int = 3) -> Any:
    """Nested data, spoilt in so many places; what is given stays as it is."""
    for _ in range(times):
        tree = _spoilt(tree, random)
    return tree


def _spoilt(tree: Any, random: Random) -> Any:
    """Anew with one value replaced, left out, doubled or exchanged, somewhere down one way from the root."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    if not keys or random.random() < 0.03:
        return value(random)
    tries = [random.choice(keys) for _ in range(random.randint(1, 3))]
    key, at = max(tries, key=lambda each: size(tree[each])), random.random()
    made: Any = dict(tree) if isinstance(tree, dict) else list(tree)
    if at < 0.1:
        del made[key]
    elif at < 0.2 and isinstance(made, dict):
        made[text(random)] = made.pop(key) if random.random() < 0.5 else made[key]
    elif at < 0.25 and isinstance(made, list):
        made += made[key : key + 1] * random.choice((1, 3, 40))
    elif at < 0.32:
        made[key] = made[random.choice(keys)]
    else:
        made[key] = _spoilt(made[key], random)
    return made


def size(tree: Any) -> int:
    return len(tree) if isinstance(tree, dict | list) else 0


def value(random: Random) -> Any:
    kind = random.random()
    if kind < 0.35:
        return text(random)
    if kind < 0.7:
        return random.choice(NUMBERS)
    if kind < 0.75:
        return nested(random.choice((3, 30, 300)))
    return random.choice(ODD)


def nested(depth: int) -> Any:
    found: Any = 0
    for at in range(depth):
        found = [found] if at % 2 else {"a": found}
    return found


def text(random: Random) -> str:
    """A hostile text, or pieces of the grammars in no order."""
    if random.random() < 0.5:
        return random.choice(TEXTS)
    return "".join(random.choice(PIECES) for _ in range(random.randint(1, 8)))


def cut(content: bytes, random: Random) -> bytes:
    """Bytes that are cut short, overwritten, doubled, or have others between them."""
    at, kind = random.randint(0, len(content)), random.random()
    end = min(len(content), at + random.choice((1, 2, 8, 64)))
    if kind < 0.25:
        return content[:at]
    if kind < 0.5:
        return content[:at] + content[end:]
    if kind < 0.75:
        return content[:at] + bytes(random.randint(0, 255) for _ in range(end - at)) + content[end:]
    return content[:end] + content[at:end] * random.choice((1, 9)) + content[end:]


def run(random: Random, most: int = 4) -> dict[str, Any]:
    """A few measurements of a real run."""
    content = dict(example(random.randint(0, len(EXAMPLES) - 1)))
    every = content["measurements"]
    content["measurements"] = [random.choice(every) for _ in range(random.randint(1, most))] if every else []
    return content


def journal(random: Random) -> bytes:
    """Lines of a journal that continues the run.json next to it: measurements of real runs, perhaps spoilt."""
    lines = [
        {"continues": DIGEST, "by": random.choice(("key", "identity")), "measurement": m}
        for m in run(random, most=3)["measurements"]
    ]
    content = "\n".join(json.dumps(mutated(each, random)) for each in lines).encode()
    kind = random.random()
    if kind < 0.1:
        return b"[" * 10 ** random.randint(1, 5) + content
    return cut(content, random) if kind < 0.3 else content


def lock(random: Random) -> bytes:
    """The name of a lock's holder, spoilt."""
    return json.dumps(mutated({"pid": 1, "host": "a", "since": "2026-01-01"}, random)).encode()


@cache
def example(at: int) -> dict[str, Any]:
    return json.loads(gzip.decompress(EXAMPLES[at].read_bytes()))


def options(random: Random) -> list[str]:
    """A command and options of it and of others, with values that may be sound."""
    name = random.choice([each for each in COMMANDS if each != "doctor"])
    words = [name]
    for _ in range(random.randint(0, 6)):
        words += option(random.choice(parameters(name)), random)
    return words


def option(parameter: click.Parameter, random: Random) -> list[str]:
    sound = SOUND.get(parameter.name or "", ())
    given = random.choice(sound) if sound and random.random() < 0.75 else text(random)
    if not isinstance(parameter, click.Option):
        return [given]
    spelled = random.choice([*parameter.opts, *parameter.secondary_opts])
    return [spelled] if parameter.is_flag else [spelled, given]


def reworded(content: str, random: Random) -> str:
    """A text with a piece of a grammar put in, perhaps in the place of others."""
    at = random.randint(0, len(content))
    piece = random.choice(PIECES) if random.random() < 0.8 else text(random)
    return content[:at] + piece + content[at + random.choice((0, 0, 1, 2)) :]


def with_option(content: str, random: Random) -> str:
    """Words of a command line, one a line, with an option of any command put in, perhaps in the place of others."""
    words = content.split("\n")
    at = random.randint(0, len(words))
    every = [parameter for name in COMMANDS for parameter in parameters(name)]
    left = words[at + random.choice((0, 0, 1, 2)) :]
    return "\n".join([*words[:at], *option(random.choice(every), random), *left])


def redrawn(content: str, random: Random) -> str:
    """A profile as text, with one of its numbers or texts another."""
    found = list(re.finditer(r'-?\b\d+\b|"[^"]*"', content))
    if not found:
        return content
    each = random.choice(found)
    if each[0].startswith('"'):
        said = json.dumps(text(random) if random.random() < 0.5 else random.choice(found)[0].strip('"'))
    else:
        said = str(random.choice((0, 1, 2, -1, 7, 10**6, 2**31, 2**63 - 1, -(2**63), random.choice(found)[0])))
    return content[: each.start()] + said + content[each.end() :]


def parameters(name: str) -> list[click.Parameter]:
    command = group.get_command(click.Context(group), name)
    assert command
    return command.params


def program_of(name: str) -> str:
    """The plane of a profile that holds a program of such a name, as text: an HloProto of an HloModuleProto."""
    module = b"\n" + bytes([len(name)]) + name.encode()
    proto = "".join(f"\\{byte:03o}" for byte in b"\n" + bytes([len(module)]) + module)
    stats = f'stats {{ metadata_id: 1 bytes_value: "{proto}" }}'
    return (
        f'planes {{ name: "/host:metadata"\n'
        f"event_metadata {{ key: 7 value {{ id: 7 name: {json.dumps(name + '(7)')} {stats} }} }}\n"
        f'stat_metadata {{ key: 1 value {{ id: 1 name: "Hlo Proto" }} }}\n}}\n'
    )


def yaml_of(tree: Any) -> bytes:
    """As YAML, with halves of characters and all."""
    return yaml.safe_dump(tree, sort_keys=False).encode("utf-8", "surrogatepass")
