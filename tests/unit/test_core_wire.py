"""The compiled codec as the server sees it."""

from __future__ import annotations

import random

import pytest

from colibri import _core

READY = b"\x01\x01READY\x01\x01\n"

RECORDS = [
    (
        b"STAT 0 0.00 0.0 1.25\n",
        "STAT",
        {"emitted": 0, "tok_s": 0.0, "hit_pct": 0.0, "rss_gb": 1.25},
    ),
    (
        b"STAT 3 12.50 99.5 1.25 7 1\n",
        "STAT",
        {
            "emitted": 3,
            "tok_s": 12.5,
            "hit_pct": 99.5,
            "rss_gb": 1.25,
            "prompt_tokens": 7,
            "length_limited": True,
        },
    ),
    (
        b"HWINFO 2 8.0 4.5 1 80.0 A CPU @ 2GHz|A GPU x1\n",
        "HWINFO",
        {
            "cores": 2,
            "ram_total_gb": 8.0,
            "ram_avail_gb": 4.5,
            "ngpu": 1,
            "vram_total_gb": 80.0,
            "cpu_name": "A CPU @ 2GHz",
            "gpu_name": "A GPU x1",
        },
    ),
    (b"GPUS 0\n", "GPUS", {"gpus": []}),
    (
        b"GPUS 1 1.500 80.000 12\n",
        "GPUS",
        {"gpus": [{"used_gb": 1.5, "total_gb": 80.0, "experts": 12}]},
    ),
    (
        b"TIERS 1 2 3 0.50 1.00\n",
        "TIERS",
        {"vram": 1, "ram": 2, "disk": 3, "vram_gb": 0.5, "ram_gb": 1.0},
    ),
    (b"EMAP 1 3 0041bf\n", "EMAP", {"rows": 1, "cols": 3, "map": b"\x00\x41\xbf"}),
    (b"HITS 3 3 8101\n", "HITS", {"rows": 3, "cols": 3, "hits": b"\x81\x01"}),
    (b"CAPS proto=1 model=a%20b\n", "CAPS", {"proto": "1", "model": "a b"}),
    (b"ACCEPT 4 5\n", "ACCEPT", {"id": 4, "prompt_tokens": 5}),
    (b"PREFILL 4 0 5\n", "PREFILL", {"id": 4, "done": 0, "total": 5}),
    (b"DATA 4 7\nDONE 1\n\n", "DATA", {"id": 4, "data": b"DONE 1\n"}),
    (b"DATA 4 0\n\n", "DATA", {"id": 4, "data": b""}),
    (
        b"TOPK 4 2 -0.5000 41c3 -2.0000 -\n",
        "TOPK",
        {"id": 4, "tokens": [(-0.5, b"A\xc3"), (-2.0, b"")]},
    ),
    (b"REPIN 3 2 1 -1\n", "REPIN", {"layer": 3, "expert": 2, "old_tier": 1, "gpu": -1}),
    (
        b"PERF 1 1.5 0 0.25 -0.000 0 0 0.125\n",
        "PERF",
        {
            "id": 1,
            "wall_s": 1.5,
            "expert_disk_s": 0.0,
            "expert_wait_s": 0.25,
            "expert_matmul_s": 0.0,
            "attention_s": 0.0,
            "kv_decompress_s": 0.0,
            "head_s": 0.125,
            "ffn_s": None,
            "reading_s": None,
            "uses_ahead": None,
            "uses_cached": None,
            "uses_missed": None,
            "bytes_read": None,
            "uses_vram": None,
            "experts_ram": None,
            "drafted": None,
            "drafted_right": None,
            "drives": [],
        },
    ),
    (
        b"PERF 1 1.5 0 0.25 -0.000 0 0 0.125 ffn=0.5 reading=1 ahead=1 cached=2 missed=3 read=4"
        b" experts_ram=5 drafts=6:4 drives=0:9:8,2:7:0:dropped\n",
        "PERF",
        {
            "id": 1,
            "wall_s": 1.5,
            "expert_disk_s": 0.0,
            "expert_wait_s": 0.25,
            "expert_matmul_s": 0.0,
            "attention_s": 0.0,
            "kv_decompress_s": 0.0,
            "head_s": 0.125,
            "ffn_s": 0.5,
            "reading_s": 1.0,
            "uses_ahead": 1,
            "uses_cached": 2,
            "uses_missed": 3,
            "bytes_read": 4,
            "uses_vram": None,
            "experts_ram": 5,
            "drafted": 6,
            "drafted_right": 4,
            "drives": [
                {"mirror": 0, "bytes": 9, "bytes_per_second": 8, "is_dropped": False},
                {"mirror": 2, "bytes": 7, "bytes_per_second": None, "is_dropped": True},
            ],
        },
    ),
    (
        b"PROF 2.500 7 3 0.000 0.250 0.000 -0.000 1.000 2 0.1 0.2\n",
        "PROF",
        {
            "wall_s": 2.5,
            "prompt_tokens": 7,
            "emitted": 3,
            "expert_disk_s": 0.0,
            "expert_wait_s": 0.25,
            "expert_matmul_s": 0.0,
            "attention_s": 0.0,
            "head_s": 1.0,
            "forwards": 2,
        },
    ),
    (b"ENTROPY 1.000 0.250\n", "ENTROPY", {"bits": [1.0, 0.25]}),
    (
        b"DONE 9 STAT 3 12.50 99.5 1.25 7 0\n",
        "DONE",
        {
            "id": 9,
            "emitted": 3,
            "tok_s": 12.5,
            "hit_pct": 99.5,
            "rss_gb": 1.25,
            "prompt_tokens": 7,
            "length_limited": False,
        },
    ),
    (
        b"ERROR 1 CONTEXT_EXCEEDED 300 255\n",
        "ERROR",
        {"id": 1, "code": "CONTEXT_EXCEEDED", "detail": ["300", "255"]},
    ),
    (
        b"ERROR 1 ENGINE disk%20read\n",
        "ERROR",
        {"id": 1, "code": "ENGINE", "detail": ["disk read"]},
    ),
    (b"GPUDETAIL 1 2\n", "UNKNOWN", {"line": b"GPUDETAIL 1 2"}),
]


@pytest.mark.parametrize(("line", "kind", "fields"), RECORDS)
def test_records_have_the_documented_fields(line, kind, fields):
    reader = _core.RecordReader()
    assert reader.feed(b"banner\n" + READY + line) == [("READY", {}), (kind, fields)]
    assert reader.buffered == 0


def test_records_come_out_when_their_last_byte_came_in():
    stream = READY + b"".join(line for line, _, _ in RECORDS)
    reader = _core.RecordReader()
    read = [record for byte in stream for record in reader.feed(bytes([byte]))]
    assert read == [("READY", {}), *((kind, fields) for _, kind, fields in RECORDS)]


def test_a_known_kind_that_does_not_parse_is_reported():
    reader = _core.RecordReader()
    reader.feed(READY)
    [(kind, fields)] = reader.feed(b"TIERS 1 2\n")
    assert kind == "MALFORMED"
    assert fields["line"] == b"TIERS 1 2"
    assert isinstance(fields["reason"], str)


def test_an_incomplete_record_is_held_back():
    reader = _core.RecordReader()
    reader.feed(READY)
    assert reader.feed(b"DATA 1 5\nhel") == []
    assert reader.buffered == 3
    assert reader.feed(b"lo\n") == [("DATA", {"id": 1, "data": b"hello"})]


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_survived(seed):
    rng = random.Random(seed)
    reader = _core.RecordReader()
    reader.feed(READY)
    words = [b"DATA ", b"DONE ", b"1 ", b"3\n", b"EMAP ", b"\n", b"ff", b"-", b"\x00\xff"]
    for _ in range(200):
        for kind, fields in reader.feed(rng.choice([rng.randbytes(9), rng.choice(words)])):
            assert isinstance(kind, str)
            assert isinstance(fields, dict)


def test_formats_a_submit():
    frame = _core.format_submit(
        7, 1, b"CANCEL 7\n", 16, 0.7, 1.0, {"seed": "3", "grammar": "{}", "stop_ids": "1,2"}
    )
    assert frame == b"SUBMIT 7 1 9 16 0.7 1 seed=3 stop_ids=1,2 grammar=2\nCANCEL 7\n{}\n"


@pytest.mark.parametrize(
    "change",
    [
        {"id": 0},
        {"id": -1},
        {"id": 1 << 64},
        {"slot": -1},
        {"payload": b"a\0"},
        {"payload": b"a" * ((16 << 20) + 1)},
        {"max_tokens": 0},
        {"max_tokens": 1 << 31},
        {"temperature": 2.5},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": float("inf")},
        {"options": {"seed": "x"}},
        {"options": {"unknown": "1"}},
        {"options": {"seed": "1\nCANCEL 2"}},
        {"options": {"seed=1 top_k": "1"}},
    ],
)
def test_what_the_wire_cannot_carry_is_a_value_error(change):
    fields = {
        "id": 1,
        "slot": 0,
        "payload": b"a",
        "max_tokens": 1,
        "temperature": 0.0,
        "top_p": 1.0,
        "options": {},
    }
    with pytest.raises(ValueError):
        _core.format_submit(**(fields | change))


def test_requests_are_read_as_the_engine_reads_them() -> None:
    reader = _core.RequestReader(["topk"], 2)
    frame = b"SUBMIT 1 1 3 9 0.5 1 topk=2\na\nb\nSTOP 1\nCANCEL 2\n"
    refused = b"SUBMIT 3 2 1 9 0 1\nx\nSUBMIT 4 0 1 9 0 1 seed=1\nx\n"
    got = [item for i in range(len(frame)) for item in reader.feed(frame[i : i + 1])]
    assert got == [
        (
            "SUBMIT",
            {
                "id": 1,
                "slot": 1,
                "max_tokens": 9,
                "temperature": 0.5,
                "top_p": 1.0,
                "topk": 2,
                "token_ids": [],
                "payload": b"a\nb",
            },
        ),
        ("STOP", {"id": 1}),
        ("CANCEL", {"id": 2}),
    ]
    assert reader.feed(refused) == [
        ("REFUSED", {"id": 3, "detail": "slot is out of range"}),
        ("REFUSED", {"id": 4, "detail": "option seed is not accepted"}),
    ]
    assert reader.feed(b"SUBMIT 5 0 3 9 0 1\nab") == []
    assert reader.finish() == [("LOST", {"id": 5, "detail": "the input ended within a payload"})]
    assert reader.feed(b"STOP 1\n") == []
    [(kind, _)] = _core.RequestReader(None, 1).feed(b"SUBMIT 4 0 1 9 0 1 seed=1\nx\n")
    assert kind == "SUBMIT"
