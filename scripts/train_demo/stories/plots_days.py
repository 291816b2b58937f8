"""Plots about a day out or at home: swimming, a boat, a farm, the circus."""

from __future__ import annotations

from .plot import Plot, Question

DAY_PLOTS = {
    "song": Plot(
        flags="k",
        topics=["a song", "music"],
        text=(
            "{H} loved to sing, but {H} was too shy to sing for others. One day, {F} heard {H} "
            'in {inplace}. "You sing so well!" said {F}. "Please sing at the {season} feast." '
            '{H} shook {his} head. "What if they laugh?" asked {H}. "I will stand next to '
            'you," said {F}. On {day}, {H} stood on the stage. {H} looked at {F} and began to '
            "sing. The song was [soft|clear|sweet] and lovely. Everyone listened. Nobody "
            "laughed."
        ),
        ending="Everyone clapped, and {H} bowed with a big smile.",
        questions=[
            Question("Who heard {H}?", "{F} heard {H}.", "F"),
            Question("What did {H} love?", "{H} loved to sing.", None),
            Question("When did {H} sing on the stage?", "{H} sang on {day}.", "day"),
        ],
    ),
    "paint": Plot(
        flags="k",
        topics=["painting", "a picture"],
        text=(
            "{H} wanted to paint a picture of {F}. {H} took a brush, some paper and {num} pots "
            "of paint. {F} sat very still on a chair. {H} painted the [ears|eyes|face] first. "
            'Then {H} ran out of {col} paint. "What can I do?" asked {H}. "Use {col2} paint," '
            "said {F}. So {H} painted {F} all in {col2}. When {F} saw the picture, {fhe} "
            'laughed [loudly|for a long time]. "It is funny, and I love it!" said {F}.'
        ),
        ending="{H} and {F} hung the picture on the wall.",
        questions=[
            Question("Who was in the picture?", "{F} was in the picture.", "F"),
            Question(
                "What color was {F} in the picture?", "{F} was {col2} in the picture.", "col2"
            ),
            Question("What paint ran out?", "The {col} paint ran out.", "col"),
        ],
    ),
    "wayhome": Plot(
        flags="",
        topics=["getting lost", "finding the way home"],
        text=(
            "{H} went for a walk in {inplace}. {H} followed a [pretty|blue|bright] butterfly "
            'and forgot the way home. It was getting dark. "I am lost," said {H}. {H} was '
            'scared, but {he} sat down and thought. Then {H} met {F}, {fk}. "What is wrong?" '
            'asked {F}. "I cannot find my home," said {H}. "I know the way," said {F}. {F} '
            "took a {col} lantern and walked in front. They passed {num} tall trees. Then {H} "
            "saw a light in the window."
        ),
        ending="{H} was home at last, and {A} gave {him} a big hug.",
        questions=[
            Question("Where did {H} walk?", "{H} walked in {inplace}.", "inplace"),
            Question("Who knew the way?", "{F} knew the way.", "F"),
            Question("What color was the lantern?", "The lantern was {col}.", "col"),
        ],
    ),
    "hideseek": Plot(
        flags="k",
        topics=["hide and seek", "a game"],
        text=(
            "{H} and {F} played hide and seek at {place}. {H} closed {his} eyes and counted to "
            '{num}. {F} ran away to hide. "Ready or not, here I come!" called {H}. {H} looked '
            "{wrongo}. {F} was not there. {H} looked and looked. Then {H} heard a "
            '[sneeze|giggle|tiny laugh]. {H} tiptoed closer. There was {F}, {hideo}! "I found '
            'you!" said {H}. "How did you find me?" asked {F}. "I heard you," said {H}.'
        ),
        ending="{H} and {F} laughed until their sides hurt.",
        questions=[
            Question("Where did {F} hide?", "{F} hid {hideo}.", "hideo"),
            Question("What did {H} count to?", "{H} counted to {num}.", "num"),
            Question("Where did they play?", "They played at {place}.", "place"),
        ],
    ),
    "learn": Plot(
        flags="k",
        topics=["learning to swim", "learning something new"],
        text=(
            "{H} could not swim. All the others swam in the lake, but {H} sat on the "
            '[sand|grass|dock]. "I will teach you," said {F}. First, {H} put one foot in the '
            "water. It was [cold|cool]! Then {H} kicked and splashed. {H} sank a little and "
            'coughed. "Try again," said {F}. {H} tried {num} times. On {day}, {H} swam to the '
            '{col} boat all alone. "Look at me!" cried {H}.'
        ),
        ending="{F} cheered, and {H} never sat alone on the shore again.",
        questions=[
            Question("Who taught {H}?", "{F} taught {H}.", "F"),
            Question("What color was the boat?", "The boat was {col}.", "col"),
            Question("How many times did {H} try?", "{H} tried {num} times.", "num"),
        ],
    ),
    "boat": Plot(
        flags="k",
        topics=["a boat trip", "the sea"],
        text=(
            "{H} and {F} had a small {col} boat. One {weather} morning, they sailed out on the "
            "sea. {H} held the [rope|oars|sail], and {F} looked ahead. They saw {num} dolphins "
            'jump over the waves. "Look, an island!" said {F}. On the island, {H} found [a '
            "spring of fresh water|a tree full of fruit|a beach of pink shells]. They rested "
            'in the shade. When the sun was low, {H} said, "It is time to go home." The wind '
            "was [kind|gentle], and the {col} boat was quick."
        ),
        ending="{H} and {F} were home before dark.",
        questions=[
            Question("What color was the boat?", "The boat was {col}.", "col"),
            Question("How many dolphins did they see?", "They saw {num} dolphins.", "num"),
            Question("Who was with {H}?", "{F} was with {H}.", "F"),
        ],
    ),
    "noise": Plot(
        flags="k",
        topics=["a strange noise", "a night noise"],
        text=(
            "At night, {H} heard a strange noise. [Tap, tap, tap!|Scratch, scratch!|Thump, "
            'thump!] "What is that?" asked {H}. {H} woke up {F}. They took a {col} lamp and '
            "went down the stairs on tiptoe. The noise came from {hide2}. {H} held the lamp "
            "high. [Was it a ghost?|Was it a thief?] No! It was only [an apple that rolled "
            "over the floor|a branch in the wind|an open window|an acorn on the roof]. {H} "
            'laughed. "We were scared of nothing," said {F}.'
        ),
        ending="{H} went back to bed and slept well.",
        questions=[
            Question("Who did {H} wake up?", "{H} woke up {F}.", "F"),
            Question("What color was the lamp?", "The lamp was {col}.", "col"),
            Question("When did {H} hear the noise?", "{H} heard the noise at night.", None),
        ],
    ),
    "clean": Plot(
        flags="",
        topics=["a messy room", "cleaning"],
        text=(
            "{H}'s room was a big mess. There were [toys|socks|books] on the floor and crumbs "
            'on the bed. "Please clean your room," said {A}. "It is too much work," said {H}. '
            '{H} [groaned|frowned]. Then {F}, {fk}, came to visit. "Let us make it a game," '
            "said {F}. They put [toys|blocks] in the {col} box and books on the shelf. {H} "
            "swept the floor and {F} made the bed. They were done in {num} minutes. Behind the "
            "bed, {H} found a lost {fruit} candy."
        ),
        ending="{A} was proud of {H} and gave them some {gift}.",
        questions=[
            Question("Who came to visit?", "{F} came to visit.", "F"),
            Question("What color was the box?", "The box was {col}.", "col"),
            Question("Who told {H} to clean?", "{A} told {H} to clean.", "A"),
        ],
    ),
    "letter": Plot(
        flags="k",
        topics=["a letter", "a friend far away"],
        text=(
            '{F} moved to a town far away. {H} missed {F} very much. "You can write a letter," '
            'said {A}. So {H} took a {col} pen and wrote, "Dear {F}, how are you? I miss you." '
            "{H} put a stamp on the letter and took it to the post office. {H} waited {num} "
            'days. Then the mailman came with a {col2} envelope. It was from {F}! "Dear {H}," '
            'it said, "I miss you too. I will come on {day}." {H} danced in the kitchen.'
        ),
        ending="On {day}, {F} came, and {H} hugged {fhim} for a long time.",
        questions=[
            Question("Who moved away?", "{F} moved away.", "F"),
            Question("What color was the pen?", "The pen was {col}.", "col"),
            Question("When did {F} come?", "{F} came on {day}.", "day"),
            Question("How long did {H} wait?", "{H} waited {num} days.", "num"),
        ],
    ),
    "farm": Plot(
        flags="k",
        topics=["a farm", "helping on a farm"],
        text=(
            "On {day}, {H} and {F} helped {A} on the farm. They got up early, before the sun. "
            "{H} fed the hens and found {num} eggs. {F} gave hay to the horses. Then {A} said, "
            '"The gate is open, and the goat is gone!" {H} saw small tracks in the mud. {H} '
            "followed the tracks to {place2}. There was the goat, eating {A}'s {col} "
            '[shirt|hat|apron]. "You silly goat!" said {H}. {H} led the goat home with a '
            "carrot."
        ),
        ending="{A} thanked {H} and {F}, and they all had {gift} for supper.",
        questions=[
            Question("What did {H} find?", "{H} found {num} eggs.", "num"),
            Question("Who was gone?", "The goat was gone.", None),
            Question("Where was the goat?", "The goat was at {place2}.", "place2"),
            Question("Who helped {A} with {H}?", "{F} helped {A} with {H}.", "F"),
        ],
    ),
    "show": Plot(
        flags="k",
        topics=["the circus", "a show"],
        text=(
            "The circus came to town in {month}. {H} and {F} bought two {col} tickets. In the "
            "tent, they saw a clown, a juggler and {num} acrobats. Then the clown pointed at "
            '{H}. "Will you help me?" asked the clown. {H} was shy, but {F} gave {him} a '
            "little push. {H} stood on the stage. The clown threw a pie, and {H} ducked. The "
            "pie hit the clown's own nose! Everyone roared with laughter. {H} bowed."
        ),
        ending="{H} and {F} talked about the clown all week.",
        questions=[
            Question("What color were the tickets?", "The tickets were {col}.", "col"),
            Question("Who went with {H}?", "{F} went with {H}.", "F"),
            Question("When did the circus come?", "The circus came in {month}.", "month"),
            Question("How many acrobats did they see?", "They saw {num} acrobats.", "num"),
        ],
    ),
}
