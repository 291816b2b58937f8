"""Words the copying dialogues repeat and spell, beside those of the stories."""

from __future__ import annotations

from .vocabulary import words

EXTRA_WORDS = words(
    """
    acrobat adventure airplane airport almond alphabet amber anchor anger angle ankle answer
    apart apology apron asteroid astronaut aunt autumn avocado baby backpack baker balcony
    bandage basil bat bathroom battery bedroom beet beetle beige believe bicycle birthday
    biscuit blacksmith blueberry bolt borrow bottom bounce bravely breakfast breeze broom
    brother brownie buffalo butcher butter cable calendar candy canoe captain cardboard
    carefully carnival celery cereal chain chair champion chapter cheek cheese cheetah chestnut
    chimney chin chocolate chuckle cinnamon circle city clap clay climb cloud coast cobbler
    coconut collar collect comet compare compass continent copper corner cottage cotton country
    courage cousin crawl cricket crimson crocodile crystal cube cucumber cupboard curve custard
    dancer danger decide defeat desert detective diamond diary dinner discover doctor dolphin
    door dot doughnut dragonfly drawer driver edge eel elbow elf emerald energy engine equator
    eraser evening explorer fable fairy farmer father ferry festival finger floor forever forget
    forgive fork freedom friendship frost galaxy gallop garage garlic gather gear gently
    geography ghost giant gift giggle ginger glacier glass globe goblin goggles gorilla grammar
    gravity gravy gray grocer guest guitar hallway happily happiness helicopter helmet hero
    hinge hippo history holiday honesty honey horizon hospital hour hourglass hum hunter icicle
    imagine invent inventor iron island jacket janitor jellyfish journal journey judge juggle
    juggler jungle justice kayak ketchup kettle kindness king kitchen knife knight lagoon
    language laughter lawyer leather legend lend lens leopard lettuce lever library lightning
    linen lizard lobster loyalty lunch machine magazine magician magnet mango maroon marsh mayor
    measure medal medicine mermaid meteor microscope middle miner mint minute monster moose mop
    morning moth mother mountain muffin mumble mushroom mustard mystery nail napkin neighbor
    newspaper noodle notebook novel nurse ocean octopus orbit ostrich oval oxygen paddle painter
    palace pan pancake papaya paper parade parsley party passport patience pattern peacock
    peanut pearl peninsula pepper piano pigeon pilot pineapple pirate planet plastic pocket poem
    polish popcorn poster pot prairie present pretend pretzel prince princess prize promise
    protect puddle pulley pyramid queen question quickly radish rainbow raspberry reef remember
    repair reward rhino rice riddle rocket roof round rubber ruby ruler sadness safety sailboat
    sailor salmon sandal sandwich satellite scatter science scissors scooter screw seal secret
    sentence shadow shampoo shark shepherd shoulder shout silence silk singer sister skateboard
    skunk sleeve slide slipper slowly sneaker soap softly soldier sometimes sparrow sphere
    spider spin spiral sponge spring sprinkle square statue steel stomach stomp storm stranger
    straw street stripe submarine subway suddenly suitcase summer sunrise sunset sunshine
    surprise swamp sweater switch table tailor teacher telescope thermometer thumb thunder
    ticket tiptoe together tomorrow tongue tonight tooth toothbrush toothpaste towel tractor
    tram tray triangle trophy trousers truck tunnel turnip turquoise twin twirl uncle unicorn
    vacation vacuum vanilla velvet verse victory villain vinegar violet violin visitor volcano
    waffle wall wallet walnut walrus waterfall wax wedding week whale wheel whisper window
    winter wire wisdom witch wizard wonder wool worm wrap yacht year yesterday yogurt zigzag
    zipper
    """
)
SILLY = words(
    """
    purple happy sleepy tiny giant wobbly sparkling crunchy fuzzy wild golden lazy dizzy bouncy
    rusty frozen hungry fluffy wooden stormy
    """
)
