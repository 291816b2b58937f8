"""Plots about an object: lost, shared, wished for, broken."""

from __future__ import annotations

from .plot import Plot, Question

OBJECT_PLOTS = {
    "lost": Plot(
        flags="ok",
        topics=["a lost {o}", "losing something"],
        text=(
            "{H} had a {obj}. [It was {his} favorite thing.|{H} took it everywhere.|It was a "
            "gift from {A}.] But one {weather} [morning|afternoon|evening], the {obj} was "
            'gone. [{H} was very sad.|{H} began to cry.] "Where is my {o}?" asked {H}. {H} '
            'looked {wrong}. It was not there. "I will help you look," said {F}. [They looked '
            "high and low.|They searched the whole day.|They looked in every corner.] At last, "
            '{H} looked {hide}. There was the {obj}! "[Hooray|We found it|Here it is]!" '
            "[cried|shouted|said] {H}."
        ),
        ending="{H} hugged the {o} and thanked {F}.",
        questions=[
            Question("What did {H} lose?", "{H} lost a {obj}.", "o"),
            Question("Where was the {o}?", "The {o} was {hide}.", "hide"),
            Question("Who helped {H}?", "{F} helped {H}.", "F"),
        ],
    ),
    "share": Plot(
        flags="ok",
        topics=["sharing", "a {o} to share"],
        text=(
            '{H} had a new {obj}. "May I have a turn with it?" asked {F}. "No, the {o} is '
            'mine," said {H}. {F} [walked away|sat down alone] and was sad. {H} played with '
            "the {o}, but [it was not fun|it was boring] alone. {A} saw this and said, "
            '"[Sharing makes two people happy.|It is nice to share.|A game is better with a '
            'friend.]" {H} [thought about it|nodded]. {H} went to {F} and said, "I am sorry. '
            'You can have a turn." {F} [smiled|was glad].'
        ),
        ending="{H} and {F} played with the {obj} until [dinner|the sun went down].",
        questions=[
            Question("What did {F} want?", "{F} wanted a turn with the {o}.", "o"),
            Question("Who told {H} about sharing?", "{A} told {H} about sharing.", "A"),
            Question("Who was sad?", "{F} was sad.", "F"),
        ],
    ),
    "gift": Plot(
        flags="ok",
        topics=["a gift", "a birthday gift"],
        text=(
            "It was {F}'s birthday on {day}. {H} wanted to give {F} a [special|lovely|nice] "
            "gift. {H} [counted {his} coins and|took some money and] went to the market. {H} "
            'saw a {obj} in a shop window. "That is the right gift!" said {H}. {H} '
            "[bought|paid for] the {o} and put it in a [small|pretty|paper] box with a {col2} "
            'ribbon. Then {H} ran to {F}. "Happy birthday!" said {H}. {F} opened the box and '
            'saw the {obj}. "[I love it|It is beautiful|What a surprise]!" said {F}.'
        ),
        ending="{H} was happy because {F} loved the {o}.",
        questions=[
            Question("What did {H} buy?", "{H} bought a {obj}.", "o"),
            Question("Who had a birthday?", "{F} had a birthday.", "F"),
            Question("What color was the ribbon?", "The ribbon was {col2}.", "col2"),
            Question("When was the birthday?", "It was on {day}.", "day"),
        ],
    ),
    "found": Plot(
        flags="o",
        topics=["finding a {o}", "giving something back"],
        text=(
            "One {weather} day, {H} walked to {place}. {H} saw something {hide}. It was a "
            '{obj}! {H} picked it up. "[Whose {o} is this|Who lost this {o}]?" {he} asked. {H} '
            "wanted to keep the {o}, but {he} knew it was not {his}. Then {H} met {F}, {fk}. "
            '{F} was [crying|looking sad]. "I lost my {o}," said {F}. {H} held out the {obj}. '
            '"Is this your {o}?" asked {H}. "Yes! Thank you, {H}!" said {F}.'
        ),
        ending="{H} felt [proud|good|warm] inside, and {F} became {his} friend.",
        questions=[
            Question("What did {H} find?", "{H} found a {obj}.", "o"),
            Question("Where was the {o}?", "The {o} was {hide}.", "hide"),
            Question("Whose {o} was it?", "It was {F}'s {o}.", "F"),
            Question("Where did {H} walk?", "{H} walked to {place}.", "place"),
        ],
    ),
    "wish": Plot(
        flags="o",
        topics=["a wish", "a falling star"],
        text=(
            'One night, {H} [saw a falling star|looked up at the stars]. "I wish for a {obj}," '
            "said {H}. In the morning, there was a box by the door. Inside was a {obj}! {H} "
            "[danced with joy|jumped with joy]. Then {H} met {F}, {fk}. {F} looked "
            '[sad|lonely]. "I have nothing to play with," said {F}. {H} looked at the {o} and '
            'thought for a moment. "We can play with my {o} together," said {H}. {F} began to '
            "[smile|laugh]."
        ),
        ending="That night, {H} looked up and thanked the star.",
        questions=[
            Question("What did {H} wish for?", "{H} wished for a {obj}.", "o"),
            Question("Who was sad?", "{F} was sad.", "F"),
            Question("Where was the box?", "The box was by the door.", None),
        ],
    ),
    "tree": Plot(
        flags="ok",
        topics=["a {o} in a tree", "something stuck in a tree"],
        text=(
            "{H} and {F} were playing in {inplace}. {H} threw {his} {obj} up into the air. [Oh "
            "no!|Oops!] The {o} was stuck in [a tall|an old] {tree}. {H} jumped, but {he} "
            'could not reach it. {F} shook the {tree}, but the {o} did not fall. "[I have an '
            'idea|Let us ask for help]," said {H}. {H} called {A}. {A} came with a [long '
            'ladder|long stick] and got the {obj} down. "Thank you, {A}!" said {H}.'
        ),
        ending="After that, {H} was more careful with the {o}.",
        questions=[
            Question("Where was the {o} stuck?", "The {o} was stuck in the {tree}.", "tree"),
            Question("Who got the {o} down?", "{A} got the {o} down.", "A"),
            Question("Where did they play?", "They played in {inplace}.", "inplace"),
        ],
    ),
    "wind": Plot(
        flags="o",
        topics=["the wind", "a windy day"],
        text=(
            "It was a windy day in {month}. {H} went outside with {his} {obj}. Whoosh! The "
            'wind [took|grabbed|carried] the {o} away. "Come back!" cried {H}. {H} ran after '
            "the {o}, over the [bridge|hill] and past the [mill|church|school]. The {o} fell "
            'down near {F}, {fk}. {F} picked it up. "Is this {obj} yours?" asked {F}. "Yes, it '
            'is mine," said {H}. "Thank you for catching it."'
        ),
        ending="{H} held the {o} tight all the way home.",
        questions=[
            Question("What did the wind take?", "The wind took the {obj}.", "o"),
            Question("Who picked up the {o}?", "{F} picked up the {o}.", "F"),
            Question("What month was it?", "It was {month}.", "month"),
        ],
    ),
    "broken": Plot(
        flags="o",
        topics=["telling the truth", "a broken {o}"],
        text=(
            "{A} had a {obj}. One {weather} day, {H} played with it inside. [Crash!|Oh "
            "no!|Crack!] {H} broke the {o}. {H} was afraid, so {he} hid the {o} {hide}. Soon "
            '{A} came in. "Where is my {o}?" asked {A}. {H} said nothing. But {H} felt bad and '
            'could not [eat|sleep|smile]. At last {H} went to {A}. "I broke your {o}. I am '
            'sorry," said {H}. {A} was not angry. "Thank you for telling the truth," said {A}.'
        ),
        ending="{H} and {A} fixed the {obj} together.",
        questions=[
            Question("What did {H} break?", "{H} broke the {obj}.", "o"),
            Question("Where did {H} hide the {o}?", "{H} hid the {o} {hide}.", "hide"),
            Question("Whose {o} was it?", "It was {A}'s {o}.", "A"),
            Question("Was {A} angry?", "No, {A} was not angry.", None),
        ],
    ),
    "river": Plot(
        flags="ok",
        topics=["a {o} in the river", "the river"],
        text=(
            "{H} sat by the river with {his} {obj}. [Splash!|Plop!] The {o} fell into the "
            'water. It floated away [fast|quickly]. "My {o}!" cried {H}. {H} ran along the '
            "bank, but the river was too fast. {F} saw the {o} and took a long branch. {F} "
            '[caught|stopped] the {o} and pulled it to the shore. "Here is your {o}, {H}," '
            "said {F}. The {obj} was wet, but it was safe. {H} put it in the sun to dry."
        ),
        ending="{H} thanked {F}, and they walked home with the {o}.",
        questions=[
            Question("What fell into the river?", "The {obj} fell into the river.", "o"),
            Question("Who caught the {o}?", "{F} caught the {o}.", "F"),
            Question("Where did {H} sit?", "{H} sat by the river.", None),
        ],
    ),
    "treasure": Plot(
        flags="ok",
        topics=["a treasure map", "a treasure"],
        text=(
            '{H} found an old map {hide}. "Look, {F}! It is a treasure map!" said {H}. {H} and '
            "{F} [packed a bag|took a lamp] and went to {place}. They counted {num} steps from "
            "the [old oak|big rock|stone well]. Then {H} began to dig. Clunk! There was a "
            "wooden box in the ground. {H} opened the lid slowly. Inside the box was a {obj}. "
            '"[What a treasure|How wonderful|It is so pretty]!" said {F}.'
        ),
        ending="{H} and {F} kept the {obj} and took turns with it.",
        questions=[
            Question("Where was the map?", "The map was {hide}.", "hide"),
            Question("What was in the box?", "A {obj} was in the box.", "o"),
            Question("How many steps did they count?", "They counted {num} steps.", "num"),
            Question("Where did they go?", "They went to {place}.", "place"),
        ],
    ),
    "trade": Plot(
        flags="ok",
        topics=["a trade", "trading a {o}"],
        text=(
            '{H} had a {obj}, and {F} had a {col2} kite. {H} liked the kite very much. "Can we '
            'trade?" asked {H}. "Yes, we can trade," said {F}. So {H} took the kite, and {F} '
            "took the {o}. {H} was happy [at first|for an hour]. But [at night|soon] {H} "
            'missed the {obj}. {H} could not sleep. The next day, {H} went to {F}. "I miss my '
            '{o}," said {H}. "And I miss my kite," said {F}. They [laughed|giggled] and traded '
            "back."
        ),
        ending="{H} was glad to have the {obj} again.",
        questions=[
            Question("What did {H} trade?", "{H} traded a {obj}.", "o"),
            Question("Who had a kite?", "{F} had a kite.", "F"),
            Question("What color was the kite?", "The kite was {col2}.", "col2"),
        ],
    ),
    "make": Plot(
        flags="o",
        topics=["making a {o}", "a homemade {o}"],
        text=(
            '{H} wanted a {obj}, but {he} had no money. "You can make one," said {A}. {A} gave '
            "{H} some [paper, glue and string|wood, nails and paint|cloth, wire and thread]. "
            "{H} worked all morning at the table. {H} cut and [glued|tied|bent] the parts with "
            "care. The first try was [crooked|too small|a mess]. {H} did not give up. {H} "
            "tried again and painted it {col}. Now {H} had a {obj}! {F}, {fk}, came to see it. "
            '"[You are so clever|What a fine {o}|Please teach me]!" said {F}.'
        ),
        ending="{H} was proud, because {he} made the {o} {him}self.",
        questions=[
            Question("What did {H} make?", "{H} made a {obj}.", "o"),
            Question("Who helped {H} start?", "{A} helped {H} start.", "A"),
            Question("Who came to see the {o}?", "{F} came to see the {o}.", "F"),
        ],
    ),
    "bag": Plot(
        flags="o",
        topics=["a visit to {A}", "packing a bag"],
        text=(
            "{H} went to visit {A} on {day}. {H} put a {obj} in {his} bag to show it to {A}. "
            "The road was long. {H} walked past [a mill and a church|a pond and a barn|a shop "
            'and a school]. On the way, {H} met {F}, {fk}. "What is in your bag?" asked {F}. '
            '"It is my {obj}," said {H}. {H} showed the {o} to {F} and then walked on. {A} was '
            'waiting at the gate. "What a pretty {o}!" said {A}. {A} gave {H} some {gift} to '
            "eat."
        ),
        ending="{H} told {A} about the road and fell asleep with the {o}.",
        questions=[
            Question("What was in the bag?", "A {obj} was in the bag.", "o"),
            Question("Who did {H} visit?", "{H} visited {A}.", "A"),
            Question("Who did {H} meet on the way?", "{H} met {F}.", "F"),
            Question("What did {A} give {H}?", "{A} gave {H} some {gift}.", "gift"),
        ],
    ),
    "magic": Plot(
        flags="ok",
        topics=["magic", "a magic {o}"],
        text=(
            "{H} found a {obj} {hide}. It was [not like others|shining a little|warm to "
            'touch]. When {H} held the {o}, it began to [glow|sparkle|hum]. "It is magic!" '
            'said {H}. {H} showed the {o} to {F}. "What will you ask for?" asked {F}. {H} '
            "thought about [gold and jewels|a castle|candy and toys]. But then {H} saw that "
            'the [flowers|crops|trees] were dry. "Please bring rain," said {H} to the {o}. '
            "[Soon|In a moment] it began to rain, and everything was green again."
        ),
        ending="{H} put the magic {o} back and smiled.",
        questions=[
            Question("Where was the magic {o}?", "The {o} was {hide}.", "hide"),
            Question("What did {H} ask for?", "{H} asked for rain.", None),
            Question("Who saw the {o}?", "{F} saw the {o}.", "F"),
        ],
    ),
}
