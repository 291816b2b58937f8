"""Words and phrases the stories are made of: names, animals, objects, places, feelings."""

from __future__ import annotations

from typing import NamedTuple


def words(text: str) -> list[str]:
    """A list of words written with spaces between."""
    return text.split()


def phrases(text: str) -> list[str]:
    """A list of phrases written with bars between."""
    return [" ".join(phrase.split()) for phrase in text.split("|")]


class Animal(NamedTuple):
    """Adjectives that suit an animal, and where it lives."""

    adjectives: list[str]
    home: str


# The pronoun follows from the name; a pet's name is True for "he".
GIRLS = words(
    """
    Lily Mia Anna Sara Emma Lucy Rosa Zoe Ella Ivy Ruby Amy Kate Jane Molly Daisy Tina Rose
    Grace Alice Hope Nina Sally Betty
    """
)
BOYS = words(
    """
    Tom Ben Sam Max Leo Jack Tim Finn Noah Oscar Paul Dan Peter Adam Luke Jim Nick Bill Fred
    George Henry Mark Joe Will
    """
)
PETS = {
    "Pip": True,
    "Coco": False,
    "Dot": False,
    "Rusty": True,
    "Buddy": True,
    "Honey": False,
    "Toby": True,
    "Penny": False,
    "Sunny": False,
    "Bobo": True,
    "Lulu": False,
    "Charlie": True,
}
NAMES = GIRLS + BOYS + list(PETS)
ADULTS = ["Mom", "Dad", "Grandma", "Grandpa"]


def is_male(name: str) -> bool:
    """Whether a child's or pet's name goes with "he"."""
    return name in BOYS or PETS.get(name, False)


FEMALE_NAMES = [name for name in NAMES if not is_male(name)]

ANIMALS = {
    "rabbit": Animal(words("white brown fluffy"), "a burrow under the hill"),
    "fox": Animal(words("red clever young"), "a den in the forest"),
    "bear": Animal(words("brown big sleepy"), "a warm cave"),
    "mouse": Animal(words("gray tiny shy"), "a hole under the barn"),
    "duck": Animal(words("yellow young cheerful"), "a nest by the pond"),
    "frog": Animal(words("green jumpy small"), "by a quiet pond"),
    "owl": Animal(words("wise old gray"), "a hollow tree"),
    "cat": Animal(words("black striped soft"), "a cozy basket"),
    "dog": Animal(words("spotted happy brown"), "a little red house"),
    "turtle": Animal(words("slow green patient"), "on a mossy bank by the river"),
    "squirrel": Animal(words("red quick busy"), "an old oak tree"),
    "hedgehog": Animal(words("small round shy"), "a pile of dry leaves"),
    "elephant": Animal(words("gray big gentle"), "on the grassy plain"),
    "monkey": Animal(words("funny brown noisy"), "a tall palm tree"),
    "lion": Animal(words("golden brave young"), "on a rocky hill"),
    "tiger": Animal(words("striped strong young"), "the deep jungle"),
    "penguin": Animal(words("tiny round brave"), "on the icy shore"),
    "bee": Animal(words("busy striped tiny"), "a golden hive"),
    "pig": Animal(words("pink round muddy"), "a warm barn"),
    "hen": Animal(words("white plump kind"), "a wooden hen house"),
    "goat": Animal(words("white stubborn young"), "on a green hill"),
    "horse": Animal(words("brown strong gentle"), "a big stable"),
    "cow": Animal(words("brown calm gentle"), "a wide field"),
    "sheep": Animal(words("white woolly soft"), "a grassy meadow"),
    "bird": Animal(words("blue little cheerful"), "a nest in the apple tree"),
    "hummingbird": Animal(words("green tiny shiny"), "a nest in the rose bush"),
    "snail": Animal(words("slow shiny little"), "a crack in the garden wall"),
    "crab": Animal(words("orange small funny"), "a hole in the sand"),
    "wolf": Animal(words("gray young quick"), "the dark pine forest"),
    "deer": Animal(words("brown graceful shy"), "at the edge of the forest"),
    "beaver": Animal(words("brown busy clever"), "a lodge of sticks"),
    "otter": Animal(words("playful brown sleek"), "a den by the stream"),
    "raccoon": Animal(words("gray curious funny"), "a hollow log"),
    "koala": Animal(words("gray sleepy soft"), "a tall gum tree"),
    "panda": Animal(words("round gentle hungry"), "a bamboo grove"),
    "kangaroo": Animal(words("brown jumpy strong"), "on the dry red plain"),
    "giraffe": Animal(words("tall yellow gentle"), "on the sunny plain"),
    "zebra": Animal(words("striped fast young"), "on the wide plain"),
    "camel": Animal(words("brown calm patient"), "in the sandy desert"),
    "parrot": Animal(words("green noisy bright"), "a jungle tree"),
    "swan": Animal(words("white proud graceful"), "by a still lake"),
    "goose": Animal(words("white loud funny"), "on a farm by the river"),
    "chick": Animal(words("yellow tiny fluffy"), "a hen house"),
    "kitten": Animal(words("gray playful soft"), "a box by the fire"),
    "puppy": Animal(words("brown playful happy"), "a basket in the kitchen"),
    "pony": Animal(words("brown gentle small"), "a little stable"),
    "donkey": Animal(words("gray stubborn patient"), "an old barn"),
    "mole": Animal(words("black shy quiet"), "a tunnel under the lawn"),
    "ant": Animal(words("black tiny strong"), "a busy ant hill"),
    "butterfly": Animal(words("orange bright graceful"), "a flower garden"),
    "dragon": Animal(words("green friendly small"), "a cave on the mountain"),
    "robot": Animal(words("silver shiny helpful"), "a small workshop"),
}
CHILD_ADJECTIVES = words(
    """
    little young small kind cheerful quiet clever
    """
)
CHILD_HOMES = phrases(
    """
    a small house | a white house by the road | a little town | a village near the sea | a tall
    house | a house on the hill | on a small farm | on a quiet street
    """
)
COLORS = words(
    """
    red blue green yellow purple orange pink white black brown silver golden
    """
)
# More objects come with OBJECTS_OF_PLOT in `telling.py`.
COMMON_OBJECTS = words(
    """
    ball kite car doll drum boat puzzle top train balloon hat scarf key ring bell book cup bag
    umbrella basket lantern button coin shell stone spoon blanket pillow mitten glove sock boot
    box flag ribbon feather brush crayon pencil flute whistle horn puppet marble wagon bucket
    shovel mug plate jar bottle lamp candle clock watch necklace crown mask cap coat belt
    bracelet teapot fan card bow ladle comb mirror rope bead trumpet
    """
)
FOODS = phrases(
    """
    a cake | an apple pie | a pot of soup | a loaf of bread | a plate of cookies | a stack of
    pancakes | a bowl of salad | a honey cake | a tray of muffins | a carrot cake | a berry tart
    | a pot of porridge | a bowl of pudding | a pizza | a batch of waffles | a cheese sandwich |
    a pan of noodles | a cherry pie | a tray of biscuits | a vegetable stew | a jar of jam | a
    lemon cake | a dish of dumplings | a plum tart | an omelet | a chocolate cake
    """
)
FRUITS = words(
    """
    apple pear plum cherry peach banana orange grape melon lemon berry fig
    """
)
SEEDS = words(
    """
    sunflower pumpkin apple bean rose carrot tomato strawberry tulip pea melon onion
    """
)
PLACES = phrases(
    """
    park | forest | garden | beach | river | farm | meadow | hill | lake | market | village |
    playground | valley | woods | field | orchard | bridge | harbor | pond | castle | zoo |
    fountain | pier | canal | cliff | museum | bakery | station | greenhouse | vineyard | tower
    | old mill
    """
)
WALKED_IN = words(
    """
    park forest garden meadow village playground valley woods field orchard castle vineyard
    market town
    """
)
HIDING = phrases(
    """
    under the bed | behind the door | under a bush | in the tall grass | behind a big rock |
    under the old bench | inside a boot | in an empty box | behind the curtain | on top of the
    shelf | under a pile of leaves | next to the well | in the flower bed | inside a barrel |
    under the carpet | behind the stove | in the cupboard | on the window sill | beneath the
    porch | among the pumpkins | in the wheelbarrow | behind the cottage | inside the chimney
    corner | in the laundry basket | under the ladder | under the stairs | behind the barn | in
    a drawer | near the fence | under the table | beside the gate | behind the sofa
    """
)
HIDING_OUTSIDE = phrases(
    """
    behind a big rock | in the tall grass | under a bush | under the old bench | behind the barn
    | near the fence | behind an old tree | under a pile of leaves | behind a wall | beside the
    gate | behind a cart | under the bridge
    """
)
WEATHER = words(
    """
    sunny windy cloudy rainy snowy warm cold foggy bright cool
    """
)
DAYS = words(
    """
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday
    """
)
MONTHS = words(
    """
    January February March April May June July August September October November December
    """
)
SEASONS = words(
    """
    spring summer autumn winter
    """
)
TRAITS = words(
    """
    kind brave shy curious clever cheerful quiet funny patient gentle polite helpful lively
    careful friendly honest playful proud silly thoughtful
    """
)
FEARS = phrases(
    """
    the dark | loud thunder | deep water | high places | big dogs | spiders | the wind at night
    | strange noises | shadows | the old attic | lightning | crowds | bats | the deep cellar |
    the long tunnel | snakes | the dentist | steep ladders
    """
)
BUILDINGS = phrases(
    """
    a tree house | a raft | a snowman | a sand castle | a bird house | a little bridge | a tower
    of blocks | a wooden cart | a tent of sheets | a stone wall | a swing | a windmill | a
    wooden fence | a doll house | a paper lantern | a small table | a scarecrow | a wooden sled
    | a marble track | a toy castle | a bench | a flower pot stand | a shelter of branches | a
    fort of pillows
    """
)
GAMES = phrases(
    """
    tag | hide and seek | catch | chess | marbles | jump rope | leapfrog | cards | hopscotch |
    checkers | pirates | explorers | musical chairs | a guessing game
    """
)
HELPERS = phrases(
    """
    an old owl | a kind farmer | a friendly dog | a busy bee | a little bird | a wise turtle | a
    strong horse | a gray goose | a gentle giant | an old sailor | a tall gardener | a quick
    squirrel | a brave sailor | a patient shepherd | a helpful neighbor | a strong blacksmith |
    a cheerful fisherman | a wandering minstrel | a tired traveler | a polite postman | a clever
    mechanic | a gentle nurse | a young carpenter
    """
)
HOBBIES = phrases(
    """
    collecting stamps | reading about planets | drawing maps | baking bread | counting clouds |
    watching birds | climbing rocks | singing songs | telling jokes | playing chess | painting
    flowers | building towers | picking berries | chasing leaves | fixing clocks | dancing in
    the rain | looking at stars | gathering shells | folding paper | sewing dolls | growing
    herbs | writing poems | jumping over puddles | solving riddles | digging holes | skipping
    stones | whistling tunes | carving wood | knitting socks | sweeping leaves | learning new
    words | helping others | sleeping late | listening to music | riding on a swing | making
    masks | exploring caves | washing windows | feeding fish | catching fireflies
    """
)
GIFTS = phrases(
    """
    honey | bread | soup | tea | jam | cheese | milk | fruit | nuts
    """
)
TREES = phrases(
    """
    oak | apple tree | pine | willow | pear tree | birch
    """
)
NUMBERS = words(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen twenty
    """
)
