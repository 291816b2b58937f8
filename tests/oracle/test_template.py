"""The Rust renderer against Jinja2, live and against the stored texts."""

from __future__ import annotations

import importlib.util
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from colibri import _core

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("cases", ROOT / "scripts" / "make_template_cases.py")
cases = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(cases)

STORED = json.loads((cases.FOLDER / "expected.json").read_text(encoding="utf-8"))


def render(source: str, context: dict) -> str:
    template = _core.ChatTemplate(source, **cases.TOKENS)
    return template.render(json.dumps(context))


def source_of(case: dict) -> str:
    return (cases.FOLDER / f"{case['template']}.jinja").read_text(encoding="utf-8")


def test_stored_texts_are_what_jinja2_renders_now():
    assert json.loads(json.dumps(cases.CONTEXTS)) == STORED["contexts"]
    assert cases.cases() == STORED["rendered"]


@pytest.mark.parametrize(
    "case", STORED["rendered"], ids=lambda case: f"{case['template']}-{case['context']}"
)
def test_both_renderers_agree(case):
    context = STORED["contexts"][case["context"]]
    if "error" in case:
        with pytest.raises(_core.ColibriCoreError) as raised:
            render(source_of(case), context)
        assert case["error"] in str(raised.value)
        assert raised.value.code == "ENGINE"
        assert raised.value.hint is None
    else:
        assert render(source_of(case), context) == case["text"]


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d %B %Y", "%d %b %Y", "%A, %j", "%-d.%-m.%y"])
def test_dates_read_as_strftime_writes_them(form):
    before = datetime.now(UTC).strftime(form)
    text = render(f"{{{{ strftime_now('{form}') }}}}", {})
    assert text in {before, datetime.now(UTC).strftime(form)}


def test_variables_that_are_no_json_are_refused():
    template = _core.ChatTemplate("x")
    for text in ["", "{", "[]", "NaN"]:
        with pytest.raises(_core.ColibriCoreError):
            template.render(text)
