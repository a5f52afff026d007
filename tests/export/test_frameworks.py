"""Snippets, checked against the frameworks that were published: `make check-frameworks` makes their environment.

MaxText parses what is emitted. Transformer Engine, Megatron and torchtitan need a GPU build to be imported, so their
names, arguments and options are read from the syntax trees of their wheels. Models are read as transformers does.
"""

import ast
import itertools
import json
import re
import shlex
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from stripectl.export.integration import usage_of
from stripectl.export.integrations import megatron, torchtitan, transformer_engine
from stripectl.hardware.target import parse_target, read_target
from stripectl.models.config_json import CONFIG, read_config
from stripectl.models.family import families
from stripectl.models.model_files import load_model
from tests.support.exports import TABLE, flags
from tests.support.model_configs import PUBLISHED

FOLDER = Path(__file__).parents[2] / ".venv" / "frameworks"
PYTHON, WHEELS = FOLDER / "bin" / "python", FOLDER / "wheels"
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not PYTHON.exists(), reason="no environment of frameworks is here: make check-frameworks"),
]
PARSE = """
import contextlib, io, json, os, sys
os.environ["JAX_PLATFORMS"] = "cpu"
from maxtext.configs import pyconfig
found = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            config = pyconfig.initialize_pydantic(["", *words])
            found.append([config.num_target_devices, config.global_batch_size_to_train_on])
        except Exception as error:
            found.append(str(error))
print(json.dumps(found))
"""


def texts(name: str) -> list[str]:
    found = {text for m in TABLE if (text := usage_of(m)[name].text)}
    assert found
    return sorted(found)


def source(wheel: str, version: str, path: str) -> ast.Module:
    (file,) = WHEELS.glob(f"{wheel}-{version}-*.whl")
    return ast.parse(zipfile.ZipFile(file).read(path))


def topology(target: str) -> list[str]:
    found = parse_target(target)
    name = "a3" if read_target(target).kind == "gpu" else found.cloud_name
    return [f"compile_topology={name}", f"compile_topology_num_slices={found.slices}"]


def parsed(argv: list[list[str]]) -> list:
    done = subprocess.run([str(PYTHON), "-c", PARSE], input=json.dumps(argv), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_maxtext_parses_every_configuration() -> None:
    chosen = [(m, text) for m in TABLE if (text := usage_of(m)["maxtext"].text)]
    argv = []
    for m, text in chosen:
        command, *words = shlex.split(text.replace("\\\n", " ").replace("$GRAIN_TRAIN_FILES", "/data/*"))[2:]
        assert command == "maxtext.trainers.pre_train.train"
        argv.append([*words, *topology(str(m.target))])
    for (m, _), found in zip(chosen, parsed(argv), strict=True):
        assert found == [m.target.load().devices, m.workload.batch], (m.plan, m.target, found)


def test_maxtext_refuses_what_is_wrong() -> None:
    """The parser is asked: without hardware=gpu a ring is refused, as it is with packing and no limit of segments."""
    m = next(m for m in TABLE if str(m.target) == "h100:8" and usage_of(m)["maxtext"].text)
    words = [f"{name}={value}" for name, value in flags(usage_of(m)["maxtext"].text or "").items()]
    wrong = [word for word in words if not word.startswith("hardware=")] + ["context_parallel_strategy=ring"]
    bare = [word for word in words if not word.startswith("packing=")]
    machine = topology(str(m.target))
    on_tpu, unlimited = parsed([[*each, *machine] for each in (wrong, bare)])
    assert "TPU ring context parallelism requires attention=flash." in on_tpu
    assert "max_segments_per_seq must be set when using TransformerEngine attention and packing" in unlimited


def test_programs_of_transformer_engine_bind_at_2_20_2() -> None:
    trees = {
        f"transformer_engine.jax.{name}": source(
            "transformer_engine", transformer_engine.VERSION, f"transformer_engine/jax/{name}.py"
        )
        for name in ("attention", "sharding")
    }
    every = (each for tree in trees.values() for each in tree.body)
    known = {each.name: each for each in every if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    for text in texts("transformer_engine"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module in trees:
                assert {alias.name for alias in node.names} <= {getattr(x, "name", "") for x in trees[node.module].body}
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
                kind = known[node.value.id]
                assert isinstance(kind, ast.ClassDef) and node.attr in members(kind), ast.unparse(node)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
                binds(node, known[node.func.id])


def members(kind: ast.ClassDef) -> set[str]:
    names = {each.name for each in kind.body if isinstance(each, ast.FunctionDef)}
    assigned = (each for each in kind.body if isinstance(each, ast.Assign | ast.AnnAssign))
    targets = (each.targets[0] if isinstance(each, ast.Assign) else each.target for each in assigned)
    return names | {ast.unparse(each) for each in targets}


def binds(call: ast.Call, what: ast.FunctionDef | ast.ClassDef) -> None:
    """A call names arguments that there are, and all that are required."""
    given = {each.arg for each in call.keywords}
    if isinstance(what, ast.ClassDef):
        assert given <= members(what)
        return
    names = [each.arg for each in what.args.args]
    required = names[: len(names) - len(what.args.defaults)]
    given |= set(names[: len(call.args)])
    assert set(required) <= given <= set(names), (what.name, set(required) - given, given - set(names))


def test_arguments_of_megatron_at_0_19_2() -> None:
    paths = "training/arguments", "core/model_parallel_config", "core/transformer/transformer_config"
    paths = *paths, "training/config/training_config"
    trees = [source("megatron_core", megatron.VERSION, f"megatron/{path}.py") for path in paths]
    known, choices = set[str]().union(*map(names_in, trees)), megatron_choices(trees)
    lines = [line.removesuffix("\\").split() for text in texts("megatron") for line in text.splitlines()]
    emitted = {line[0].removeprefix("--"): set[str]() for line in lines}
    for name, *values in lines:
        emitted[name.removeprefix("--")].update(values)
    assert {"cp-comm-type", "window-size", "context-parallel-size"} <= emitted.keys()
    assert emitted.keys() <= known, emitted.keys() - known
    assert "optim_grads_params" in choices["data-parallel-sharding-strategy"]  # with fsdp, which the table has not
    assert choices["cp-comm-type"] == {"p2p", "all_gather", "a2a", "a2a+p2p"}
    for name in emitted.keys() & choices.keys():
        assert emitted[name] and emitted[name] <= choices[name], name


def megatron_choices(trees: list[ast.Module]) -> dict[str, set[str]]:
    """The values that an argument may have, by its `choices`; of `cp_comm_type`, which has none, the words that the
    docstring of the field quotes first."""
    found = {}
    for call in (each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Call)):
        listed = [each.value for each in call.keywords if each.arg == "choices"]
        if (
            listed
            and isinstance(listed[0], ast.List | ast.Tuple)
            and call.args
            and isinstance(call.args[0], ast.Constant)
        ):
            values = {str(each.value) for each in listed[0].elts if isinstance(each, ast.Constant)}
            found[str(call.args[0].value).removeprefix("--")] = values
    kinds = (each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.ClassDef))
    for kind in kinds:
        for field, text in itertools.pairwise(kind.body):
            if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == "cp_comm_type":
                (sentence,) = re.findall(r"can be ([^.]*)\.", ast.literal_eval(ast.unparse(text)))
                found["cp-comm-type"] = set(re.findall(r'"([^"]+)"', sentence))
    return found


def names_in(tree: ast.Module) -> set[str]:
    """Arguments that are added by name, and fields of which they are made."""
    strings = (each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str))
    fields = (each.target for each in ast.walk(tree) if isinstance(each, ast.AnnAssign))
    added = {each.removeprefix("--") for each in strings if re.fullmatch(r"--[a-z][\w-]*", each)}
    return added | {each.id.replace("_", "-") for each in fields if isinstance(each, ast.Name)}


def test_options_of_torchtitan_at_0_3_0() -> None:
    tree = source("torchtitan", torchtitan.VERSION, "torchtitan/config/configs.py")
    kinds = {each.name: members(each) for each in tree.body if isinstance(each, ast.ClassDef)}
    sections = {"training": kinds["TrainingConfig"], "parallelism": kinds["ParallelismConfig"]}
    for text in texts("torchtitan"):
        for line in text.splitlines():
            section, option = line.removeprefix("--").partition("=")[0].split(".")
            assert option in sections[section]


READ = """
import json, sys, warnings
warnings.simplefilter("ignore")
from transformers import AutoConfig
found = []
for content in json.load(sys.stdin):
    whole = AutoConfig.for_model(**content)
    config = getattr(whole, "text_config", None) or whole
    tied = {"tied": getattr(whole, "tie_word_embeddings", None)}  # the head belongs to the whole model
    found.append({name: getattr(config, name, None) for name in dir(config) if not name.startswith("__")} | tied)
print(json.dumps(found, default=lambda value: None))
"""
SIZES = {  # field of a model -> what a configuration of transformers calls it
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "vocabulary": "vocab_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "feed_forward": "intermediate_size",
}


def alone(name: str) -> dict[str, Any]:
    return {"model_type": name, **({"text_config": {}} if name == "gemma3" else {})}


def test_models_are_what_transformers_5_24_reads(tmp_path: Path) -> None:
    """Of published configurations, and of ones that leave everything out: defaults of every key, sizes, and masks."""
    every = [*(each.config for each in PUBLISHED.values()), *map(alone, families.names())]
    done = subprocess.run([str(PYTHON), "-c", READ], input=json.dumps(every), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    for content, theirs in zip(every, json.loads(done.stdout.splitlines()[-1]), strict=True):
        check_read_alike(content, theirs, tmp_path / CONFIG)


def check_read_alike(content: dict[str, Any], theirs: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(content))
    config, model = read_config(path), load_model(str(path))
    name = content.get("text_config", content).get("model_type", "gemma3_text")
    if content == alone(content["model_type"]):
        _, defaults, aliases = families[name]
        named = {key if key in theirs else aliases.get(key, key): value for key, value in defaults.items()}
        used = {key: value for key, value in named.items() if key in theirs}
        left_out = named.keys() - used.keys()
        assert left_out <= {
            "rope_theta",
            "partial_rotary_factor",
            "sliding_window_pattern",
            "full_attention_interval",
            "first_k_dense_replace",
            *["rms_norm_eps"] * (name == "olmo"),  # a number of its code
        }, name
        derived = {"num_key_value_heads", "sliding_window"}  # made of others where they are left out or not used
        assert {key: theirs[key] for key in used if key not in derived} == {
            key: value for key, value in used.items() if key not in derived
        }, name
    replaced = {
        **{key: {"feed_forward"} for key in ("gpt_oss", "minimax_m2", "mixtral", "qwen3_moe", "qwen3_vl_moe_text")},
        "qwen3_next": {"feed_forward"},
        "deepseek_v3": {"feed_forward", "head_dim"},
        "kimi_linear": {"feed_forward", "head_dim"},
        "mamba2": {"feed_forward", "heads", "kv_heads", "head_dim"},
    }.get(name, set[str]())
    for field in SIZES.keys() - replaced:
        expected = theirs.get(SIZES[field])
        if field == "head_dim" and expected is None:
            expected = theirs["hidden_size"] // theirs["num_attention_heads"]
        assert getattr(model, field) == expected, (name, field)
    window = theirs.get("sliding_window")
    kinds = {"sliding_attention": f"sliding:{window}" if window else "causal", "full_attention": "causal"}
    kinds["linear_attention"] = "linear"
    usual = ["sliding_attention" if name in ("mistral", "starcoder2") else "full_attention"] * theirs[
        "num_hidden_layers"
    ]
    assert [kinds[kind] for kind in theirs.get("layer_types") or usual] == list(config.masks), name
    assert model.architecture.tied == bool(theirs["tied"]), name
