"""``colibri convert`` as a command: refusals, interruptions, full disks, damage, strange files."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri import EngineError, Model, _core
from colibri.commands import convert as command
from colibri.errors import ModelError
from containers import Tensors, read_safetensors, to_bf16, write_safetensors
from processes import colibri

ORACLE = Path(__file__).parents[1] / "data" / "oracle" / "glm4_moe_lite"
KILLS = 20
PROMPT = [1, 5, 9, 33, 70, 120, 200, 250, 300, 301, 302, 7, 8]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted model; not to be changed."""
    folder = tmp_path_factory.mktemp("original") / "converted"
    done = colibri("convert", str(ORACLE), str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder}: 524.8 kB in 5 files\n"
    return folder


@pytest.fixture
def converted(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "converted"))


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode in (1, 2), done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: ")), done.stderr
    for word in words:
        assert word in done.stderr


# --- the command ---


def test_a_dry_run_says_what_would_be_written_and_writes_nothing(
    original: Path, tmp_path: Path
) -> None:
    done = colibri("convert", str(ORACLE), str(tmp_path / "never"), "--dry-run")
    assert not (tmp_path / "never").exists()
    table = done.stdout.splitlines()
    assert [line[:20].strip() for line in table] == [
        "routed experts",
        "dense matrices",
        "embedding and head",
        "prediction layers",
        "other tensors",
        "all",
    ]
    figures = "73,728 weights 98.3 kB 10.67 bits each int4-g16, int4-g64"
    assert " ".join(table[0].split()[2:]) == figures
    written = sum(
        len(data)
        for path in original.glob("*.safetensors")
        for _, _, data in read_safetensors(path)[0].values()
    )
    assert f"{written / 1000:.1f} kB" in table[-1]


def test_a_second_run_finds_nothing_to_do(converted: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in converted.iterdir()}
    done = colibri("convert", str(ORACLE), str(converted), "--verify")
    assert done.stdout.splitlines() == [
        f"{converted}: 524.8 kB in 5 files, 5 of them from before",
        f"{converted}: every file is as it was written",
    ]
    assert {path: path.stat().st_mtime_ns for path in converted.iterdir()} == before


def test_what_must_not_be_done_is_refused_in_a_line(converted: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(ORACLE, tmp_path / "source"))
    link = tmp_path / "link"
    link.symlink_to(source)
    before = content(source)
    for target in (source, source / "a" / "b", link, link / "a", tmp_path / "x" / ".." / "source"):
        (tmp_path / "x").mkdir(exist_ok=True)
        assert_refused(colibri("convert", str(source), str(target)), "is the source, or inside it")
    assert content(source) == before
    other = ["--experts", "int8"]
    words = "another source or with other options"
    assert_refused(colibri("convert", str(ORACLE), str(converted), *other), words)
    assert_refused(colibri("convert", str(ORACLE.parent / "glm4_moe"), str(converted)), words)
    assert_refused(colibri("convert", str(ORACLE), str(tmp_path)), "holds other files already")
    row = colibri("convert", str(ORACLE), str(tmp_path / "never"), "--group", "0")
    assert_refused(row, "--group: one scale for a whole row", "use 64")
    assert_refused(colibri("convert", str(ORACLE), str(tmp_path / "never"), "--group", "48"), "48")
    assert_refused(colibri("convert", str(ORACLE)), "DST is missing")
    assert_refused(colibri("convert", "--verify", str(source)), "manifest.json: not found")
    assert not (tmp_path / "never").exists()


def test_the_source_must_stay_the_same(tmp_path: Path) -> None:
    source = Path(shutil.copytree(ORACLE, tmp_path / "source"))
    folder = tmp_path / "converted"
    interrupt(source, folder, after=3)
    tensors, metadata = read_safetensors(source / "model.safetensors")
    tensors.pop("model.layers.4.eh_proj.weight")
    write_safetensors(source / "model.safetensors", tensors, metadata)
    assert_refused(colibri("convert", str(source), str(folder)), "another source")


def interrupt(source: Path, folder: Path, after: int) -> None:
    """Ends a conversion by what the progress callback raises."""
    left = after

    def progress(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    conversion = _core.Conversion(
        str(source), experts="int4", group=64, dense="int8", head="int8", mtp="int8"
    )
    with pytest.raises(KeyboardInterrupt):
        conversion.run(str(folder), 1, progress)


def test_a_model_that_is_half_converted_is_refused_with_advice(tmp_path: Path) -> None:
    interrupt(ORACLE, tmp_path / "half", after=60)
    done = colibri("run", "x", "--model", str(tmp_path / "half"))
    assert_refused(done, "manifest.json")
    assert "colibri convert" in colibri("info", str(tmp_path / "half")).stderr


# --- ends that nobody chose ---


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source that takes long enough to be killed in the middle."""
    folder = tmp_path_factory.mktemp("large")
    shutil.copy(ORACLE / "config.json", folder)
    generator = np.random.default_rng(7)
    width, hidden = 256, 1024
    shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    tensors: Tensors = {}
    for layer in range(5):
        for expert in range(4):
            for part, shape in shapes.items():
                name = f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
                weights = generator.standard_normal(shape, np.float32) * 0.02
                tensors[name] = ("BF16", list(shape), to_bf16(weights))
    weights = generator.standard_normal((2048, hidden), np.float32)
    tensors["lm_head.weight"] = ("BF16", [2048, hidden], to_bf16(weights))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(large: Path, tmp_path: Path) -> None:
    def start(folder: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "colibri", "convert", str(large), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        # Before the journal is there, Python starts.
        while not (folder / "convert.journal").exists() and process.poll() is None:
            time.sleep(0.001)
        return process

    def finish(process: subprocess.Popen[bytes]) -> None:
        assert process.communicate(timeout=120)[1] == b""
        assert process.returncode == 0

    whole = tmp_path / "whole"
    process = start(whole)
    began = time.monotonic()
    finish(process)
    duration = time.monotonic() - began
    expected = content(whole)
    assert sum(map(len, expected.values())) > 8e6

    draw = random.Random(11)
    kills = attempts = 0
    while kills < KILLS:
        attempts += 1
        folder = tmp_path / f"killed-{attempts}"
        for _ in range(draw.randrange(1, 6)):
            process = start(folder)
            time.sleep(draw.uniform(0, duration))
            process.kill()
            process.communicate()
            kills += process.returncode == -signal.SIGKILL
            if (folder / "manifest.json").exists():
                break
            names = {name for name in content(folder) if not name.endswith(".partial")}
            finished = names - {"convert.journal"}
            assert all(expected[name] == content(folder)[name] for name in finished)
        else:
            process = start(folder)
            finish(process)
        if not (folder / "convert.journal").exists():
            assert content(folder) == expected
        shutil.rmtree(folder)


def test_where_no_more_can_be_written_a_line_says_so(large: Path, tmp_path: Path) -> None:
    folder = tmp_path / "converted"
    # A limit on the length of files fails as a full disk does, by an error of a write.
    script = 'ulimit -f 2000; exec "$@"'
    limited = [sys.executable, "-m", "colibri", "convert", str(large), str(folder)]
    done = subprocess.run(
        ["sh", "-c", script, "sh", *limited], capture_output=True, encoding="utf-8", timeout=120
    )
    assert_refused(done, ".safetensors: File too large")
    # Nothing has the name of a whole file of weights, and what was begun takes no space.
    small = {"config.json", "model.safetensors.index.json", "convert.journal"}
    assert set(content(folder)) == small
    done = colibri("convert", str(large), str(folder), "--verify")
    assert done.returncode == 0, done.stderr
    assert not list(folder.glob("*.partial"))


def test_a_disk_that_is_too_small_is_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=5_000_000)
    asked = []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or usage)
    (tmp_path / "part").write_bytes(bytes(1000))
    command._check_space(tmp_path / "a" / "b", 5_000_000)
    command._check_space(tmp_path, 5_001_000)
    with pytest.raises(ModelError, match=r"5\.0 MB are to be written, 5\.0 MB are free"):
        command._check_space(tmp_path, 5_001_001)
    assert asked == [tmp_path] * 3


# --- damage ---


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def test_a_flipped_bit_is_named_wherever_it_is(converted: Path) -> None:
    draw = random.Random(3)
    for path in sorted(converted.iterdir()):
        data = path.read_bytes()
        places = [("", draw.randrange(len(data)))]
        if path.suffix == ".safetensors":
            tensors, _ = read_safetensors(path)
            at = len(data) - sum(len(tensor) for _, _, tensor in tensors.values())
            places = [("header", 0), ("header", draw.randrange(8, at)), ("header", at - 1)]
            for name, (_, _, tensor) in tensors.items():
                places.append((f"tensor {name} ", at + draw.randrange(len(tensor))))
                at += len(tensor)
            # Also in the padding of a record, which no reader needs.
            first = next(iter(tensors))
            begin = len(data) - sum(len(tensor) for _, _, tensor in tensors.values())
            places.append((f"tensor {first} ", begin + len(tensors[first][2]) - 1))
        for words, at in places:
            flip(path, at, bit := draw.randrange(8))
            if path.name == "manifest.json":
                with pytest.raises(_core.ColibriCoreError, match=r"manifest\.json: is damaged"):
                    _core.verify_converted(str(converted), lambda *_: None)
            else:
                problems = _core.verify_converted(str(converted), lambda *_: None)
                assert len(problems) == 1, (path, at, problems)
                assert problems[0].startswith(f"{path.name}: ")
                assert words in problems[0]
            flip(path, at, bit)
    assert _core.verify_converted(str(converted), lambda *_: None) == []
    (converted / "tokenizer.json").unlink()
    path = converted / "model-experts-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    done = colibri("convert", "--verify", str(converted))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: model-experts-00002.safetensors: has 36863 bytes instead of 36864",
        "error: tokenizer.json: is missing",
    ]


def test_a_flipped_bit_is_found_by_loading(converted: Path) -> None:
    draw = random.Random(5)
    whole = Model(converted)
    expected = whole.logits(PROMPT)
    chosen, _ = whole.routing(PROMPT)
    used = {
        f"model.layers.{layer + 1}.mlp.experts.{expert}.tiles"
        for layer in range(chosen.shape[1])
        for expert in np.unique(chosen[:, layer])
    }
    tested = 0
    for path in sorted(converted.glob("*.safetensors")):
        tensors, _ = read_safetensors(path)
        at = path.stat().st_size - sum(len(tensor) for _, _, tensor in tensors.values())
        for name, (_, _, tensor) in tensors.items():
            place = at + draw.randrange(len(tensor))
            at += len(tensor)
            if ".layers.4." in name or (".experts." in name and name not in used):
                continue
            flip(path, place, 0)
            with pytest.raises(EngineError, match="is damaged") as raised:
                Model(converted).logits(PROMPT)
            assert f"tensor {name} " in str(raised.value)
            assert path.name in str(raised.value)
            flip(path, place, 0)
            tested += 1
    assert tested > len(used) + 50
    assert (Model(converted).logits(PROMPT) == expected).all()


Change = Callable[[Tensors, dict[str, Any]], None]


def hostile(change: Change, converted: Path, file: str, align: int = 4096) -> str:
    """Returns what is said about a container whose file was changed and that has no manifest."""
    (converted / "manifest.json").unlink(missing_ok=True)
    path = converted / file
    before = path.read_bytes()
    tensors, metadata = read_safetensors(path)
    records = json.loads(metadata["colibri.records"])
    change(tensors, records)
    write_safetensors(path, tensors, {"colibri.records": json.dumps(records)}, align)
    with pytest.raises(EngineError) as raised:
        Model(converted)
    path.write_bytes(before)
    text = str(raised.value)
    assert "\n" not in text
    return text


EXPERT = "model.layers.1.mlp.experts.2"


def test_strange_containers_are_refused(converted: Path) -> None:
    def part(**fields: Any) -> Change:
        def change(_: Tensors, records: dict[str, Any]) -> None:
            records[f"{EXPERT}.tiles"][1] |= fields

        return change

    def data(kind: str, n: int) -> Change:
        def change(tensors: Tensors, _: dict[str, Any]) -> None:
            tensors[f"{EXPERT}.tiles"] = (kind, [n], bytes(n))

        return change

    def drop(tensors: Tensors, records: dict[str, Any]) -> None:
        del tensors[f"{EXPERT}.tiles"]

    def forget(_: Tensors, records: dict[str, Any]) -> None:
        del records[f"{EXPERT}.tiles"]

    def shift(tensors: Tensors, _: dict[str, Any]) -> None:
        first = {"a": ("U8", [8], bytes(8))}
        rest = dict(tensors)
        tensors.clear()
        tensors |= first | rest

    name = "model-experts-00001.safetensors"
    for change, words in [
        (part(format="int4-g48"), "groups of 48"),
        (part(format="int4-g0"), "groups of 0"),
        (part(format="fp4-g64"), "unknown format"),
        (part(scales="f8"), "unknown type"),
        (part(shape=[64, 64]), "the configuration says [16, 64]"),
        (part(shape=[64, 256]), "bytes is expected"),
        (part(shape=[2**40, 64]), "has the shape"),
        (part(shape=[16, 100]), "groups of 64"),
        (part(shape=[8, 64]), "the configuration says [16, 64]"),
        (part(name=f"{EXPERT}.gate_proj"), "in two records"),
        (part(name="other"), "experts 2 are missing or incomplete"),
        (data("U8", 8192), "8192 bytes; u8 of 4096"),
        (data("I8", 4096), "I8 of 4096"),
        (data("U8", 0), "of 0 bytes"),
        (drop, f"describes tensor {EXPERT}.tiles, which it lacks"),
        (forget, "experts 2 are missing or incomplete"),
        (shift, "not at a multiple of 4096"),
    ]:
        said = hostile(change, converted, name)
        assert words in said, said
    # Small matrices hide in the padding of their record; a large one must have its size.
    for fields in (
        {"format": "int4-g64"},
        {"format": "int8-g8"},
        {"scales": "f32", "shape": [4, 64]},
    ):
        said = hostile(
            lambda _, records, fields=fields: records["lm_head.tiles"][0].update(fields),
            converted,
            "model-dense-00001.safetensors",
        )
        assert "bytes is expected" in said, said
    said = hostile(lambda *_: None, converted, name, align=8)
    assert "not at a multiple of 4096" in said
    assert np.isfinite(Model(converted).logits(PROMPT)).all()


def test_a_manifest_of_another_version_is_refused(converted: Path) -> None:
    path = converted / "manifest.json"
    path.write_text(
        path.read_text(encoding="utf-8").replace('"version": 1', '"version": 2'), encoding="utf-8"
    )
    with pytest.raises(EngineError, match="version 2 of the container"):
        Model(converted)
