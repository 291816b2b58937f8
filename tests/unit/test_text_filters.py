from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.text_filters import StopFilter, ThinkFilter, held_back, role_markers


def stop_pieces(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    stop = StopFilter(stops)
    out = [stop.push(piece) for piece in pieces]
    out.append(stop.flush())
    return out, stop.stopped


def reference(text: str, stops: list[str]) -> tuple[str, bool]:
    """What somebody sees who looks for a stop string after every single character."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@st.composite
def split_texts(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    # A small alphabet makes overlapping and repeated matches likely.
    text = draw(st.text("abc", max_size=40))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    stops = draw(st.lists(st.text("abc", min_size=1, max_size=5), max_size=4))
    return pieces, stops


@settings(max_examples=1000)
@given(split_texts())
def test_every_split_gives_the_same_text(case: tuple[list[str], list[str]]) -> None:
    pieces, stops = case
    out, stopped = stop_pieces(pieces, stops)
    assert ("".join(out), stopped) == reference("".join(pieces), stops)


@settings(max_examples=1000)
@given(split_texts())
def test_holds_back_no_more_than_may_become_a_stop_string(
    case: tuple[list[str], list[str]],
) -> None:
    pieces, stops = case
    stop = StopFilter(stops)
    taken = shown = ""
    for piece in pieces:
        taken += piece
        shown += stop.push(piece)
        if stop.stopped:
            break
        assert shown == taken[: len(taken) - held_back(taken, stops)]


def test_holds_back_a_match_that_takes_four_tokens() -> None:
    out, stopped = stop_pieces(["one DEF", "G", "HI", "J two"], ["DEFGHIJ"])
    assert out == ["one ", "", "", "", ""]
    assert stopped


def test_delivers_what_was_held_back_when_the_match_breaks() -> None:
    out, stopped = stop_pieces(["DEF", "G", "HX"], ["DEFGHIJ"])
    assert out == ["", "", "DEFGHX", ""]
    assert not stopped


def test_nothing_is_shown_after_the_stop() -> None:
    stop = StopFilter(["\n"])
    assert stop.push("a\nb") == "a"
    assert stop.push("c") == ""
    assert stop.flush() == ""


def test_role_markers_are_those_of_the_template() -> None:
    assert role_markers("<|user|>{{ x }}<|assistant|>") == ("<|user|>", "<|assistant|>")
    assert role_markers(None) == ()


def think(pieces: list[str], *, inside: bool = False) -> dict[str, str]:
    filter_ = ThinkFilter(inside=inside)
    joined = {"content": "", "reasoning": ""}
    for piece in [*(filter_.push(p) for p in pieces), filter_.flush()]:
        for kind, text in piece:
            assert text
            joined[kind] += text
    return joined


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("<think>\nwell\n</think>\n\nyes", False, "well", "yes"),
        ("well</think>yes", True, "well", "yes"),
        ("\n<think>a", False, "a", ""),
        ("no tags at all", False, "", "no tags at all"),
        ("a <think>b</think>", False, "", "a <think>b</think>"),
        ("<thin", False, "", "<thin"),
        ("<think>a </thin", False, "a </thin", ""),
        ("<think></think>x", False, "", "x"),
    ],
)
def test_thinking_is_told_from_the_answer(
    text: str, inside: bool, reasoning: str, content: str
) -> None:
    assert think([text], inside=inside) == {"content": content, "reasoning": reasoning}


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "</", " ", "\n", "a", "<", "think>"]), max_size=12
    ),
    st.booleans(),
)
def test_thinking_does_not_depend_on_the_split(tokens: list[str], inside: bool) -> None:
    text = "".join(tokens)
    assert think(list(text), inside=inside) == think([text], inside=inside)
    assert think(tokens, inside=inside) == think([text], inside=inside)
