"""The page as a person meets it: a real browser against a server that plays a script."""

from __future__ import annotations

import pytest
from patterns import lively_map
from playwright.sync_api import Page, expect

ANSWER = "Once upon a time there was a little fox."


def ask(page: Page, text: str = "Tell me a story.") -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def answer(page: Page):
    return page.get_by_role("article", name="Answer").last


def finished(page: Page) -> None:
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible()


class TestChat:
    def test_answer_streams_in(self, page, server):
        server.script.delay_s = 0.02
        ask(page)
        expect(page.get_by_role("article", name="You")).to_have_text("Tell me a story.")
        expect(answer(page)).to_contain_text("Once upon")
        assert answer(page).get_attribute("aria-busy") == "true"
        finished(page)
        expect(answer(page)).to_contain_text(ANSWER)
        expect(answer(page).locator("strong")).to_have_text("brave")
        assert answer(page).get_attribute("aria-busy") == "false"

    def test_footer_shows_the_engines_numbers(self, page):
        ask(page)
        facts = answer(page).locator(".answer-facts")
        for figure in ("41.7 tok/s", "TTFT 180 ms", "17 → 24 tokens", "9 reused", "93.4 % hits"):
            expect(facts).to_contain_text(figure)
        expect(facts).to_contain_text("finished")

    def test_footer_explains_its_terms_on_a_tap(self, open_page):
        page = open_page(viewport={"width": 390, "height": 740}, has_touch=True, is_mobile=True)
        page.get_by_role("textbox", name="Message").fill("Tell me a story.")
        page.get_by_role("button", name="Send").tap()
        facts = answer(page).locator(".answer-facts")
        meaning = answer(page).get_by_text("Time to first token")
        expect(facts).to_be_visible()
        expect(meaning).not_to_be_visible()
        facts.tap()
        for words in ("Time to first token", "not computed again", "in RAM or VRAM when needed"):
            expect(answer(page).get_by_text(words)).to_be_in_viewport()
        facts.tap()
        expect(meaning).not_to_be_visible()

    def test_characters_cut_by_the_network_arrive_whole(self, page, server):
        server.script.text = "Füchse 🦊 sagen 你好 " * 5
        server.script.chunk_bytes = 1
        server.script.delay_s = 0
        ask(page)
        finished(page)
        expect(answer(page)).to_contain_text(server.script.text.strip())

    def test_stop_keeps_the_text_and_tells_the_server(self, page, server):
        server.script.hang = True
        ask(page)
        expect(answer(page)).to_contain_text("little fox")
        page.get_by_role("button", name="Stop").click()
        assert server.cancelled.wait(1.0)
        expect(answer(page)).to_contain_text("stopped")
        expect(answer(page)).to_contain_text("little fox")

    def test_escape_stops(self, page, server):
        server.script.hang = True
        ask(page)
        expect(answer(page)).to_contain_text("little fox")
        page.keyboard.press("Escape")
        expect(answer(page)).to_contain_text("stopped")

    def test_regenerate_asks_the_same_again(self, page, server):
        ask(page)
        finished(page)
        server.script.text = "Another story."
        page.get_by_role("button", name="Regenerate").click()
        expect(answer(page)).to_contain_text("Another story.")
        expect(page.get_by_role("article")).to_have_count(2)
        bodies = [request["body"] for request in server.requests if "body" in request]
        assert bodies[0]["messages"] == bodies[1]["messages"]

    def test_second_question_carries_the_first_exchange(self, page, server):
        ask(page, "one")
        finished(page)
        ask(page, "two")
        expect(page.get_by_role("article")).to_have_count(4)
        roles = [message["role"] for message in server.requests[-1]["body"]["messages"]]
        assert roles == ["user", "assistant", "user"]

    def test_parameters_are_sent_only_when_set(self, page, server):
        page.get_by_role("button", name="Parameters").click()
        temperature = page.get_by_role("spinbutton", name="Temperature")
        assert temperature.get_attribute("placeholder") == "0.7"
        temperature.fill("0.2")
        top_p = page.get_by_role("spinbutton", name="Top-p")
        assert top_p.get_attribute("placeholder") == "0.95"
        top_p.press_sequentially("0.8")
        expect(page.get_by_text("Default: up to the end of the context")).to_be_visible()
        assert page.get_by_role("spinbutton", name="Max tokens").get_attribute("placeholder") == ""
        page.get_by_role("textbox", name="System prompt").fill("Be kind.")
        page.keyboard.press("Escape")
        ask(page)
        finished(page)
        body = server.requests[-1]["body"]
        assert body["temperature"] == 0.2
        assert body["top_p"] == 0.8
        assert body["messages"][0] == {"role": "system", "content": "Be kind."}
        assert "seed" not in body
        assert "max_tokens" not in body

    def test_value_out_of_range_is_marked_and_not_taken(self, page, server):
        page.get_by_role("button", name="Parameters").click()
        top_p = page.get_by_role("spinbutton", name="Top-p")
        top_p.fill("1.5")
        expect(top_p).to_have_attribute("aria-invalid", "true")
        top_p.blur()
        expect(top_p).to_have_value("")
        page.keyboard.press("Escape")
        ask(page)
        finished(page)
        assert "top_p" not in server.requests[-1]["body"]

    def test_empty_state_names_model_and_hardware_and_offers_examples(self, page):
        expect(page.get_by_role("heading", name="colibri-demo")).to_be_visible()
        expect(page.get_by_text("Example CPU 8-Core · 8 cores · 31.2 GB RAM")).to_be_visible()
        examples = page.get_by_role("list", name="Examples").get_by_role("button")
        expect(examples).to_have_text(
            [
                "Tell me a story about a fox.",
                "What does a cow say?",
                "What is the capital of France?",
            ]
        )
        examples.first.click()
        finished(page)
        expect(answer(page)).to_contain_text(ANSWER)

    def test_only_the_demo_model_is_introduced(self, page, server):
        about = page.get_by_text("A small demo model: it tells little stories")
        expect(about).to_be_visible()
        server.wait_for_stream()
        server.set_engine(model="another-model")
        expect(page.get_by_role("heading", name="another-model")).to_be_visible()
        expect(about).to_have_count(0)


LINES = "\n\n".join(f"Line {i} of an answer that is longer than the window." for i in range(60))
# The bottom of the last answer against the bottom of what is visible of the list.
HIDDEN_BELOW = """() => {
  const list = document.querySelector('.chat-scroll').getBoundingClientRect();
  const last = [...document.querySelectorAll('.message')].at(-1).getBoundingClientRect();
  return last.bottom - list.bottom;
}"""


class TestFollowing:
    @pytest.mark.parametrize("width", [1280, 390])
    def test_every_answer_is_followed_to_its_last_line(self, open_page, server, width):
        page = open_page(viewport={"width": width, "height": 700})
        # Much text between two frames: the list grows by more than the slack each time.
        server.script.chunk_bytes = 2000
        server.script.delay_s = 0.004
        jump = page.get_by_role("button", name="Jump to latest")
        for turn in range(4):
            server.script.text = f"{LINES}\n\nThe end of answer {turn}."
            ask(page, f"Question {turn}")
            expect(answer(page)).to_contain_text(f"The end of answer {turn}.")
            finished(page)
            expect(answer(page).get_by_text(f"The end of answer {turn}.")).to_be_in_viewport()
            page.wait_for_timeout(100)
            assert page.evaluate(HIDDEN_BELOW) <= 0
            expect(jump).to_have_count(0)

    def test_reader_who_scrolls_up_is_left_alone_until_the_next_question(self, page, server):
        server.script.text = f"{LINES}\n\nThe end."
        server.script.chunk_bytes = 1000
        server.script.delay_s = 0.02
        ask(page)
        expect(answer(page)).to_contain_text("Line 20")
        page.mouse.move(600, 400)
        page.mouse.wheel(0, -300)
        jump = page.get_by_role("button", name="Jump to latest")
        expect(jump).to_be_visible()
        finished(page)
        expect(answer(page).get_by_text("The end.")).not_to_be_in_viewport()
        jump.click()
        expect(answer(page).get_by_text("The end.")).to_be_in_viewport()
        expect(jump).to_have_count(0)

        page.mouse.wheel(0, -900)
        expect(jump).to_be_visible()
        server.script.hang = True
        ask(page, "And then?")
        expect(page.get_by_role("article", name="You").last).to_be_in_viewport()
        expect(jump).to_have_count(0)


class TestStorage:
    def test_reload_keeps_the_conversation(self, page):
        ask(page)
        finished(page)
        page.reload()
        expect(answer(page)).to_contain_text(ANSWER)
        expect(page.get_by_role("article", name="You")).to_have_text("Tell me a story.")
        expect(answer(page)).to_contain_text("41.7 tok/s")

    def test_reload_in_the_middle_keeps_what_was_there(self, page, server):
        server.script.hang = True
        ask(page)
        expect(answer(page)).to_contain_text("brave")
        server.script.text = "x"
        page.reload()
        expect(answer(page)).to_contain_text("interrupted by a reload")
        expect(answer(page)).to_contain_text("brave")

    def test_reload_loses_no_text_that_was_on_screen(self, page, server):
        server.script.text = " ".join(f"word{i}" for i in range(2000))
        server.script.chunk_bytes = 700
        server.script.delay_s = 0.01
        for turn in range(5):
            ask(page, f"Question {turn}")
            expect(answer(page)).to_contain_text("word40")
            shown = answer(page).locator(".md").inner_text()
            page.reload()
            expect(answer(page)).to_contain_text("interrupted by a reload")
            kept = answer(page).locator(".md").inner_text()
            assert kept.startswith(shown[:-8])

    def test_closed_tab_loses_no_text_that_was_on_screen(self, page, server):
        server.script.hang = True
        ask(page)
        expect(answer(page)).to_contain_text("brave")
        other = page.context.new_page()
        page.close(run_before_unload=True)
        other.goto(server.url)
        expect(answer(other)).to_contain_text("interrupted by a reload")
        expect(answer(other)).to_contain_text("brave")

    def test_answer_after_an_interrupted_one_can_be_regenerated(self, page, server):
        server.script.hang = True
        ask(page)
        expect(answer(page)).to_contain_text("brave")
        page.reload()
        finished(page)
        server.script.hang = False
        ask(page, "Another question")
        expect(page.get_by_role("article")).to_have_count(4)
        finished(page)
        server.script.text = "Told again."
        page.get_by_role("button", name="Regenerate").click()
        expect(answer(page)).to_contain_text("Told again.")
        finished(page)
        page.reload()
        expect(answer(page)).to_contain_text("Told again.")
        finished(page)
        expect(page.get_by_role("article")).to_have_count(4)

    def test_chats_can_be_left_found_and_deleted(self, page):
        ask(page, "first question")
        finished(page)
        page.get_by_role("button", name="New chat").click()
        expect(page.get_by_role("article")).to_have_count(0)
        ask(page, "second question")
        finished(page)
        page.get_by_role("button", name="Chats").click()
        page.get_by_role("button", name="first question").first.click()
        expect(page.get_by_role("article", name="You")).to_have_text("first question")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Chats").click()
        page.get_by_role("button", name="Delete “first question”").click()
        page.get_by_role("button", name="Close").click()
        page.reload()
        expect(page.get_by_text("first question")).to_have_count(0)


class TestErrors:
    def test_refusal_shows_message_hint_and_retry(self, page, server):
        server.script.refuse = (
            400,
            {"message": "The prompt is too long.", "code": "context_length_exceeded"},
        )
        ask(page)
        card = page.get_by_role("alert")
        expect(card).to_contain_text("The prompt is too long.")
        expect(card).to_contain_text("Start a new chat")
        expect(card).to_contain_text("req-7")
        server.script.refuse = None
        card.get_by_role("button", name="Try again").click()
        expect(answer(page)).to_contain_text(ANSWER)
        expect(page.get_by_role("alert")).to_have_count(0)

    def test_error_within_the_stream_keeps_the_text(self, page, server):
        server.script.stream_error = {"message": "The engine stopped.", "type": "server_error"}
        ask(page)
        expect(page.get_by_role("alert")).to_contain_text("The engine stopped.")
        expect(answer(page)).to_contain_text(ANSWER)

    def test_message_waits_for_an_engine_that_is_loading(self, page, server):
        server.wait_for_stream()
        server.set_engine(state="loading", stage="experts", done=12, total=160)
        expect(page.get_by_role("banner")).to_contain_text("loading: experts 7 %")
        ask(page)
        expect(answer(page)).to_contain_text("Waiting for the engine: loading: experts 7 %")
        assert "/v1/chat/completions" not in server.paths()
        server.set_engine(state="ready", stage=None)
        expect(answer(page)).to_contain_text(ANSWER)

    def test_failed_engine_says_why_and_what_helps(self, page, server):
        server.wait_for_stream()
        server.set_engine(state="failed", reason="No such file: x.", hint="Convert it first.")
        notice = page.get_by_role("alert")
        expect(notice).to_contain_text("No such file: x.")
        expect(notice).to_contain_text("Convert it first.")
        server.set_engine(state="ready")
        expect(notice).to_have_count(0)

    def test_words_of_the_server_become_sentences_with_code(self, page, server):
        server.wait_for_stream()
        server.set_engine(
            state="failed", reason="the weights are incomplete", hint="run `colibri doctor x`"
        )
        notice = page.get_by_role("alert")
        expect(notice).to_contain_text("The engine failed. The weights are incomplete")
        expect(notice).to_contain_text("Run colibri doctor x")
        expect(notice.locator("code")).to_have_text("colibri doctor x")
        server.set_engine(state="ready")
        server.script.refuse = (503, {"message": "no slot is free", "hint": "see `--slots`"})
        ask(page)
        card = page.get_by_role("alert")
        expect(card).to_contain_text("No slot is free")
        expect(card.locator("code")).to_have_text("--slots")

    def test_key_is_asked_for_only_after_a_401_and_never_stored(self, open_page, server):
        server.api_key = "s3cret"
        page = open_page()
        page.get_by_label("API key").fill("s3cret")
        page.get_by_role("button", name="Use key").click()
        expect(page.get_by_label("API key")).to_have_count(0)
        expect(page.get_by_role("banner")).to_contain_text("ready")
        ask(page)
        finished(page)
        kept = page.evaluate(
            "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
        )
        assert "s3cret" not in kept
        page.reload()
        expect(page.get_by_label("API key")).to_be_visible()


HOSTILE = """<script>window.hit = 1</script>

<img src="https://evil.invalid/a.png" onerror="window.hit = 2">

![beacon](https://evil.invalid/beacon.png) <svg onload="window.hit = 3"></svg>

[press](javascript:window.hit=4) [data](data:text/html,<script>1</script>) https://evil.invalid/auto

<iframe src="https://evil.invalid"></iframe><style>body{display:none}</style>"""


class TestSafety:
    def test_hostile_output_stays_inert(self, page, server):
        server.script.text = HOSTILE
        page.evaluate(
            "document.addEventListener('securitypolicyviolation', () => { window.violated = true })"
        )
        ask(page)
        finished(page)
        md = answer(page).locator(".md")
        expect(md).to_contain_text("<script>window.hit = 1</script>")
        assert md.locator("script, img, svg, iframe, style").count() == 0
        hrefs = md.locator("a").evaluate_all("links => links.map(link => link.href)")
        assert hrefs == ["https://evil.invalid/auto"]
        assert md.locator("a").get_attribute("rel") == "noopener noreferrer"
        assert page.evaluate("[window.hit, window.violated]") == [None, None]

    def test_hostile_names_from_the_server_stay_text(self, open_page, server):
        server.engine = {"model": "<img src=x onerror='window.hit = 1'>"}
        page = open_page()
        expect(page.get_by_role("heading", name="<img src=x")).to_be_visible()
        assert page.evaluate("window.hit") is None

    def test_whole_session_stays_on_the_origin_and_within_the_policy(self, open_page, server):
        # `open_page` fails the test on any foreign request and on any script error.
        page = open_page()
        violations: list[str] = []
        page.on("console", lambda message: violations.append(message.text))
        ask(page)
        finished(page)
        page.get_by_role("link", name="Brain", exact=True).click()
        expect(page.get_by_role("img", name="Expert map")).to_be_visible()
        page.reload()
        expect(page.get_by_role("img", name="Expert map")).to_be_visible()
        assert [text for text in violations if "Content Security Policy" in text] == []


class TestConnection:
    def test_stream_is_resumed_by_id_after_a_cut(self, open_page, server):
        page = open_page("/brain")
        server.wait_for_stream()
        server.push("turn", {"tokens_per_second": 11.0})
        expect(page.get_by_role("banner")).to_contain_text("11.0 tok/s")
        server.cut_event_streams()
        server.wait_for_stream(there=False)
        server.push("turn", {"tokens_per_second": 22.0})
        expect(page.get_by_role("banner")).to_contain_text("22.0 tok/s")
        resumed = [r for r in server.requests if r["path"] == "/api/events"][-1]
        assert resumed["headers"]["Last-Event-ID"] == "1"
        assert server.paths().count("/experts") >= 2

    def test_sleeps_when_hidden_and_wakes(self, open_page, server):
        page = open_page()
        page.clock.install()
        page.reload()
        server.wait_for_stream()
        page.evaluate(
            "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        page.clock.fast_forward(31_000)
        expect(page.get_by_role("banner")).to_contain_text("paused")
        page.evaluate(
            "Object.defineProperty(document, 'hidden', { value: false, configurable: true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        expect(page.get_by_role("banner")).to_contain_text("ready")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 360])
def test_nothing_overflows(open_page, server, scheme, width):
    server.cells = lively_map(server.rows, server.cols)
    page = open_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    server.script.text = (
        "A long word: "
        + "x" * 400
        + "\n\n```\n"
        + "y" * 400
        + "\n```\n\n| a | b |\n|-|-|\n| 1 | 2 |"
    )
    ask(page, "A question so long that it cannot be a title in one line on any phone. " * 2)
    finished(page)
    for view in ("Chat", "Brain"):
        page.get_by_role("link", name=view, exact=True).click()
        expect(page.get_by_role("link", name=view, exact=True)).to_have_attribute(
            "aria-current", "page"
        )
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelector('main').scrollWidth") <= width
