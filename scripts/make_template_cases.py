"""Render the templates of tests/data/templates with Jinja2 and store what comes out.

Run from the repository root after changing a template or a context: ``python
scripts/make_template_cases.py``. The environment is the one of ``transformers``
(``utils/chat_template_utils.py``): sandboxed, trim_blocks, lstrip_blocks, loop controls, its
``tojson``, ``raise_exception`` and ``strftime_now``.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = Path(__file__).parent.parent / "tests" / "data" / "templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather at a "place" <now> & then; größer, 東京',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name\nof the city"},
                "unit": {"enum": ["c", "f"]},
                "days": {"type": "array", "items": {"type": "integer"}},
                "detail": {"type": ["string", "null"]},
                "free": {},
            },
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {
        "name": "get_weather",
        "arguments": {"city": "Zürich", "days": [1, 2], "exact": True, "none": None, "t": 0.5},
    },
}

CONTEXTS: dict[str, dict[str, Any]] = {
    "one_turn": {
        "messages": [{"role": "user", "content": "Hi"}],
        "add_generation_prompt": True,
    },
    "system_and_turns": {
        "messages": [
            {"role": "system", "content": "Be brief.\n"},
            {"role": "user", "content": "  What is a list? "},
            {"role": "assistant", "content": "A sequence."},
            {"role": "user", "content": "Show one: <b>&amp;</b> {{ x }} {% if %}"},
        ],
        "add_generation_prompt": True,
        "enable_thinking": False,
    },
    "thinking_in_content": {
        "messages": [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "<think>\nadd\n</think>\n\n2"},
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "<think>\nadd more\n</think>\n\n4"},
        ],
        "add_generation_prompt": False,
    },
    "reasoning_field": {
        "messages": [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "reasoning_content": "\nadd ", "content": "2\n"},
        ],
        "add_generation_prompt": False,
        "enable_thinking": True,
    },
    "tools": {
        "messages": [
            {"role": "system", "content": "Use tools."},
            {"role": "user", "content": "Weather in Zürich? 🙂"},
            {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
            {"role": "tool", "content": '{"temp": 21}'},
            {"role": "tool", "content": "sunny"},
            {"role": "assistant", "content": "21 degrees."},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": [WEATHER, WEATHER],
        "add_generation_prompt": True,
    },
    "parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "image"}]},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "again"},
            {"role": "user", "content": "and again"},
        ],
        "add_generation_prompt": True,
    },
    "answer_to_go_on_with": {
        "messages": [
            {"role": "system", "content": "Rhyme."},
            {"role": "user", "content": "Roses?"},
            {"role": "assistant", "content": "Roses are red,\n "},
        ],
        "add_generation_prompt": False,
        "continue_final_message": True,
        "enable_thinking": False,
    },
    "results_last": {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "reasoning_content": "ask\n the tool",
                "content": None,
                "tool_calls": [CALL],
            },
            {"role": "tool", "name": "get_weather", "content": 'é "21" \\ <b>\n'},
        ],
        "tools": [WEATHER],
        "add_generation_prompt": True,
        "enable_thinking": True,
    },
    "arguments_as_text": {
        "messages": [
            {"role": "user", "content": "Go"},
            {
                "role": "assistant",
                "content": "Going.",
                "tool_calls": [
                    {"type": "function", "function": {"name": "go", "arguments": '{"a": 1}'}}
                ],
            },
            {"role": "tool", "content": [{"type": "text", "text": "gone"}]},
            {"role": "assistant", "content": "<think>\n</think>\n\nWent."},
            {"role": "user", "content": "<result>x</result>"},
        ],
        "tools": [{"type": "function", "function": {"name": "go", "description": "Goes.\nFar."}}],
        "add_generation_prompt": True,
    },
    "documents": {
        "messages": [
            {"role": "system", "content": "Cite."},
            {"role": "user", "name": "ann", "content": "Who?"},
            {"role": "assistant", "content": "Bob [1]."},
            {"role": "user", "content": "Since when?"},
        ],
        "documents": [
            {"title": "A & B", "text": "  Bob was\nhere.\n\nTwice. "},
            {"title": "Ünï", "year": 1999},
        ],
        "add_generation_prompt": True,
    },
    "many_systems": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "One."}], "date": "today"},
            {"role": "user", "content": [{"type": "text", "text": " a "}, "b", {"type": "audio"}]},
        ],
        "tools": [],
        "add_generation_prompt": True,
        "enable_thinking": None,
    },
    "nobody": {"messages": [], "tools": [WEATHER], "add_generation_prompt": True},
    "long": {
        "messages": [
            {"role": "assistant" if i % 2 else "user", "content": f"turn {i}"} for i in range(9)
        ],
        "add_generation_prompt": False,
    },
    "roles_out_of_order": {
        "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        "add_generation_prompt": True,
    },
    "values": {
        "messages": [{"role": "user", "content": "x"}],
        "values": {
            "text": "hello wide world",
            "quoted": 'it\'s "so"\t\\ \u0001 \u007f </s>',
            "unicode": "é日本🙂",
            "int": 42,
            "big": 12345678901234567890,
            "negative": -3,
            "float": 0.1,
            "whole": 2.0,
            "huge": 1e20,
            "tiny": 1.5e-7,
            "yes": True,
            "no": False,
            "nothing": None,
            "list": [1, "two", None, True, 2.5, ["x"]],
            "empty_list": [],
            "empty_map": {},
            "map": {"b": 1, "a": {"z": [], "y": "q"}},
        },
        "add_generation_prompt": True,
    },
}


class Generation(Extension):
    """``{% generation %}``, which marks answers for training and renders what is in it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render(self, caller: Any) -> Any:
        return caller()


def environment() -> ImmutableSandboxedEnvironment:
    """The environment in which ``transformers`` renders chat templates."""

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(
        x: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            x,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def render(source: str, context: dict[str, Any]) -> str:
    """What Jinja2 makes of a template."""
    return environment().from_string(source).render(**TOKENS, **context)


def cases() -> list[dict[str, str]]:
    """Every template with every context it can be expected to take."""
    rendered = []
    for path in sorted(FOLDER.glob("*.jinja")):
        for name, context in CONTEXTS.items():
            if path.stem in ("values", "expressions") and name != "values":
                continue
            case = {"template": path.stem, "context": name}
            try:
                case["text"] = render(path.read_text(encoding="utf-8"), context)
            except jinja2.exceptions.TemplateSyntaxError:
                raise
            except jinja2.exceptions.UndefinedError:
                continue
            except jinja2.exceptions.TemplateError as error:
                case["error"] = str(error)
            except (AttributeError, TypeError):
                # A template that takes a list of parts for text; Jinja2 has no own error for it.
                continue
            rendered.append(case)
    return rendered


if __name__ == "__main__":
    table = {"contexts": CONTEXTS, "rendered": cases()}
    text = json.dumps(table, ensure_ascii=False, indent=1)
    (FOLDER / "expected.json").write_text(text + "\n", encoding="utf-8")
