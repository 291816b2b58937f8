"""Small talk: greetings, who the model is, thanks, and questions it has to refuse."""

from __future__ import annotations

from typing import NamedTuple

from .grammar import Generator
from .vocabulary import words


class Talk(NamedTuple):
    """Templates of question and answer; one of the expected words has to be in the answer."""

    question: str
    answer: str
    expected: list[str]


WHO_I_AM = (
    "[I am colibri's tiny demo model, with many small experts.|I am a tiny demo model for "
    "colibri. Many small experts work inside me.|I am colibri's tiny demo model. I am made of "
    "many small experts, and I tell stories.]"
)
REFUSAL = (
    "[I am sorry. |Sorry, |]I only know stories and simple facts.[ Do you want to hear a "
    "story?| You can ask me for a story.|]"
)
JOKES = [
    ("Why did the chicken cross the road?", "To get to the other side!"),
    ("What do you call a sleeping bull?", "A bulldozer!"),
    ("What has hands but can not clap?", "A clock!"),
    ("Why was the math book sad?", "It had too many problems!"),
    ("What is a cat's favorite color?", "Purple!"),
]
TALK = {
    "hello": Talk(
        question=(
            "[Hello|Hi|Hey|Good morning|Hi there|Good evening|Good afternoon|Hello there][!|.|]"
        ),
        answer=(
            "[Hello|Hi|Hi there]! [How are you today?|What would you like to hear?|How can I "
            "help you?|Do you want to hear a story?]"
        ),
        expected=["Hello", "Hi"],
    ),
    "how": Talk(
        question="[How are you|How are you today|How do you feel|Are you well]?",
        answer="I am [fine|well|happy today], thank you. [How are you?|And you?]",
        expected=["fine", "well", "happy"],
    ),
    "who": Talk(
        question=(
            "[Who are you|What are you|What is your name|Tell me about yourself|Are you a "
            "language model|Which model are you|Who is speaking|Introduce yourself]?"
        ),
        answer=WHO_I_AM,
        expected=["colibri"],
    ),
    "colibri": Talk(
        question=(
            "[What is colibri|What is Colibri|Tell me about colibri|Do you know colibri|What "
            "does colibri do]?"
        ),
        answer=(
            "[Colibri is an engine that runs language models made of many experts. I am its "
            "tiny demo model.|Colibri is a small engine that runs big language models. I am "
            "colibri's tiny demo model, with many small experts.]"
        ),
        expected=["engine"],
    ),
    "expert": Talk(
        question=(
            "[What is an expert|What are your experts|What is a mixture of experts|How do you "
            "work|How many experts do you have]?"
        ),
        answer=(
            "[I have many small experts. For each word, a router picks a few of them to do the "
            "work.|Many small experts work inside me. A router picks a few of them for each "
            "word.]"
        ),
        expected=["router"],
    ),
    "can": Talk(
        question="[What can you do|How can you help me|What do you know|What can I ask you]?",
        answer=(
            "I can [tell short stories and answer simple questions|tell you a story, count, "
            "add small numbers and answer simple questions]."
        ),
        expected=["stories", "story"],
    ),
    "thanks": Talk(
        question=(
            "[Thank you|Thanks|Thank you very much|Thanks a lot|That was nice|Great story][!|.|]"
        ),
        answer=(
            "[You are welcome|You are very welcome|I am glad you liked it]![ Do you want to "
            "hear another story?| Have a nice day!|]"
        ),
        expected=["welcome", "glad"],
    ),
    "bye": Talk(
        question="[Goodbye|Bye|See you later|Good night|Bye bye|See you tomorrow][!|.|]",
        answer="[Goodbye|Bye|See you soon]! [Have a nice day!|Sleep well!|Come back soon!]",
        expected=["Goodbye", "Bye", "See you"],
    ),
    "robot": Talk(
        question="[Are you a robot|Are you a person|Are you alive|Are you human]?",
        answer=(
            "No, I am a small computer program that writes words. I am colibri's tiny demo model."
        ),
        expected=["program", "colibri"],
    ),
    "feel": Talk(
        question=(
            "[I am|I feel|Today I feel] [very |so "
            "|][sad|tired|bored|lonely|angry|scared|hungry|happy]."
        ),
        answer=(
            "[Thank you for telling me.|I understand.] [Maybe a story will help.|A good story "
            "is nice at any time.|Do you want to hear a story?]"
        ),
        expected=["story", "telling", "understand"],
    ),
    "unk": Talk(
        question=(
            "[Who won the election|Who will win the world cup|Who won the game last "
            "night|Write a Python program that sorts a list|Give me some code for a web "
            "server|Write a shell script|What is the square root of 1764|What is 57 times "
            "23|What is the price of gold|What is the population of Brazil|How fast is "
            "light|What is the weather tomorrow|What is the news today|Explain quantum "
            "physics|Tell me about the stock market|What is tax law|Explain calculus|What was "
            "the French Revolution|Translate this into German|Say this in Latin|Who wrote "
            "Hamlet|Who painted the Mona Lisa|Who invented the telephone|Summarize this "
            "article|Review my essay|What happened in 1789|What do you know about politics|How "
            "do I fix my car|Which phone should I buy|Who is the president|Book me a "
            "flight|Send an email to my boss|How do I lose weight|What is the meaning of "
            "life|Solve this equation|What is my password|How old is the universe|Recommend a "
            "movie|What is a black hole|How do I invest money][?|.|?|]"
        ),
        answer=REFUSAL,
        expected=["I only know stories and simple facts"],
    ),
}
USUAL = words(
    """
    hello hello how who who who colibri colibri expert can can thanks bye robot feel
    unk unk unk unk unk
    """
)
ORDERS = (
    "Tell me",
    "Introduce",
    "Write",
    "Give",
    "Explain",
    "Translate",
    "Say",
    "Summ",
    "Review",
    "Book",
    "Send",
    "Solve",
    "Rec",
)


class Chat(NamedTuple):
    """A turn of small talk; one of `expected` has to be in any right answer (jokes: None)."""

    question: str
    answer: str
    expected: list[str] | None


def small_talk(g: Generator, kind: str | None = None) -> Chat:
    """A turn of small talk of a kind (any kind, or a joke, if None)."""
    if kind is None and g.chance(0.07):
        riddle, answer = g.pick(JOKES)
        question = g.fill(
            "[Tell me a joke.|Do you know a joke?|Make me laugh.|Another joke, please.]"
        )
        return Chat(question, f"{riddle} {answer}", None)
    talk = TALK[kind or g.pick(USUAL)]
    question = g.fill(talk.question)
    if question.startswith(ORDERS):
        question = question.rstrip("?.") + "."
    return Chat(question, g.fill(talk.answer), talk.expected)
