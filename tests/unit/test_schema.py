from __future__ import annotations

from typing import Any

import pytest

from colibri.errors import RequestError
from colibri.openai.schema import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    MAX_MESSAGES,
    engine_options,
    parse_chat,
    parse_completion,
)

USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> Any:
    return parse_chat({"messages": [USER], **fields})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 2**31),
        ("max_tokens", 10**30),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", "5"),
        ("max_completion_tokens", []),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.01),
        ("stop", ["a"] * 5),
        ("stop", ["a"] * 100_000),
        ("stop", ""),
        ("stop", [""]),
        ("stop", 3),
        ("stop", [3]),
        ("stop", {}),
        ("seed", -1),
        ("seed", 2**64),
        ("stream", "yes"),
        ("stream", 1),
        ("stream_options", []),
        ("stream_options", {"include_usage": 1}),
        ("n", 2),
        ("n", 10**6),
        ("n", 0),
        ("n", True),
        ("best_of", 2),
        ("tools", [{"type": "function"}]),
        ("functions", [{}]),
        ("tool_choice", "required"),
        ("tool_choice", {"function": {"name": "f"}}),
        ("logprobs", True),
        ("top_logprobs", 5),
        ("logit_bias", [1]),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": "5"}),
        ("logit_bias", {"1": None}),
        ("logit_bias", {"-1": 5}),
        ("logit_bias", {"": 5}),
        ("logit_bias", {"²": 5}),
        ("logit_bias", {"4294967296": 5}),
        ("logit_bias", {"9" * 5000: 5}),
        ("logit_bias", {str(i): 1 for i in range(301)}),
        ("top_k", -1),
        ("min_p", 1.5),
        ("frequency_penalty", "much"),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("response_format", "text"),
        ("model", 5),
        ("chat_template_kwargs", []),
        ("enable_thinking", "no"),
        ("presence_penalty", 3),
        ("repetition_penalty", 0),
    ],
)
def test_refuses_and_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**{field: value})
    assert caught.value.status == 400
    assert caught.value.param == field
    assert field in str(caught.value)


@pytest.mark.parametrize("field", sorted(CHAT_FIELDS))
def test_null_means_the_default(field: str) -> None:
    assert chat(**{field: None}) == chat()


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"logprobs": False},
        {"top_logprobs": 0},
        {"logit_bias": {}},
        {"response_format": {"type": "text"}},
        {"user": "me", "metadata": {"a": 1}, "store": True, "parallel_tool_calls": False},
        {"never_heard_of": [1, 2, 3]},
        {"stop": []},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1},
    ],
)
def test_harmless_values_change_nothing(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()


def test_minus_zero_is_zero() -> None:
    assert str(chat(temperature=-0.0).sampling.temperature) == "0.0"


def test_the_newer_limit_wins() -> None:
    assert chat(max_tokens=9, max_completion_tokens=3).sampling.max_tokens == 3
    assert chat(max_tokens=9.0).sampling.max_tokens == 9


def test_stop_takes_a_string_or_a_list() -> None:
    assert chat(stop="x").sampling.stop == ("x",)
    assert chat(stop=["x", "y"]).sampling.stop == ("x", "y")


def test_options_go_to_the_engine_only_if_it_offers_them() -> None:
    sampling = chat(seed=7, presence_penalty=0.5, ignore_eos=True).sampling
    offered = frozenset({"seed", "presence", "ignore_eos"})
    assert engine_options(sampling, offered) == {"seed": "7", "presence": "0.5", "ignore_eos": "1"}
    with pytest.raises(RequestError) as caught:
        engine_options(sampling, frozenset({"seed", "ignore_eos"}))
    assert caught.value.param == "presence_penalty"


def test_every_sampling_field_has_its_option() -> None:
    sampling = chat(
        top_k=40,
        min_p=0.05,
        presence_penalty=-0.5,
        frequency_penalty=1,
        repetition_penalty=1.1,
        logit_bias={"151329": -100, "7": 0.25, "007": -0.0},
    ).sampling
    options = {
        "top_k": "40",
        "min_p": "0.05",
        "presence": "-0.5",
        "frequency": "1",
        "repetition": "1.1",
        "bias": "151329:-100,7:0",
    }
    assert engine_options(sampling, frozenset(options)) == options
    for missing, (_, field) in sampling.options.items():
        with pytest.raises(RequestError) as caught:
            engine_options(sampling, frozenset(options) - {missing})
        assert caught.value.param == field
        assert field in str(caught.value)


def test_a_seed_of_zero_is_a_seed() -> None:
    assert engine_options(chat(seed=0).sampling, frozenset({"seed"})) == {"seed": "0"}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ([USER] * (MAX_MESSAGES + 1), "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([USER, {"role": "tool", "content": "x", "tool_call_id": "1"}], "messages[1]"),
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}], "messages[0]"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": "a\0b"}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}],
                }
            ],
            "messages[0].content",
        ),
        ([USER, {"role": "assistant", "content": "x"}], "messages"),
    ],
)
def test_refuses_messages_and_names_the_place(messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat({"messages": messages})
    assert caught.value.param == param
    assert "file:" not in str(caught.value)


def test_parts_are_joined_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = parse_chat(
        {
            "messages": [
                {"role": "developer", "content": "be brief", "name": "x"},
                {"role": "assistant", "content": None},
                {"role": "user", "content": parts},
            ]
        }
    )
    assert request.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "ab"},
    ]


def test_template_variables_cannot_replace_the_messages() -> None:
    request = chat(chat_template_kwargs={"messages": [], "a": 1}, enable_thinking=False)
    assert request.template_variables == {"a": 1, "enable_thinking": False}


@pytest.mark.parametrize("prompt", [None, "", [], ["a", "b"], [1, 2], 5, "a\0", [[1]]])
def test_refuses_prompts(prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parse_completion({"prompt": prompt})
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("field", "value"), [("echo", True), ("suffix", "x"), ("logprobs", 0), ("logprobs", 5)]
)
def test_refuses_what_completions_do_not_do(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parse_completion({"prompt": "x", field: value})
    assert caught.value.param == field


@pytest.mark.parametrize("body", [None, [], "x", 5])
def test_refuses_a_body_that_is_no_object(body: Any) -> None:
    for parse in (parse_chat, parse_completion):
        with pytest.raises(RequestError):
            parse(body)


def test_every_refused_field_says_why() -> None:
    for table in (CHAT_FIELDS, COMPLETION_FIELDS):
        for name, field in table.items():
            assert field.rule == "accepted" or field.note, name
