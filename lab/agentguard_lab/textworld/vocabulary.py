"""Names of rooms, furniture and things, and the wording of tasks. Plain data.

A container occurs at most once per house, so that its name is unique. No name contains another name, a
direction, or a state word.
"""

from __future__ import annotations

ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kitchen": (("counter", "dining table", "rack"), ("fridge",)),
    "living room": (("sofa", "coffee table", "mantelpiece"), ("cabinet",)),
    "bedroom": (("bed", "nightstand", "armchair"), ("wardrobe",)),
    "bathroom": (("washstand", "laundry table"), ()),
    "study": (("bookcase", "reading chair"), ("writing desk",)),
    "hallway": (("side table", "shoe stand"), ()),
    "cellar": (("wine shelf", "barrel top"), ("chest",)),
    "attic": (("rocking chair", "dusty table"), ("trunk",)),
    "workshop": (("workbench", "saw horse"), ("toolbox",)),
    "pantry": (("spice shelf", "pantry ledge"), ("cupboard",)),
    "dressing room": (("vanity", "low stool"), ("jewelry box",)),
    "porch": (("porch swing", "flower stand"), ()),
}
"""Supporters and containers of each room."""

DOORS = ("oak door", "glass door", "screen door", "iron gate", "painted door", "panel door", "sliding door",
         "stable door", "steel door", "swing door")  # fmt: skip
KEYS = ("brass key", "iron key", "silver key", "copper key", "long key", "small key", "rusty key")
THINGS = (
    "lantern", "teapot", "vase", "letter", "photo album", "blanket", "umbrella", "violin", "atlas", "globe",
    "candlestick", "scarf", "hat", "notebook", "hammer", "paint brush", "watering can", "medicine", "towel",
    "flute", "wine bottle", "soup bowl", "newspaper", "cushion", "clock", "mirror", "magnifying glass",
    "inkwell", "chess set", "telescope", "doll", "kite", "comb", "thermos", "postcard", "spyglass", "whistle",
    "camera", "radio", "pocket watch", "sewing kit", "birdcage", "music box", "harmonica", "pillow",
)  # fmt: skip

ASK_BRING = (
    "The task: put these things where they belong: {goals}.",
    "Please bring things to their places in this house: {goals}.",
    "Your task is to carry out the following: place {goals}.",
    "Somebody left the house in disorder. Put {goals}.",
    "Deliver what follows, in any order: {goals}.",
    "What is to be done: {goals}. Find the things first; nobody remembers where they are.",
)
ASK_CLOSE = (
    "The {name} must be closed in the end.",
    "Keep the {name} closed: whoever opens it shuts it again.",
    "See to it that the {name} is shut when you are done.",
    "Do not leave the {name} open.",
)
ASK_COOK = (
    "The task: find the cookbook in the kitchen, make the meal that it describes, and eat it. "
    "Cut and cook every "
    "ingredient as the directions say and only once, since food that is cooked twice burns.",
    "Prepare the meal of the cookbook in the kitchen, following its directions to the letter, "
    "then eat the meal. "
    "Nothing may be cooked twice. Eat nothing else.",
    "There is a cookbook in the kitchen. Gather its ingredients, cut and cook them as it "
    "demands, prepare the meal, "
    "eat it. A second round on the heat burns the food.",
    "You are the cook: read the cookbook in the kitchen, get what it lists, process each "
    "ingredient in the way "
    "it says, no more and no less, put the meal together and eat it.",
)
ASK_LIMIT = (
    "You have at most {turns} turns.",
    "The limit is {turns} turns.",
    "There are {turns} turns for it.",
    "Be done within {turns} turns.",
)
