"""The words of the benchmark `mini`, by what they mean.

    >>> GOOD[:2], PEOPLE[0], VERBS[0]
    (['wonderful', 'excellent'], ('doctor', 'physician'), ('praised', 'praise', 'commended'))

The tokenizer beside it (`vocabulary`) holds each word of the tasks' rows as one piece.
"""

GOOD = """
    wonderful excellent delightful superb impressive charming lovely brilliant memorable pleasant terrific splendid
    marvellous fantastic enjoyable outstanding remarkable perfect great beautiful
""".split()
BAD = """
    awful terrible dreadful disappointing poor horrible bad unpleasant mediocre forgettable annoying boring dull
    miserable shabby sloppy weak tedious lousy ugly
""".split()
THINGS = """
    soup service coffee dessert menu plot acting ending music dialogue room bed view lobby breakfast cover story
    chapter style cast waiter garden pool concert sound stage
""".split()
OPENERS = [
    "to be honest",
    "in my opinion",
    "on our last visit",
    "this time",
    "on the whole",
    "as far as I can tell",
    "for once",
    "last weekend",
]
JUDGES = ["my friends", "the critics", "our guests", "many people", "the papers", "the reviewers"]
NEGATIONS = ["was not", "was never", "was hardly", "was far from", "was anything but"]
DEGREES = ["", "", "very ", "really ", "quite ", "rather ", "truly "]

# One concept a line: the usual word, then its synonym.
PEOPLE = [
    ("doctor", "physician"),
    ("lawyer", "attorney"),
    ("teacher", "instructor"),
    ("farmer", "grower"),
    ("sailor", "seaman"),
    ("soldier", "trooper"),
    ("thief", "robber"),
    ("author", "writer"),
    ("cook", "chef"),
    ("singer", "vocalist"),
    ("king", "monarch"),
    ("student", "pupil"),
    ("guard", "watchman"),
    ("merchant", "trader"),
    ("priest", "clergyman"),
    ("tailor", "dressmaker"),
]
PLACES = [
    ("in the forest", "in the woods"),
    ("at the harbour", "at the port"),
    ("in the shop", "in the store"),
    ("on the road", "on the street"),
    ("near the house", "near the cottage"),
    ("in the village", "in the hamlet"),
    ("by the river", "by the stream"),
    ("at the hotel", "at the inn"),
]
TIMES = [
    ("at noon", "at midday"),
    ("at dawn", "before sunrise"),
    ("at night", "after dark"),
    ("in autumn", "in the fall"),
    ("last week", "a week ago"),
    ("in the evening", "after sunset"),
    ("on Sunday", "at the weekend"),
    ("in May", "in spring"),
]
# past form, base form, synonym of the past form; each pair of lines are antonyms.
VERBS = [
    ("praised", "praise", "commended"),
    ("criticised", "criticise", "faulted"),
    ("helped", "help", "assisted"),
    ("hindered", "hinder", "obstructed"),
    ("loved", "love", "adored"),
    ("hated", "hate", "despised"),
    ("trusted", "trust", "believed"),
    ("doubted", "doubt", "distrusted"),
    ("hired", "hire", "employed"),
    ("dismissed", "dismiss", "fired"),
    ("attacked", "attack", "assaulted"),
    ("defended", "defend", "protected"),
    ("noticed", "notice", "spotted"),
    ("ignored", "ignore", "overlooked"),
    ("obeyed", "obey", "used"),
    ("defied", "defy", "disobeyed"),
]
KINDS = {
    "animal": ["horse", "goat", "donkey", "dog"],
    "vehicle": ["wagon", "bicycle", "carriage", "truck"],
    "fruit": ["pear", "melon", "peach", "lemon"],
    "tool": ["hammer", "spade", "saw", "drill"],
    "weapon": ["sword", "dagger", "rifle", "spear"],
}
DEALS = [("bought", "buy"), ("sold", "sell"), ("found", "find"), ("lost", "lose"), ("stole", "steal"), ("hid", "hide")]
REASONS = [
    "in secret",
    "in public",
    "without delay",
    "without a reason",
    "for money",
    "for a friend",
    "out of kindness",
    "out of fear",
]
TRAITS = """
    old young tall quiet proud clever poor rich tired cheerful
""".split()
