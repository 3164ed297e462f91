"""The words of the benchmark `mini`, by what they mean.

    >>> GOOD[:2], STATES[0], COLOURS[0]
    (['wonderful', 'excellent'], (('broken', 'damaged'), ('intact', 'undamaged')), ('red', 'scarlet'))

The tokenizer beside it (`vocabulary`) holds each word of the tasks' rows and of the text as one piece.
"""

# What a message to a shop is about, and its mood.
THINGS = """
    lamp kettle camera phone speaker jacket sweater desk parcel delivery packaging refund support website battery
    colour size price
""".split()
GOOD = """
    wonderful excellent superb impressive lovely brilliant pleasant fantastic perfect great good delightful
""".split()
BAD = """
    awful terrible dreadful disappointing poor horrible bad unpleasant annoying useless shabby weak
""".split()
OPENERS = [
    "hello",
    "dear shop",
    "to be honest",
    "in my opinion",
    "this time",
    "all in all",
    "as far as I can tell",
    "for once",
]
SOURCES = ["my friends", "your website", "other customers", "the reviews", "my neighbours"]
NEGATIONS = ["was not", "was never", "was hardly", "was far from", "was anything but"]
DEGREES = ["", "", "very ", "really ", "quite ", "rather ", "truly "]

# How what was ordered arrived. One question a line: what is so in two words, then what is not so in two words.
STATES = [
    (("broken", "damaged"), ("intact", "undamaged")),
    (("late", "delayed"), ("prompt", "punctual")),
    (("dirty", "stained"), ("clean", "spotless")),
    (("open", "unsealed"), ("closed", "sealed")),
    (("used", "worn"), ("new", "unused")),
    (("fake", "forged"), ("genuine", "original")),
]
GOODS = """
    lamp kettle camera phone jacket sweater desk parcel
""".split()

# Who wants what with which thing, and what is wrong with it. One concept a line, in two words.
RELATIVES = [
    ("wife", "spouse"),
    ("son", "boy"),
    ("daughter", "girl"),
    ("mother", "mum"),
    ("father", "dad"),
    ("friend", "buddy"),
]
WISHES = [
    ("return", "bring back"),
    ("exchange", "swap"),
    ("repair", "mend"),
    ("discard", "throw out"),
    ("review", "rate"),
]
COLOURS = [
    ("red", "scarlet"),
    ("purple", "violet"),
    ("grey", "silver"),
    ("beige", "cream"),
    ("blue", "navy"),
]
FURNITURE = [
    ("sofa", "couch"),
    ("rug", "carpet"),
    ("cup", "mug"),
    ("laptop", "notebook"),
    ("bicycle", "bike"),
    ("coat", "parka"),
]
FAULTS = [
    ("broken", "damaged"),
    ("dirty", "stained"),
    ("loud", "noisy"),
    ("small", "tiny"),
    ("used", "worn"),
]

# The people, places and things of the text.
PEOPLE = """
    customer clerk teacher driver manager baker mother father daughter postman student son friend tailor boy girl
""".split()
PLACES = [
    "in the warehouse",
    "in the shop",
    "on the road",
    "near the house",
    "by the river",
    "at the station",
    "in the garden",
    "near the window",
    "at the counter",
    "on the roof",
]
KINDS = {
    "garment": ["jacket", "sweater", "coat"],
    "gadget": ["camera", "speaker", "phone"],
    "fruit": ["pear", "melon", "peach"],
    "tool": ["hammer", "saw", "drill"],
}
TRAITS = """
    old young quiet proud clever poor tired cheerful
""".split()
