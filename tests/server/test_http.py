"""What every resource does alike: checks, errors, limits, files."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tornado.web

from colibri.errors import UsageError
from colibri.fake_engine import LAST_MAP
from colibri.handlers.base import Auth, BaseHandler, audit
from colibri.handlers.telemetry import EventsHandler
from colibri.tornado_app import ServeSettings, bind
from conftest import Answer, Server, chat_body, until

Serve = Callable[..., Server]
KEY = {"Authorization": "Bearer sesame"}
CHAT = "/v1/chat/completions"
# Each route with a method it takes.
ROUTES = [
    ("POST", CHAT),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fake"),
    ("GET", "/health"),
    ("GET", "/experts"),
    ("GET", "/profile"),
    ("GET", "/api/state"),
    ("GET", "/api/events"),
    ("GET", "/"),
]
OPEN_ROUTES = {"/health", "/"}


def assert_is_error(answer: Answer, status: int) -> None:
    assert answer.status == status
    assert answer.headers["content-type"].startswith("application/json")
    assert set(answer.error) >= {"message", "type", "param", "code"}
    text = answer.body.decode()
    assert "Traceback" not in text
    assert not re.search(r"/(home|root|usr|tmp|work|site-packages)", text)
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/api/nothing", 404),
        ("GET", "/no.such.file", 404),
        ("POST", "/v1/messages", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1", 404),
        ("POST", "/brain", 405),
        ("DELETE", CHAT, 405),
        ("GET", CHAT, 405),
        ("PUT", "/health", 405),
        ("BREW", "/health", 405),
        ("GET", "/v1/models/other", 404),
    ],
)
async def test_every_error_is_json(serve: Serve, method: str, path: str, status: int) -> None:
    async with serve() as server:
        assert_is_error(await server.request(method, path), status)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": NaN}',
        b"[" * 50_000,
        b"null",
        b"[]",
    ],
)
async def test_bodies_that_are_no_requests_are_400(serve: Serve, body: bytes) -> None:
    async with serve() as server:
        for path in (CHAT, "/v1/completions"):
            assert_is_error(await server.request("POST", path, body), 400)
        assert server.files.received == []


async def test_a_bug_is_a_500_without_details(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve() as server:

        def broken(*_: Any) -> Any:
            raise ZeroDivisionError("secret /etc/path")

        monkeypatch.setattr(server.service.renderer, "render_async", broken)
        answer = await server.chat()
        assert_is_error(answer, 500)
        assert "secret" not in answer.body.decode()
        assert answer.headers["x-request-id"] in answer.error["message"]
    assert "ZeroDivisionError" in caplog.text


# --- who may ask ---


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.org", "[::2]:80", "localhost."],
)
async def test_requests_for_foreign_hosts_are_refused(
    serve: Serve, method: str, path: str, host: str
) -> None:
    async with serve() as server:
        answer = await server.request(method, path, host=host)
        assert_is_error(answer, 403)
        assert host.partition(":")[0].strip("[") in answer.error["message"]
        assert "--allowed-host" in answer.error["hint"]


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["localhost", "evil.example"]])
async def test_a_missing_or_doubled_host_is_refused(serve: Serve, hosts: list[str]) -> None:
    async with serve() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        lines = "".join(f"Host: {host}\r\n" for host in hosts)
        writer.write(f"GET /experts HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
        reply = await reader.read()
        assert reply.startswith(b"HTTP/1.1 400 ")
        assert b"rows" not in reply
        writer.close()
        await writer.wait_closed()


async def test_names_of_this_machine_and_allowed_ones_are_served(serve: Serve) -> None:
    async with serve(allowed_hosts=("Box.Example",)) as server:
        for host in (
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:99",
            "[::1]",
            "[::1]:80",
            "box.example:7",
        ):
            assert (await server.request("GET", "/health", host=host)).status == 200
    async with serve(allowed_hosts=("*",)) as server:
        assert (await server.request("GET", "/health", host="any.example")).status == 200


@pytest.mark.parametrize(
    ("name", "value", "statuses"),
    [
        ("Origin", "http://[::1", {403}),
        ("Origin", "http://[v1.x]:y", {403}),
        ("Origin", "//\u2100@x", {403}),
        ("Origin", "null", {403}),
        ("Origin", "", {403}),
        ("Host", "[::1", {403}),
        ("Host", "[", {403, 400}),
        ("Host", ":", {403, 400}),
        ("Content-Length", "\u00b2", {400}),
        ("Content-Length", "9" * 5000, {400, 413}),
        ("Content-Length", "-1", {400}),
        ("Content-Type", "; charset=\xff", {200}),
        ("Content-Encoding", "\xe9", {415}),
        ("Authorization", "\xe9 \xe9", {401}),
        ("X-Api-Key", "\xff", {401}),
        ("X-Colibri-Telemetry", "\xe9", {200}),
    ],
)
async def test_headers_without_sense_are_refused_and_never_a_fault(
    serve: Serve, name: str, value: str, statuses: set[int]
) -> None:
    needs_key = name in ("Authorization", "X-Api-Key")
    async with serve(api_key="sesame" if needs_key else None) as server:
        answer = await server.request("POST", CHAT, chat_body(), {name: value})
        assert answer.status in statuses


async def test_a_preflight_repeats_header_names_only(serve: Serve) -> None:
    origin = "https://app.example"
    async with serve(cors_origins=(origin,)) as server:
        for asked, allowed in (
            ("x-one, x-two", "x-one, x-two"),
            ("a\tb", "authorization, content-type"),
            ("\xe9", "authorization, content-type"),
        ):
            headers = {"Origin": origin, "Access-Control-Request-Headers": asked}
            answer = await server.request("OPTIONS", CHAT, headers=headers)
            assert answer.status == 204
            assert answer.headers["access-control-allow-headers"] == allowed


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_the_key_is_needed_wherever_it_should_be(
    serve: Serve, method: str, path: str
) -> None:
    async with serve(api_key="sesame") as server:
        body = {**chat_body(), "prompt": "x"} if method == "POST" else None

        async def status(headers: dict[str, str]) -> int:
            stream = await server.open(method, path, body, headers)
            await stream.read_head()
            await stream.close()
            return stream.status

        expected = 200 if path in OPEN_ROUTES else 401
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic sesame"},
            {"Authorization": "Bearer "},
            {"X-Api-Key": "wrong"},
            {"X-Api-Key": "sesame", "Authorization": "Bearer wrong"},
            {"X-Api-Key": "wrong", **KEY},
            {"Authorization": "Bearer sésame"},
        ):
            assert await status(headers) == expected, headers
        for headers in (KEY, {"X-Api-Key": "sesame"}, {"X-Api-Key": "sesame", **KEY}):
            assert await status(headers) == 200, headers


async def test_a_refused_key_is_an_openai_error(serve: Serve) -> None:
    async with serve(api_key="sesame") as server:
        answer = await server.request("POST", CHAT, chat_body())
        assert_is_error(answer, 401)
        assert (answer.error["type"], answer.error["code"]) == (
            "authentication_error",
            "invalid_api_key",
        )
        health = (await server.request("GET", "/health")).json
        assert health == {"status": "ok", "state": "ready"}
        assert "tiers" in (await server.request("GET", "/health", headers=KEY)).json


@pytest.mark.parametrize("header", [None, "Bearer ", "Bearer x", "Bearer sk-anything"])
async def test_any_key_will_do_when_none_is_set(serve: Serve, header: str | None) -> None:
    async with serve(model={"id": "org/model"}) as server:
        headers = {} if header is None else {"Authorization": header}
        answer = await server.request("GET", "/v1/models", headers=headers)
        [model] = answer.json["data"]
        assert (model["id"], model["object"], model["owned_by"]) == (
            "org/model",
            "model",
            "colibri",
        )
        assert model["context_length"] == model["max_model_len"] == 64
        assert isinstance(model["created"], int)
        one = await server.request("GET", "/v1/models/org/model", headers=headers)
        assert one.json == model


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_listening_to_the_network_needs_a_key(host: str) -> None:
    with pytest.raises(UsageError, match="without an API key") as caught:
        bind(ServeSettings(host=host, port=0))
    assert caught.value.hint is not None
    ServeSettings(host=host, api_key="k").check()


def test_a_taken_port_is_a_clear_error() -> None:
    sockets = bind(ServeSettings(port=0))
    try:
        port = sockets[0].getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port}"):
            bind(ServeSettings(port=port))
    finally:
        for sock in sockets:
            sock.close()


def test_a_method_without_a_decision_about_the_key_is_refused() -> None:
    class Forgetful(BaseHandler):
        def get(self) -> None:
            """No entry in auth."""

    class Stale(BaseHandler):
        auth: ClassVar[dict[str, Auth]] = {"post": "key"}

    for handler in (Forgetful, Stale, tornado.web.RequestHandler):
        with pytest.raises(TypeError):
            audit([("/x", handler)])


# --- other origins ---


async def test_pages_of_foreign_origins_change_nothing(serve: Serve) -> None:
    async with serve(cors_origins=("https://app.example",)) as server:
        for origin in (
            "https://evil.example",
            "null",
            "https://app.example.evil",
            "http://app.example",
        ):
            for media in ("application/json", "text/plain"):
                headers = {"Origin": origin, "Content-Type": media}
                answer = await server.request("POST", CHAT, chat_body(), headers)
                assert_is_error(answer, 403)
                assert "access-control-allow-origin" not in answer.headers
        assert server.files.received == []
        for origin in ("https://app.example", server.base_url):
            answer = await server.request("POST", CHAT, chat_body(), {"Origin": origin})
            assert answer.status == 200
        assert answer.headers.get("access-control-allow-origin") is None
        assert answer.headers["vary"] == "Origin"


async def test_preflight_answers_allowed_origins_only(serve: Serve) -> None:
    async with serve(cors_origins=("https://app.example",), api_key="sesame") as server:
        ask = {"Access-Control-Request-Headers": "authorization, content-type, x-stainless-os"}
        answer = await server.request(
            "OPTIONS", CHAT, headers={"Origin": "https://app.example", **ask}
        )
        assert answer.status == 204
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert "POST" in answer.headers["access-control-allow-methods"]
        answer = await server.request(
            "OPTIONS", CHAT, headers={"Origin": "https://evil.example", **ask}
        )
        assert answer.status == 204
        assert not [name for name in answer.headers if name.startswith("access-control")]
        answer = await server.request("POST", CHAT, {}, {"Origin": "https://app.example"})
        assert answer.status == 401
        assert answer.headers["access-control-allow-origin"] == "https://app.example"


# --- how much may be sent ---


async def test_bodies_beyond_the_limit_are_413(serve: Serve) -> None:
    async with serve(service={"max_body_bytes": 1000}) as server:
        exact = json.dumps(chat_body()).encode()
        exact += b" " * (1000 - len(exact))
        assert (await server.request("POST", CHAT, exact)).status == 200
        assert_is_error(await server.request("POST", CHAT, exact + b" "), 413)
        assert_is_error(await server.request("POST", CHAT, b" " * 3999), 413)
        assert (await server.request("GET", "/health")).status == 200


async def test_a_body_that_never_ends_is_cut_off(serve: Serve) -> None:
    async with serve(service={"max_body_bytes": 1000}) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        try:
            while sent < 10**7 and not reader.at_eof():
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()
                sent += 1024
        except ConnectionError:
            pass
        assert sent < 10**7
        writer.transport.abort()
        assert (await server.request("GET", "/health")).status == 200


async def test_forms_and_compressed_bodies_are_refused_unread(serve: Serve) -> None:
    async with serve() as server:
        part = b'--x\r\nContent-Disposition: form-data; name="a"' + b";a" * 1000 + b"\r\n\r\n1\r\n"
        form = {"Content-Type": "multipart/form-data; boundary=x"}
        for path in (CHAT, "/v1/completions"):
            assert_is_error(await server.request("POST", path, part * 1000, form), 415)
            gzip = {"Content-Encoding": "gzip"}
            assert_is_error(await server.request("POST", path, b"\x1f\x8b", gzip), 415)


async def test_many_idle_connections_starve_nobody(serve: Serve) -> None:
    async with serve() as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(200)]
        assert (await server.request("GET", "/health")).status == 200
        for _, writer in idle:
            writer.transport.abort()


async def test_aborted_requests_leave_no_traceback(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve({"repeat": 100, "token_s": 0.01}) as server:
        for _ in range(30):
            stream = await server.chat_stream("secret words")
            await stream.read_head()
            stream.abort()
            await until(lambda: server.service.admission.active == 0)
    assert "Traceback" not in caplog.text
    assert "secret words" not in caplog.text


# --- the page ---


@pytest.fixture
def page(tmp_path: Path) -> Path:
    outside = tmp_path / "secret.txt"
    outside.write_text("SECRET", encoding="utf-8")
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<h1>page</h1>", encoding="utf-8")
    (folder / "assets" / "app-1a2b.js").write_text("1", encoding="utf-8")
    (folder / "experts.json").write_text("{}", encoding="utf-8")
    (folder / "leak.txt").symlink_to(outside)
    (folder / "leak-folder").symlink_to(tmp_path)
    return folder


async def test_files_of_the_page(serve: Serve, page: Path) -> None:
    async with serve(static=page) as server:
        index = await server.request("GET", "/")
        assert (index.status, index.body) == (200, b"<h1>page</h1>")
        assert index.headers["content-type"] == "text/html; charset=utf-8"
        assert index.headers["cache-control"] == "no-cache"
        assert index.headers["x-content-type-options"] == "nosniff"
        policy = index.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        asset = await server.request("GET", "/assets/app-1a2b.js")
        assert asset.headers["content-type"] == "text/javascript; charset=utf-8"
        assert "immutable" in asset.headers["cache-control"]
        same = await server.request(
            "GET", "/assets/app-1a2b.js", headers={"If-None-Match": asset.headers["etag"]}
        )
        assert (same.status, same.body) == (304, b"")
        for path in ("/brain", "/c/42", "/settings?x=1"):
            assert (await server.request("GET", path)).body == index.body
        head = await server.request("HEAD", "/")
        assert (head.status, head.body) == (200, b"")
        assert (await server.request("GET", "/experts.json")).json == {}
        assert_is_error(await server.request("GET", "/gone.js"), 404)


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e/secret.txt",
        "/%2e%2e%2fsecret.txt",
        "/..%5csecret.txt",
        "/..%252fsecret.txt",
        "/....//secret.txt",
        "/assets/../../secret.txt",
        "/leak.txt",
        "/leak-folder/secret.txt",
        "//etc/passwd.x",
        "/C:%5cwindows.txt",
        "/index.html%00.js",
        "/%ff.txt",
    ],
)
async def test_no_path_leads_out_of_the_page(serve: Serve, page: Path, path: str) -> None:
    async with serve(static=page) as server:
        answer = await server.request("GET", path)
        assert answer.status in (400, 404)
        assert b"SECRET" not in answer.body
        assert_is_error(answer, answer.status)


async def test_without_a_built_page_there_is_one_that_says_how(serve: Serve) -> None:
    async with serve() as server:
        answer = await server.request("GET", "/")
        assert answer.status == 200
        assert b"make web" in answer.body
        assert_is_error(await server.request("GET", "/brain"), 404)


# --- telemetry ---


async def test_experts_profile_and_state_follow_the_turns(serve: Serve) -> None:
    model = {"map_layers": (1, 2), "config": {"model_type": "fake_moe"}}
    async with serve(model=model) as server:
        before = (await server.request("GET", "/experts")).json
        assert (before["rows"], before["cols"], before["seq"]) == (2, 8, 0)
        assert len(before["map"]) == 2 * 16
        await server.chat()
        after = (await server.request("GET", "/experts")).json
        assert after["seq"] == 1
        assert after["map"] == LAST_MAP.hex()
        assert after["hits"] == "0101"
        assert after["entropy"] == [1.5, 2.25]
        profile = (await server.request("GET", "/profile")).json
        assert profile["seq"] == 1
        [turn] = profile["turns"]
        assert turn["completion_tokens"] == 5
        assert turn["expert_matmul_s"] == 0.2
        assert turn["uses_missed"] is turn["bytes_read"] is None, "the engine does not tell"
        assert turn["limit"]["kind"] == "computing"
        assert "68% of 0.5 s" in turn["limit"]["text"]
        assert profile["memory"] == {
            "dense_gb": None,
            "experts_gb": 0.01,
            "experts_most_gb": None,
            "conversations_most_gb": None,
        }
        assert turn["finish_reason"] == "stop"
        state = (await server.request("GET", "/api/state")).json
        assert state["state"] == "ready"
        assert (state["model"], state["version"]) == ("fake", "1.2.3")
        assert (state["ctx"], state["slots"]) == (64, 2)
        assert (state["rows"], state["cols"], state["layers"]) == (2, 8, [1, 2])
        assert state["tiers"]["ram"] == 11
        assert state["hwinfo"]["cpu_name"] == "Fake CPU"
        health = (await server.request("GET", "/health")).json
        assert health["status"] == "ok"
        assert health["scheduler"]["admitted"] == 1
        assert (health["state"], health["in_flight"], health["kv_slots"]) == ("ready", 0, 2)
        # One name for each figure.
        assert "name" not in health["engine"]
        assert not {"active", "capacity"} & set(health["scheduler"])


async def test_the_engine_knows_its_layers_best(serve: Serve) -> None:
    scenario = {"caps": "proto=1 ctx=64 slots=2 layers=3,5"}
    async with serve(scenario, model={"map_layers": (1, 2)}) as server:
        assert (await server.request("GET", "/api/state")).json["layers"] == [3, 5]


async def test_numbers_without_end_in_caps_are_none(serve: Serve) -> None:
    endless = "9" * 5000
    scenario = {"caps": f"proto=1 ctx={endless} slots={endless} layers=3,{endless}"}
    async with serve(scenario, model={"map_layers": (1, 2)}) as server:
        assert (await server.request("GET", "/api/state")).json["layers"] == [1, 2]


async def test_layers_that_contradict_the_map_are_not_shown(serve: Serve) -> None:
    async with serve(model={"map_layers": (1, 2, 3)}) as server:
        assert (await server.request("GET", "/api/state")).json["layers"] is None


def parse_event(block: str) -> tuple[str, int | None, Any]:
    fields = dict(line.split(": ", 1) for line in block.split("\n"))
    event_id = fields.get("id")
    return fields["event"], None if event_id is None else int(event_id), json.loads(fields["data"])


async def test_events_begin_with_snapshots_and_follow_the_turns(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventsHandler, "ping_s", 0.2)
    async with serve() as server:
        stream = await server.open("GET", "/api/events")
        await stream.read_head()
        assert stream.headers["content-type"].startswith("text/event-stream")
        blocks = stream.blocks()
        got = [parse_event(await anext(blocks)) for _ in range(3)]
        assert [kind for kind, _, _ in got] == ["state", "tiers", "map"]
        assert got[0][2]["state"] == "ready"
        assert len(base64.b64decode(got[2][2]["data"])) == 16
        await server.chat()
        while {"turn", "hits"} - {kind for kind, _, _ in got}:
            got.append(parse_event(await anext(blocks)))
        ids = [event_id for _, event_id, _ in got if event_id is not None]
        assert ids == sorted(set(ids))
        hits = next(data for kind, _, data in got if kind == "hits")
        assert base64.b64decode(hits["data"]) == b"\x01\x01"
        while got[-1][0] != "ping":
            got.append(parse_event(await anext(blocks)))
        stream.abort()
        await until(lambda: server.engine.telemetry.events.listeners == 0)


async def test_events_tell_that_the_engine_died(serve: Serve) -> None:
    async with serve({"lives": [{"kill_after": 1}]}) as server:
        stream = await server.open("GET", "/api/events?topics=state")
        await stream.read_head()
        await server.chat()
        states = []
        async for block in stream.blocks():
            states.append(parse_event(block)[2])
            if len(states) > 1 and states[-1]["state"] == "ready":
                break
        # A quick restart is merged into the state that it leads to.
        assert [states[0]["restarts"], states[-1]["restarts"]] == [0, 1]
        stream.abort()
