"""Plots about a friend or a feeling: fear, rescue, a race, school."""

from __future__ import annotations

from .plot import Plot, Question

FRIEND_PLOTS = {
    "fear": Plot(
        flags="",
        topics=["being brave", "being afraid of {fear}"],
        text=(
            "{H} was afraid of {fear}. [It made {his} heart beat fast.|It made {him} want to "
            'hide.] One evening, {H} told {A} about it. "I am afraid of {fear}," said {H}. {A} '
            'sat down next to {H}. "[Everyone is afraid sometimes|I was afraid of that too|You '
            'are braver than you think]," said {A}. "[Take a deep breath|Let us take one small '
            'step|I will be with you]." {H} took a deep breath and counted to {num}. [Nothing '
            'bad happened.|It was not so bad.] "I did it!" said {H}.'
        ),
        ending="From that day on, {H} was not afraid of {fear}.",
        questions=[
            Question("What was {H} afraid of?", "{H} was afraid of {fear}.", "fear"),
            Question("Who helped {H}?", "{A} helped {H}.", "A"),
            Question("What did {H} count to?", "{H} counted to {num}.", "num"),
        ],
    ),
    "rescue": Plot(
        flags="k",
        topics=["helping a friend", "a rescue"],
        text=(
            "One {weather} day, {H} walked near {place}. {H} heard a [sad|small|strange] "
            'sound. "Help! Please help me!" It was {F}. {F} was stuck [in a deep hole|in the '
            'mud|between two rocks|in a thorny bush]. "Do not be afraid. I will help you," '
            "said {H}. {H} pulled and pulled, but {H} was not strong enough. So {H} ran to get "
            "{helper}. They came back with a [long rope|strong stick]. One, two, three, pull! "
            "At last {F} was free."
        ),
        ending="{F} thanked {H} and gave {him} a big hug.",
        questions=[
            Question("Who was stuck?", "{F} was stuck.", "F"),
            Question("Who came to help?", "{H} got help from {helper}.", "helper"),
            Question("Where did {H} walk?", "{H} walked near {place}.", "place"),
        ],
    ),
    "seed": Plot(
        flags="k",
        topics=["planting a seed", "a garden", "a {seed} seed"],
        text=(
            '{A} gave {H} a {seed} seed. "Plant it and be patient," said {A}. {H} dug a hole '
            "in the garden and put the seed in the soft earth. {H} gave it water every "
            "[day|morning]. At first, [nothing grew|there was nothing to see]. {H} was "
            'worried. "Maybe the seed is sleeping," said {F}. {H} waited {num} days. Then a '
            'tiny green leaf came up. "It is growing!" said {H}. The plant grew taller and '
            "taller in the {season} sun."
        ),
        ending="{H} showed the plant to {F}, and they were both glad.",
        questions=[
            Question("What did {H} plant?", "{H} planted a {seed} seed.", "seed"),
            Question("Who gave {H} the seed?", "{A} gave {H} the seed.", "A"),
            Question("How long did {H} wait?", "{H} waited {num} days.", "num"),
        ],
    ),
    "bake": Plot(
        flags="k",
        topics=["baking", "cooking", "{food}"],
        text=(
            '{H} wanted to make {food} for {F}. [It was a surprise.|It was for a party.] "Can '
            'you help me, {A}?" asked {H}. "Of course," said {A}. They put [flour, eggs and '
            "milk|butter, sugar and eggs|salt, milk and flour] in a big {col} bowl. {H} "
            "stirred and stirred. [Oh no! {H} dropped an egg on the floor.|There was flour on "
            "{H}'s nose.] {A} laughed and helped {H} clean up. [Soon|After an hour] the "
            'kitchen smelled [good|sweet|wonderful]. {H} took the food to {F}. "[It is '
            'delicious|Yum|This is the best]!" said {F}.'
        ),
        ending="{H} and {F} ate every bit of it.",
        questions=[
            Question("What did {H} make?", "{H} made {food}.", "food"),
            Question("Who was it for?", "It was for {F}.", "F"),
            Question("What color was the bowl?", "The bowl was {col}.", "col"),
            Question("Who helped {H}?", "{A} helped {H}.", "A"),
        ],
    ),
    "storm": Plot(
        flags="k",
        topics=["a storm", "a rainy day"],
        text=(
            "{H} was near {place} when the sky grew dark. The wind blew hard, and big drops of "
            'rain fell. "A storm is coming!" said {H}. {H} saw {F} under [a tree|a bush|a '
            'bench]. {F} was wet and cold. "Come home with me," said {H}. They ran through the '
            "rain. Inside it was warm and dry. {H} gave {F} a {col} blanket and some {gift}. "
            "[Boom!|Crash!] The thunder was loud, but {H} and {F} were safe."
        ),
        ending="After the storm, {H} and {F} saw a bright rainbow.",
        questions=[
            Question("Who was wet and cold?", "{F} was wet and cold.", "F"),
            Question("What color was the blanket?", "The blanket was {col}.", "col"),
            Question("What did they see after the storm?", "They saw a rainbow.", None),
            Question("Where was {H} when the storm came?", "{H} was near {place}.", "place"),
        ],
    ),
    "race": Plot(
        flags="k",
        topics=["a race", "running"],
        text=(
            "On {day}, there was a big race at {place}. {H} wanted to win. {F} was in the race "
            'too. "Ready, set, go!" called {A}. {F} ran ahead, and {H} ran as fast as {he} '
            "could. Then {F} fell down and hurt [a foot|a leg|a knee]. {H} could go on and "
            'win, but {H} stopped. "Are you all right?" asked {H}. {H} helped {F} get up. They '
            "walked to the end side by side. Everyone [clapped|cheered]."
        ),
        ending="{H} and {F} both won the race.",
        questions=[
            Question("Who fell down?", "{F} fell down.", "F"),
            Question("Where was the race?", "The race was at {place}.", "place"),
            Question("When was the race?", "The race was on {day}.", "day"),
            Question("Who won?", "{H} and {F} both won.", "H"),
        ],
    ),
    "build": Plot(
        flags="k",
        topics=["building {build}", "working together"],
        text=(
            '{H} wanted to build {build}. {H} worked all morning, but it fell down. "This is '
            'too hard," said {H}. {H} sat down and sighed. {F} came to look. "Two are better '
            'than one," said {F}. "Let us try together." {H} held the parts, and {F} tied them '
            "with a {col} string. They [worked slowly|took their time|sang as they worked]. By "
            'evening, it was done. It was strong and just right. "We did it!" said {H}.'
        ),
        ending="{H} and {F} sat next to it and were proud.",
        questions=[
            Question("What did {H} build?", "{H} built {build}.", "build"),
            Question("Who helped {H}?", "{F} helped {H}.", "F"),
            Question("What color was the string?", "The string was {col}.", "col"),
        ],
    ),
    "newfriend": Plot(
        flags="",
        topics=["making a new friend", "a new friend"],
        text=(
            "{H} felt lonely. {H} had no one to play with. One {weather} day, {H} went to "
            "{place}. There {H} saw {F}, {fk}. {F} stood alone by [a tree|a fence|the gate]. "
            '{H} walked up slowly. "Hello! My name is {H}," said {H}. "What is your name?" "I '
            'am {F}," said {F}. "I am new here." "Do you want to play {game}?" asked {H}. {F} '
            "nodded and smiled. They played {game} [all day|until dark]."
        ),
        ending="Now {H} had a friend and was not lonely anymore.",
        questions=[
            Question("Who was new?", "{F} was new.", "F"),
            Question("What did they play?", "They played {game}.", "game"),
            Question("Where did {H} go?", "{H} went to {place}.", "place"),
            Question("How did {H} feel at first?", "{H} felt lonely.", None),
        ],
    ),
    "sick": Plot(
        flags="k",
        topics=["a sick friend", "being ill"],
        text=(
            'On {day}, {F} did not come out to play. "Where is {F}?" asked {H}. "{F} is sick '
            'in bed," said {A}. {H} was worried. {H} picked {num} {col} flowers and put some '
            "{gift} in a basket. Then {H} went to see {F}. {F} had a [cold|sore throat|fever] "
            'and felt [weak|tired]. "I brought you flowers," said {H}. {H} read {F} a '
            "[long|funny] story. {F} laughed and felt a little better. [The doctor came and "
            'said, "Rest and drink water."|]'
        ),
        ending="{H} visited every day, and soon {F} was well again.",
        questions=[
            Question("Who was sick?", "{F} was sick.", "F"),
            Question("What color were the flowers?", "The flowers were {col}.", "col"),
            Question("How many flowers did {H} pick?", "{H} picked {num} flowers.", "num"),
            Question("What was in the basket?", "Some {gift} was in the basket.", "gift"),
        ],
    ),
    "school": Plot(
        flags="",
        topics=["the first day of school", "school"],
        text=(
            "It was {H}'s first day of school. {H} had a new {col} bag. {H} was nervous and "
            'held {A}\'s hand. "Will I make a friend?" asked {H}. "I am sure you will," '
            "said {A}. In the classroom, {H} sat down next to {F}, {fk}. {F} had no pencil. "
            '{H} opened the {col} bag and gave {F} a pencil. "Thank you," said {F}. The '
            "teacher taught them to [count|draw|spell|sing]. At lunch, {H} and {F} ate {num} "
            "{fruit} slices."
        ),
        ending='When {A} came back, {H} said, "I love school!"',
        questions=[
            Question("What color was the bag?", "The bag was {col}.", "col"),
            Question("Who had no pencil?", "{F} had no pencil.", "F"),
            Question("Who took {H} to school?", "{A} took {H} to school.", "A"),
        ],
    ),
    "snow": Plot(
        flags="k",
        topics=["snow", "a winter day"],
        text=(
            '{H} woke up and looked out. Everything was white with snow. "It is snowing!" '
            "cried {H}. {H} put on a {col} scarf and ran outside. {F} was there too. They "
            "rolled a big ball of snow, then a smaller one. {H} gave the snowman {num} stones "
            "for buttons and a carrot for a nose. {F} gave the snowman an old hat. Their "
            "[hands|ears|noses] were cold, but they did not mind. {A} called them in for some "
            "hot [soup|tea|cocoa]."
        ),
        ending="{H} waved good night to the snowman from the window.",
        questions=[
            Question("What did they make?", "They made a snowman.", None),
            Question("What color was the scarf?", "The scarf was {col}.", "col"),
            Question("What did {F} give the snowman?", "{F} gave the snowman an old hat.", None),
            Question("Who called them in?", "{A} called them in.", "A"),
        ],
    ),
    "picnic": Plot(
        flags="k",
        topics=["a picnic", "lunch in {inplace}"],
        text=(
            "It was a sunny day in {month}. {H} and {F} went to {inplace} for a picnic. {H} "
            "carried a {col} basket with {gift} and {num} {fruit} tarts. They sat on the "
            "grass. Then [a line of ants|a hungry bird|a cheeky squirrel] came to the basket. "
            '"[Oh dear|Look at that]!" said {F}. {H} did not get angry. {H} put some crumbs on '
            'a leaf. "There is enough for everyone," said {H}. They ate, talked and looked at '
            "the clouds."
        ),
        ending="{H} and {F} went home full and happy.",
        questions=[
            Question("Where was the picnic?", "The picnic was in {inplace}.", "inplace"),
            Question("What color was the basket?", "The basket was {col}.", "col"),
            Question("Who went with {H}?", "{F} went with {H}.", "F"),
        ],
    ),
}
